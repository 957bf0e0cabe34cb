"""Documentation: links, generated pages, workflows and templates of the hosting service, evaluations."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.corpus.answers import Answer
from benchmarks.corpus.validate import select
from mcp_server.logs.families import BY_ID
from mcp_server.runtime.context import Context
from mcp_server.tools.explain_error import explain_error
from tests.conftest import ROOT
from tests.support.command import output_of
from tests.support.guides import PAGES, frontmatter


def test_generated_pages_are_current() -> None:
    """The tool would change nothing."""
    argv = [sys.executable, str(ROOT / "tools" / "pages.py"), "--check"]
    done = output_of(argv, cwd=ROOT)
    assert done.returncode == 0, done.stdout


async def test_an_explained_error_names_its_page(tmp_path: Path) -> None:
    """`explain_error` gives the page that lists the family."""
    context = Context(tmp_path, Path(sys.executable))
    found = await explain_error(context, text="RuntimeError: Constant not found: enc.1.co.bias")
    assert BY_ID[found.family].example in (ROOT / found.page).read_text()


TOP = ("README.md", ".github/CONTRIBUTING.md", ".github/SECURITY.md", "CHANGELOG.md")
TEXTS = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md")), *PAGES]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]+)?\)")


def anchors(page: Path) -> set[str]:
    """The anchors of headings, as GitHub and mkdocs make them, and explicit anchors."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return set(re.findall(r'<a id="(\w+)">', text)) | {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_and_anchors_exist(text: Path) -> None:
    """Every relative link is a file, and its anchor a heading of that file."""
    for link, anchor in LINK.findall(text.read_text()):
        target = (text.parent / link).resolve() if link else text
        assert target.exists(), link
        assert not anchor or anchor[1:] in anchors(target), link + anchor


def test_every_page_of_the_site_is_reachable() -> None:
    """Each page of the documentation is linked from another text."""
    links = ((text, link) for text in TEXTS for link, _ in LINK.findall(text.read_text()) if link)
    linked = {(text.parent / link).resolve() for text, link in links}
    pages = {path for path in (ROOT / "docs").rglob("*.md") if path.name != "index.md"}
    assert pages - linked == set()


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"^[\w./-]+@(v\d+|release/v\d+)$")


def steps(path: Path) -> list[dict[str, Any]]:
    """Every step of every job of a workflow."""
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_starts_with_few_rights(path: Path) -> None:
    """A job may only read, unless it asks for more."""
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_a_workflow_runs_exists(path: Path) -> None:
    """Makefile targets, scripts and tools exist, and actions have a version."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for step in steps(path):
        if "uses" in step:
            assert PINNED.match(step["uses"]), step["uses"]
        command = step.get("run", "")
        assert set(re.findall(r"\bmake ([a-z-]+)", command)) <= targets
        for name in re.findall(r"(?<![\w/])(?:\.ci/run|tools/\w+\.py)", command):
            assert (ROOT / name).is_file()


def test_a_downloaded_program_is_compared() -> None:
    """The registry's publisher runs only after its digest was compared."""
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    fetched, compared = release.index("gh release download"), release.index("sha256sum --check")
    assert fetched < compared < release.index("./mcp-publisher publish")


def test_the_issue_form_asks_for_the_bundle() -> None:
    """A report needs the bundle and the state of the machine."""
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "problem.yml").read_text())
    needed = {part["id"] for part in form["body"] if part.get("validations", {}).get("required")}
    assert {"bundle", "doctor", "happened"} <= needed


def test_hooks_run_what_is_there() -> None:
    """`pre-commit` runs `make lint` and the checks of generated files."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["entry"] for hook in hooks] == ["make lint", "make generated"]
    makefile = (ROOT / "Makefile").read_text()
    checked = makefile.partition("\ngenerated:")[2].partition("\n\n")[0]
    assert set(re.findall(r"tools/(\w+)\.py --check", checked)) == {"manifests", "pages"}


# Evaluation tasks and trigger queries.

EVALS = ROOT / "evals"
TASKS: list[dict[str, Any]] = json.loads((EVALS / "evals.json").read_text())["evals"]
# `claude plugin eval` rejects other fields of a grader (Claude Code 2.1.329).
GRADERS = {
    "regex": {"type", "name", "target", "pattern", "flags", "match", "weight", "arm"},
    "llm": {"type", "name", "criteria", "focus", "weight", "arm"},
    "tool_used": {"type", "name", "tool", "input_match", "min", "max", "weight", "arm"},
}


ANSWERS = {answer.name: answer for answer in select(None)}


def answer_of(task: dict[str, Any]) -> Answer:
    return ANSWERS[Path(task["files"][0]).stem]


def test_queries_are_thirty_each_way() -> None:
    """Half of the queries should start the skill, half are near misses, and all differ."""
    queries = json.loads((EVALS / "trigger.json").read_text())
    assert Counter(query["should_trigger"] for query in queries) == {True: 30, False: 30}
    assert all(set(query) == {"query", "should_trigger"} and query["query"].strip() for query in queries)
    assert len({query["query"] for query in queries}) == 60


def test_each_task_is_complete() -> None:
    """Tasks are numbered from 1; each has a prompt, expectations, and existing files that it names."""
    assert [task["id"] for task in TASKS] == list(range(1, len(TASKS) + 1))
    assert sum(task["healthy"] for task in TASKS) >= 3
    for task in TASKS:
        assert len(task["expectations"]) >= 2 and task["files"]
        assert all((ROOT / name).is_file() and name in task["prompt"] for name in task["files"])


@pytest.mark.parametrize("task", TASKS, ids=lambda task: Path(task["files"][0]).stem)
def test_the_pattern_of_the_cause_is_right(task: dict[str, Any]) -> None:
    """The pattern matches the corpus's words about the case, and not an empty phrase."""
    assert task["healthy"] == (answer_of(task).outcome == "no_fault")
    if not task["healthy"]:
        pattern = re.compile(task["cause"], re.IGNORECASE)
        assert pattern.search(f"{answer_of(task).fields}")
        assert not pattern.search("AOTInductor failed. I could not find out why.")


def test_cases_can_be_loaded(tmp_path: Path) -> None:
    """The tool writes a case for each task, with accepted fields and a scaffold that runs."""
    subprocess.run([sys.executable, str(ROOT / "tools" / "evals.py"), str(tmp_path)], check=True)
    cases = sorted(tmp_path.glob("*/case.yaml"))
    assert len(cases) == len(TASKS)
    for path in cases:
        case, program = yaml.safe_load(path.read_text()), f"{path.parent.name.replace('-', '_')}.py"
        assert case["name"] == path.parent.name and program in case["execution"]["prompt"]
        assert all(set(grader) <= GRADERS[grader["type"]] for grader in case["graders"])
        subprocess.run([path.with_name("scaffold.sh")], cwd=path.parent, check=True)
        assert (path.parent / program).is_file()


DESCRIPTION = frontmatter()["description"].lower()
FIRES, _, NOT_FOR = DESCRIPTION.partition("not for")

# Terms of the description that no other compiler uses, as people write them.
OWN = (
    "aoti_compile_and_package",
    "aoti_load_package",
    "aotimodelpackageloader",
    "run_func_",
    "wrapper.cpp",
    "unmatched dtype",
    "dim value is too large",
    "could not find schema",
    "constant not found",
)
SUBJECT = ("aotinductor", "aoti", "aot_compile", "aot_load", ".pt2")
# A word of the description -> what users say for it.
SYMPTOM = {
    "fails": ("fail", "dies", "error", "does not load", "needs", "says", "gives", "raises", "expected u0"),
    "segfault": ("segfault", "exit code 139", "crash"),
    "abort": ("aborts", "terminate called"),
    "core dump": ("core dump",),
    "hangs": ("hangs", "never returns"),
    "nan": ("nan",),
    "wrong numbers": ("wrong", "differs", "zeros", "garbage", "mixed up", "different from eager"),
    "index out of bounds": ("index out of bounds",),
    "device-side assert": ("device-side assert",),
    "illegal memory access": ("illegal memory access",),
    "undefined symbol": ("undefined symbol",),
    "no kernel image": ("no kernel image",),
    "custom ops": ("custom op",),
    "new weights": ("new weights", "fine-tuned weights"),
}


@pytest.mark.parametrize("term", [*OWN, *SYMPTOM])
def test_the_terms_are_the_description_s(term: str) -> None:
    """A term of the lists above that the description loses fails here."""
    assert term in FIRES


def test_a_query_that_should_start_the_skill_has_words_of_its_description() -> None:
    """A query has an own term, or the subject with a user's word for a symptom."""
    words = {*OWN, *SUBJECT, *(said for each in SYMPTOM.values() for said in each)}
    queries = json.loads((EVALS / "trigger.json").read_text())
    wanted = [query["query"].lower() for query in queries if query["should_trigger"]]
    assert [query for query in wanted if not any(word in query for word in words)] == []


@pytest.mark.parametrize("topic", ["graph breaks", "eager", "training", "speed"])
def test_near_misses_are_excluded_by_name(topic: str) -> None:
    """The `Not for` clause has the topics of near misses with AOTInductor's words."""
    assert topic in NOT_FOR
