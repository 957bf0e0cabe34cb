"""What is observed next, imported ahead, and checked; and what a broken observation costs."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from mcp_server.diagnosis.diagnose import DETECTORS, choose, observations, perform
from mcp_server.diagnosis.observe import Observation
from mcp_server.diagnosis.observe.program import suspect_call
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.errors import ProblemError
from mcp_server.model import CommandWorkload, ExportedWorkload, PackageWorkload, ScriptWorkload, Workload
from mcp_server.runtime.context import Context
from mcp_server.tools.capture import Capture
from tests.conftest import ROOT, Zoo
from tests.diagnosis.support import called, capture, failing, look, package_case, phase, run


@dataclass
class Look(Observation):
    """An observation that notes its run, and takes no time."""

    name: str
    seconds: float = 1.0
    worth: float = 1.0
    alone: bool = False
    error: Exception | None = None
    seen: list[str] = field(default_factory=list)

    def gain(self, _case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        return self.worth

    async def act(self, case: DiagnosisState, _context: Context) -> None:
        if self.error is not None:
            raise self.error
        await anyio.sleep(0)
        case.notes.append(f"{self.name} looked")


def chosen(*looks: Look, case: DiagnosisState | None = None) -> list[str]:
    return [each.name for each in choose(looks, case or DiagnosisState(None))]


def performed(case: DiagnosisState, *looks: Look) -> DiagnosisState:
    context = Context(directory=Path("job"), python=Path(sys.executable))
    anyio.run(perform, choose(looks, case), case, context)
    return case


@pytest.mark.parametrize("error", [ProblemError("no such file"), ValueError("odd")], ids=["refused", "bug"])
def test_a_broken_look_leaves_a_note(error: Exception) -> None:
    """A refusal or error is noted, the other observation continues, and the broken one is not repeated."""
    broken = Look("broken", error=error)
    case = performed(DiagnosisState(None), broken, Look("other"))
    assert "other looked" in case.notes
    assert any(note.startswith("broken") and str(error) in note for note in case.notes)
    assert chosen(broken, case=case) == []


FIRST: list[tuple[Workload, list[str]]] = [
    (ScriptWorkload(script=Path("a.py")), ["capture"]),
    (CommandWorkload(argv=["host"]), ["capture"]),
    (ExportedWorkload(exported=Path("e.pt2")), ["read_exported"]),
    (PackageWorkload(package=Path("m.pt2")), ["open_package"]),
]


@pytest.mark.parametrize(("workload", "first"), FIRST, ids=lambda value: getattr(value, "kind", ""))
def test_the_first_look_at_a_workload(workload: Workload, first: list[str]) -> None:
    """Files are read before anything runs. A program is captured alone."""
    assert [each.name for each in choose(observations(), DiagnosisState(workload))] == first


def test_an_empty_state_accuses_nobody() -> None:
    """Every `detect…` of `causes/` is found, and yields nothing before any observation."""
    folder = ROOT / "mcp_server" / "diagnosis" / "causes"
    code = "".join(file.read_text() for file in folder.glob("*.py"))
    written = re.findall(r"^def (detect\w*)", code, re.MULTILINE)
    assert sorted(each.__name__ for each in DETECTORS) == sorted(written)
    assert [list(detect(DiagnosisState(None))) for detect in DETECTORS] == [[]] * len(DETECTORS)


ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
LOAD = phase(1, loader="AOTIModelPackageLoader", package="m.pt2")
KEPT = phase(2, load=1, thread=1, file="inputs.pt")
IN_GRAPH = phase(3, load=1, thread=1, notice="a CUDA graph was being captured")


def script_case(seen: Capture, text: str) -> DiagnosisState:
    case = DiagnosisState(ScriptWorkload(script=Path("serve.py")))
    case.capture, case.call = seen, suspect_call(seen)
    case.runs["script"] = run("script", text)
    return case


def gain(case: DiagnosisState) -> float:
    return float(look("locate_fault").gain(case, []))


def test_a_program_is_run_itself_where_no_call_can_show_it() -> None:
    """If an illegal access cannot be shown by a call (lost inputs, a graph), the program runs by itself."""
    lost = {**KEPT, "file": None, "notice": "TooLarge", "outcome": "unfinished"}
    assert gain(script_case(capture(loads=[LOAD], calls=[lost]), ILLEGAL)) > 0
    assert gain(script_case(capture(loads=[LOAD], calls=[lost]), "ValueError: mine")) == 0
    assert gain(script_case(capture(), ILLEGAL)) == 0
    with_graph = script_case(capture(loads=[LOAD], calls=[KEPT, IN_GRAPH]), ILLEGAL)
    assert with_graph.call is not None and gain(with_graph) > 0
    assert gain(script_case(capture(loads=[LOAD], calls=[KEPT]), ILLEGAL)) == 0


def test_indices_that_no_kernel_checks_are_watched(zoo: Zoo) -> None:
    """A good call of a package whose code has no index checks is run under the checker."""
    case = package_case(zoo("ranker"))
    case.runs["plain"] = run("plain", "", called())
    assert case.package is not None and gain(case) == 0
    vars(case.package)["kernel_text"] = case.package.kernel_text.replace("index out of bounds: ", "")
    assert gain(case) > 0


def test_an_assertion_whose_text_was_lost_is_looked_for(zoo: Zoo) -> None:
    """If the log has only the status of a device assertion, memcheck prints its text."""
    status = "CUDA error: device-side assert triggered"
    place = "/c/k.py:40: unknown: block: [1,0,0], thread: [2,0,0]"
    text = place + " Assertion `index out of bounds: 0 <= tmp4 < 9` failed."
    assert gain(failing(package_case(zoo("ranker")), status)) == 1.0
    assert gain(failing(package_case(zoo("ranker")), f"{text}\n{status}")) == 0.0
