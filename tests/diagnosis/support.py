"""Makes results of observations, with the readers that the observations use."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mcp_server.diagnosis.call_seen import CallSpec
from mcp_server.diagnosis.diagnose import DETECTORS, observations
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, Seen, Trial
from mcp_server.diagnosis.program_seen import RunSeen
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.jobs.child import Finished
from mcp_server.logs.log import read_log
from mcp_server.model import Artifact, Category, Component, Cost, Evidence, PackageWorkload
from mcp_server.package.archive import open_package
from mcp_server.package.mismatch import GivenTensor, compare_inputs
from mcp_server.runtime.context import WorkerRun, decode
from mcp_server.tools.capture import Capture
from mcp_server.tools.check_devices import Given
from mcp_server.tools.compare_with_eager import ComparedWithEager
from mcp_server.tools.every_launch import WrongLaunch
from mcp_server.tools.trace_launches import Trace
from mcp_server.worker.events import Event
from tests.conftest import Zoo
from tests.support.programs import recorded

LOG = Path("output.log")
RAISED = "Error: index out of bounds: 0 <= tmp2 < 32L"
GOOD_IDS = GivenTensor("int64", (8, 6))


def finished(ending: Any = "exit", returncode: int | None = 0) -> Finished:
    note = "did not end within 1 s" if ending == "timeout" else ""
    return Finished(ending, returncode, None, 1.0, LOG, LOG, LOG, note)


Line = Mapping[str, object]  # an event as a line of a report


def worker_run(*events: Event | Line) -> WorkerRun:
    decoded = tuple(each if isinstance(each, Event) else decode(each) for each in events)
    return WorkerRun(finished(), decoded, Path("job"), Path("python"))


def run(label: str, text: str = "", *events: Event | Line, ending: Any = "exit") -> RunSeen:
    """Make a run with this output. It failed if it printed anything or did not exit by itself."""
    code = (1 if text else 0) if ending == "exit" else None
    return RunSeen(label, finished(ending, code), read_log(text.splitlines()), worker_run(*events))


def called(**facts: object) -> Line:
    """Make the worker's report of a call with one output."""
    return {"event": "called", "outputs": [{"nan": 0, "inf": 0, **facts}]}


def package_case(package: Path, *tensors: GivenTensor) -> DiagnosisState:
    """Make a case in which the package was opened, and these inputs were compared with it."""
    case = DiagnosisState(PackageWorkload(package=package, inputs=Path("inputs.pt")))
    case.call = CallSpec("run", {"inputs": "inputs.pt"}, package, Path("inputs.pt"))
    case.package = open_package(package)
    if tensors:
        case.given = Given(tensors)
        case.mismatches = tuple(compare_inputs(case.package.signature, tensors))
    return case


def failing(case: DiagnosisState, text: str = "Segmentation fault") -> DiagnosisState:
    """The case after its call failed."""
    case.runs["plain"] = run("plain", text)
    return case


def index_text(package: Path) -> str:
    """What a failed index check of this CPU package prints."""
    found = re.search(r"index out of bounds: [^\"]+", open_package(package).kernel_text)
    assert found is not None
    return f"Error: {found[0]}"


def capture(**records: Sequence[Any]) -> Capture:
    """Make a capture with these records, in the journal's form."""
    return Capture.model_validate({**records, "finished": finished(), "directory": "job"})


def phase(n: int, **more: object) -> dict[str, Any]:
    return {"pid": 1, "n": n, "t": float(n), "number": 1, "outcome": "ok", **more}


def look(name: str) -> Any:
    """The observation of this name."""
    return next(each for each in observations() if each.name == name)


def by(name: str, case: DiagnosisState) -> list[Suspect]:
    """The suspects of one detector, named as in `causes.detect_it`."""
    (detector,) = (d for d in DETECTORS if f"{d.__module__.rpartition('.')[2]}.{d.__name__}" == name)
    return list(detector(case))


def from_eager(case: DiagnosisState) -> list[Suspect]:
    """The suspects from the interpretation of the exported program."""
    names = (
        "input_mismatch.detect_guard",
        "index_out_of_bounds.detect_raised",
        "nan_or_inf.detect_made_in_eager",
        "wrong_output.detect_compared",
    )
    return [found for name in names for found in by(name, case)]


def suspect(
    name: str = "a",
    category: Category = "nan_or_inf",
    *steps: str,
    level: CausalLevel = CausalLevel.CALL,
    **more: Any,
) -> Suspect:
    """Make a suspect with this name, and one piece of evidence for each of these steps."""
    party = Component(kind="input", name=name)
    seen = tuple(Evidence(step=step, fact=f"{step} of {name}") for step in steps)
    return Suspect(category, party, f"{category} of {name}", level, **{"evidence": seen, **more})


def intervention(key: str = "key", what: str = "the call without it") -> Intervention:
    return Intervention(key, Kind.INPUT, what)


def trial(tried: Intervention | None, effect: Effect, reason: str = "") -> Trial:
    """Make an intervention's trial, in which the unchanged call fails both times."""
    assert tried is not None
    failed = Seen("raised", text="RuntimeError: invalid argument")
    passed: Any = decode({"event": "intervened", "label": "with", "key": tried.key, "ended": "ok"})
    after = Seen("ok", passed) if effect is Effect.GONE else failed
    return Trial(tried, effect, failed, after, failed, reason=reason)


DIFFERS = {
    "event": "compared",
    "equal": False,
    "outputs": [{"output": 0, "elements": 4, "changed": 2, "by": 0.5}],
}
GUARD = {"event": "guard_failed", "node": "guard", "op": "call_function", "stack": []}
REFERENCE = {"event": "compared_expected", "equal": False, "outputs": [{"output": 0, "elements": 2}]}


def compared_with_eager(kind: Any, *wrong: WrongLaunch) -> ComparedWithEager:
    """Make outputs that differ for that reason, with the launches that are wrong on correct inputs."""
    changed = {"launch": 0, "kernel": "k0", "argument": "buf0"}
    facts = {
        "outcome": "differs",
        "summary": "output 0 differs from eager",
        "kind": kind,
        "every_launch": {"summary": "", "wrong": list(wrong)},
        "reads_unset": kind == "uninitialised",
        "varies_from": changed,
        "unset_from": changed,
        "log": Artifact(uri="u", path=Path("p"), bytes=0, what="log"),
        "cost": Cost(),
    }
    return ComparedWithEager.model_validate(facts)


OTHER_DATA = {"event": "constant_differs", "name": "inp.weight", "launch": 0, "elements": 64, "different": 3}


def diverged(zoo: Zoo, kind: Any = "error", **facts: Any) -> DiagnosisState:
    """Make a script that found wrong numbers, whose package diverges at launch 1."""
    case = package_case(zoo("logarithm"))
    case.runs["plain"] = case.runs["script"] = run("plain", "", called(), REFERENCE)
    case.interpreted = worker_run(DIFFERS)
    one = {"launch": 1, "kernel": "k1", "argument": "buf1", "difference": {}, "summary": "it differs"}
    wrong = WrongLaunch.model_validate({**one, "tf32": kind == "tf32", **facts})
    case.with_eager = compared_with_eager(kind, wrong)
    return case


def cuda_case(name: str, directory: Path) -> DiagnosisState:
    """Make a case with a call of a recorded package."""
    case = DiagnosisState(PackageWorkload(package=directory, inputs=Path("inputs.pt")))
    case.call = CallSpec("run", {"inputs": "inputs.pt"}, directory, Path("inputs.pt"))
    case.package = recorded(name, directory).package
    return case


def traced(zoo: Zoo, how: str, plain: Any) -> DiagnosisState:
    """Make a call whose last launch is in the journal."""
    case = package_case(zoo("logarithm"))
    case.runs["plain"] = plain
    place = {"launch": 1, "sequence": 2, "call": 0, "kernel": "k", "line": 7}
    row = {**place, "state": "open", "seconds": None, "arguments": ["x"]}
    told = {"how": how, "summary": "It ended in launch 1.", "last": row}
    paths = {"package": Path("m.pt2"), "environment": {}, "rebuild_s": 0.0, "cached": False}
    case.trace = Trace.model_validate({**told, **paths})
    return case
