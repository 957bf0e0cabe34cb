"""The guides and reference pages: format, length, links, and agreement with the code."""

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from mcp_server.logs.families import FAMILIES
from mcp_server.operations.table import OPERATIONS
from mcp_server.server.app import GUIDES, REFERENCE
from tests.conftest import ROOT, Zoo, torch_environment
from tests.support.command import output_of
from tests.support.guides import PAGES, REFERENCES, SKILL, SUB_GUIDES, frontmatter
from tests.zoo.names import thorough
from tools.made import MADE

PLACES = {entry.file: ROOT / entry.place for entry in (*GUIDES, *REFERENCE)}

FIELDS = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
TOOL = re.compile(
    r"`((?:explain|inspect|dump|locate|trace|compare)_\w+|wait_\w*job|stop_\w*job|diagnose|check_devices|compile_with\w+|run_det\w+)`"
)
# Starts the launcher in the skill's folder with locked versions. It installs nothing by name.
LAUNCHES = "uv run --frozen --script SKILL_DIR/tools/aoti_debug.py "
INSTALLS = re.compile(
    r"\b(?:pip3?|uv|npx?|npm|conda|apt(?:-get)?|brew) (?:install|add|run)\b|\b(?:uvx|curl|wget|sudo)\b"
    r"|\| *(?:ba)?sh\b|git\+https|@latest"
)
# Families whose text only says that something failed. SKILL.md says how to find the text with the cause.
UNSPECIFIC = {
    "generic_api_call",
    "shim_call",
    "terminate",
    "aborted",
    "child_failed",
    "script_exception",
    "python_exception",
    "cpp_exception",
}


def body() -> str:
    return SKILL.read_text().split("---\n", 2)[2]


def test_the_frontmatter_follows_the_specification() -> None:
    """Name, description and licence are what installers and agents accept."""
    fields = frontmatter()
    assert set(fields) <= FIELDS
    assert fields["name"] == "aoti-debug"
    assert fields["license"] == "Apache-2.0"
    description = fields["description"]
    assert 250 <= len(description) <= 700
    assert len(fields["compatibility"]) <= 500
    assert not set("<>") & set(description)
    assert "Use when" in description and "Not for" in description


def test_the_description_is_quoted() -> None:
    """An unquoted description with a colon makes installers skip the skill."""
    assert re.search(r'^description: "[^"]+"$', SKILL.read_text(), re.MULTILINE)


def test_the_skill_opens_with_one_command() -> None:
    """The first section has the launcher, then the tool, then how to save inputs."""
    first = body().partition("\n## ")[2].partition("\n## ")[0]
    assert first.index(LAUNCHES) < first.index("`diagnose`") < first.index("torch.save")
    assert (ROOT / "tools" / "aoti_debug.py").is_file()
    assert re.findall(r"```([a-z]+)\n", body()) == ["sh", "python"]


@pytest.mark.parametrize("guide", SUB_GUIDES, ids=lambda path: path.name)
def test_a_guide_has_a_readable_length(guide: Path) -> None:
    """At most 300 lines, and about 7,500 tokens at 4 characters each."""
    text = guide.read_text()
    assert 50 <= len(text.splitlines()) <= 300
    assert len(text) <= 30_000


def test_every_page_is_offered() -> None:
    """Each Markdown file that an installed skill needs is a resource of the server."""
    known = {"README.md", "CHANGELOG.md", "AGENTS.md", "CLAUDE.md"}
    found = {path.name for path in (*ROOT.glob("*.md"), *ROOT.glob("guides/*"))} - known
    assert found == set(PLACES)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every linked or named page is a file of the skill, one level deep."""
    text = page.read_text()
    linked = set(re.findall(r"\]\(([^)#]+)\)", text))
    named = set(re.findall(r"`([\w-]+\.md)`", text))
    assert linked or named or page not in SUB_GUIDES
    assert [link for link in linked if (page.parent / link).resolve() not in PLACES.values()] == []
    assert named <= set(PLACES)


@pytest.mark.parametrize("guide", SUB_GUIDES, ids=lambda path: path.name)
def test_guides_name_each_other_without_links(guide: Path) -> None:
    """Each page is one link away from SKILL.md, because scanners reject chains of links."""
    links = re.findall(r"\]\(([^)#]+)\)", guide.read_text())
    assert {(guide.parent / link).resolve() for link in links} <= set(REFERENCES)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_numbered_section_exists(page: Path) -> None:
    """`section 7` of a page, or of another page named right before it, is a heading of that page."""
    text = page.read_text()
    for name, number in re.findall(r"(?:\]\(|`)([\w./-]+\.md)[)`], sections? (\d+)", text):
        text_there = PLACES[Path(name).name].read_text()
        assert re.search(rf"^## {number}\. ", text_there, re.MULTILINE)
    own = re.sub(r"\.md[)`], sections? \d+(?: to \d+)?", "", text)
    for number in re.findall(r"\bsections? (\d+)\b", own):
        assert re.search(rf"^## {number}\. ", text, re.MULTILINE), number


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_pages_install_nothing(page: Path) -> None:
    """Pages have no install command and no download: scanners reject them, and agents would run them."""
    assert INSTALLS.findall(page.read_text().replace(LAUNCHES, "")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_pages_say_that_logs_are_data(page: Path) -> None:
    """An agent that reads a log is told that it is data."""
    text = " ".join(page.read_text().split())
    assert re.search(r"data[.:*]*\*?\*? .{0,40}run", text, re.IGNORECASE)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_tables_have_equal_rows(page: Path) -> None:
    """Each row of a table has as many cells as its header."""
    width = 0
    for line in page.read_text().splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not (width and cells) or cells == width, line
        width = cells


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_named_tools_exist(page: Path) -> None:
    """Words that look like a tool's name are tools."""
    named = set(TOOL.findall(page.read_text()))
    assert named - {operation.name for operation in OPERATIONS} == set()
    assert page not in (SKILL, *SUB_GUIDES) or "diagnose" in named


@pytest.mark.parametrize("guide", SUB_GUIDES, ids=lambda path: path.name)
def test_the_skill_leads_to_every_guide(guide: Path) -> None:
    """The table of symptoms has a link to each guide."""
    assert f"]({guide.relative_to(ROOT).as_posix()})" in body()


def test_every_family_has_a_guide() -> None:
    """Only a text that does not say what failed leads to SKILL.md, other texts lead to a guide."""
    assert {family.id for family in FAMILIES if family.guide == "SKILL.md"} == UNSPECIFIC
    assert {family.guide for family in FAMILIES} <= {guide.file for guide in GUIDES}


# Every command and program of the guides, run on a failing example.

BLOCK = re.compile(r"(?P<before>[^\n]*)\n\n *```(?P<kind>sh|python)\n(?P<code>.*?)\n *```", re.DOTALL)
SAVED = re.compile(r"Save as `(?P<name>[\w.]+)`:$")


@dataclass(frozen=True)
class Followed:
    """The output of a guide's commands and programs, in order, by their first words."""

    printed: dict[str, str]

    def of(self, start: str) -> str:
        """The output of the block that starts with `start`."""
        (found,) = (text for code, text in self.printed.items() if code.startswith(start))
        return found


def follow(guide: str, directory: Path) -> Followed:
    """Save the files of the guide in `directory`, and run its other blocks there."""
    printed: dict[str, str] = {}
    for found in BLOCK.finditer((ROOT / "guides" / guide).read_text()):
        code = re.sub(r"^   ", "", found["code"], flags=re.MULTILINE)
        saved = SAVED.search(found["before"])
        if saved:
            (directory / saved["name"]).write_text(code)
        else:
            name = code if found["kind"] == "sh" else f"program {len(printed)}"
            printed[name] = run(found["kind"], code, directory)
    return Followed(printed)


def run(kind: str, code: str, directory: Path) -> str:
    """Run a block, and return stdout and stderr, whatever the status."""
    argv = ["/bin/sh", "-c", code] if kind == "sh" else [sys.executable, "-W", "ignore", "-c", code]
    env = {
        **torch_environment(),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "AOTI_DEBUG_STATE": str(directory / "state"),
        "AOTI_DEBUG_CACHE": str(MADE / "instrumented"),
        "PYTHONWARNINGS": "ignore",
    }
    done = output_of(argv, cwd=directory, env=env)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def nan_guide(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """A package that makes NaN of its inputs, and is older than the weights of its program."""
    directory = tmp_path_factory.mktemp("nan-guide")
    package = zoo("logarithm")
    shutil.copy(package, directory / "model.pt2")
    shutil.copy(package.with_name("logarithm.bad-nan.pt"), directory / "batch.pt")
    program = torch.export.load(package.with_name("logarithm.exported.pt2"))
    with torch.no_grad():
        program.state_dict["out.weight"][0] *= 1.5
    torch.export.save(program, directory / "program.pt2")
    return follow("nan-and-wrong-output.md", directory)


DUMP = "aoti-debug dump-kernel-io --package model.pt2 --inputs batch.pt"
FIRST = "launch 1, cpp_fused_log_mul_sigmoid_0, wrote nan at [0, 5] to buf1, and its inputs were good"
DEPARTS = "launch 2, aoti_torch_cpu_addmm_out: linear_1 is "


@thorough
@pytest.mark.parametrize(
    ("start", "words"),
    [
        pytest.param(f"{DUMP} --stop-at-first-bad", (FIRST, "torch.log(scale)"), id="3: the first NaN"),
        # The minimum that the logarithm reads.
        pytest.param(f"{DUMP} --launches 1", ("seen 1", "-1"), id="3: the negative value"),
        pytest.param("aoti-debug run-deterministic", ("outputs differ no",), id="6: two runs agree"),
        # Eager mode has the NaN as well, so it is not reported.
        pytest.param("aoti-debug compare-with-eager", ("outcome differs", DEPARTS), id="7: the old layer"),
        pytest.param("program", ("nan",), id="10: the program in one call"),
    ],
)
def test_the_guide_on_nan_finds_both_faults(nan_guide: Followed, start: str, words: tuple[str, ...]) -> None:
    """Each section's command prints what the text says."""
    told = " ".join(nan_guide.of(start).split())
    assert [each for each in words if each not in told] == [] and "Error" not in told


@pytest.fixture(scope="module")
def shapes_guide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Followed, Path]:
    """The guide's own example: an operator whose fake function is right only for the exported batch size."""
    directory = tmp_path_factory.mktemp("shapes-guide")
    return follow("inputs-shapes-custom-ops.md", directory), directory


SIZES = "Shapes torch.Size([3, 3]) and torch.Size([4, 3]) are not equal!"


@thorough
@pytest.mark.parametrize(
    ("start", "words"),
    [
        (
            "aoti-debug diagnose",
            ("FAULT custom operator torch.ops.demo.thin", "promises shape [4, 3]", "returned shape [3, 3]"),
        ),
        # The package's input checks compare operators with their fake functions.
        ("aoti-debug run-deterministic", ("expected size 3==4",)),
        ("aoti-debug inspect-package", ("dim 0: 2 to 64",)),
        ("program 3", ("6 (3, 3)",)),
        # Shapes differ only at a size that was not exported.
        ("program 5", ("8 SUCCESS", SIZES)),
    ],
)
def test_the_guide_on_shapes(shapes_guide: tuple[Followed, Path], start: str, words: tuple[str, ...]) -> None:
    """The example compiles without complaint, and later commands name the operator or its sizes."""
    followed, directory = shapes_guide
    assert "Error" not in followed.of("python build.py")
    assert {"model.pt2", "program.pt2", "good.pt", "batch.pt"} <= {path.name for path in directory.iterdir()}
    told = " ".join(followed.of(start).split())
    assert [each for each in words if each not in told] == []


@thorough
def test_good_inputs_hide_it(shapes_guide: tuple[Followed, Path]) -> None:
    """Section 5: at the exported size, the package is right."""
    command = "aoti-debug compare-with-eager --package model.pt2 --exported program.pt2"
    told = run("sh", f"{command} --inputs good.pt --extra-imports thin_op.py", shapes_guide[1])
    assert re.search(r"outcome +agrees", told), told
