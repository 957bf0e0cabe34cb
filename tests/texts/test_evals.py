"""The evaluations and trigger queries: their shape, and that they agree with programs and description."""

from __future__ import annotations

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
from tests.conftest import ROOT
from tests.support.guides import frontmatter

EVALS = ROOT / "evals"
TASKS: list[dict[str, Any]] = json.loads((EVALS / "evals.json").read_text())["evals"]
# `claude plugin eval` refuses any other field of a grader (Claude Code 2.1.329).
GRADERS = {
    "regex": {"type", "name", "target", "pattern", "flags", "match", "weight", "arm"},
    "llm": {"type", "name", "criteria", "focus", "weight", "arm"},
    "tool_used": {"type", "name", "tool", "input_match", "min", "max", "weight", "arm"},
}


ANSWERS = {answer.name: answer for answer in select(None)}


def answer_of(task: dict[str, Any]) -> Answer:
    return ANSWERS[Path(task["files"][0]).stem]


def test_queries_are_thirty_each_way() -> None:
    """As many queries that should take the skill as near misses, none twice."""
    queries = json.loads((EVALS / "trigger.json").read_text())
    assert Counter(query["should_trigger"] for query in queries) == {True: 30, False: 30}
    assert all(set(query) == {"query", "should_trigger"} and query["query"].strip() for query in queries)
    assert len({query["query"] for query in queries}) == 60


def test_each_task_is_complete() -> None:
    """Numbered from 1, with a prompt, an expectation, and files that exist and that the prompt names."""
    assert [task["id"] for task in TASKS] == list(range(1, len(TASKS) + 1))
    assert sum(task["healthy"] for task in TASKS) >= 3
    for task in TASKS:
        assert len(task["expectations"]) >= 2 and task["files"]
        assert all((ROOT / name).is_file() and name in task["prompt"] for name in task["files"])


@pytest.mark.parametrize("task", TASKS, ids=lambda task: Path(task["files"][0]).stem)
def test_the_pattern_of_the_cause_is_right(task: dict[str, Any]) -> None:
    """It is found in the corpus' own words about the case, and not in an empty phrase."""
    assert task["healthy"] == (answer_of(task).outcome == "no_fault")
    if not task["healthy"]:
        pattern = re.compile(task["cause"], re.IGNORECASE)
        assert pattern.search(f"{answer_of(task).fields}")
        assert not pattern.search("AOTInductor failed. I could not find out why.")


def test_cases_can_be_loaded(tmp_path: Path) -> None:
    """The tool writes a case for each task, with fields that the command takes and a scaffold that runs."""
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
# What only generated code prints: the texts name AOTInductor although the user does not.
GENERATED = ("cpp_fused_", "triton_poi_fused_", "tmp4 < ks", "inductor package", "intermediate value printer")


def queries() -> list[tuple[str, bool]]:
    entries = json.loads((ROOT / "evals" / "trigger.json").read_text())
    return [(entry["query"], entry["should_trigger"]) for entry in entries]


def fires(query: str) -> bool:
    """Whether the description covers the query."""
    text = query.lower()
    if any(term in text and term in FIRES for term in OWN) and not asks_only(text):
        return True
    symptom = any(word in FIRES and any(said in text for said in saying) for word, saying in SYMPTOM.items())
    subject = any(term in text and term in FIRES for term in SUBJECT)
    generated = any(term in text for term in GENERATED)
    built = "package" in text and "no kernel image" in text
    return (symptom or "printer" in text) and (subject or generated or built) and not asks_only(text)


def asks_only(text: str) -> bool:
    """A question without a failure: how to, why so slow, explain."""
    wanted = r"speed|slower|latency|explain how|convert this|nothing fails|no error yet|want an example"
    return bool(re.search(wanted, text))


@pytest.mark.parametrize("term", [*OWN, *SYMPTOM])
def test_the_terms_are_the_description_s(term: str) -> None:
    """The lists above say what the description says: a term that it loses fails here."""
    assert term in FIRES


@pytest.mark.parametrize(("query", "expected"), queries())
def test_a_query_is_covered(query: str, expected: bool) -> None:
    """Each query that should start the skill meets the description, each near miss does not."""
    assert fires(query) is expected


@pytest.mark.parametrize("topic", ["graph breaks", "eager", "training", "speed"])
def test_near_misses_are_excluded_by_name(topic: str) -> None:
    """The topics of the near misses that use AOTInductor's words are in the `Not for` clause."""
    assert topic in NOT_FOR
