"""What the hook sees of a program: freed memory, and inputs that a call updates."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mcp_server.diagnosis.causes.concurrency import updated_in_a_copy
from mcp_server.diagnosis.causes.environment import remarks_on_file
from mcp_server.diagnosis.diagnose import detect
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.observe.intervene import by_changed_input
from mcp_server.diagnosis.observe.program import may_be_a_host, named_packages
from mcp_server.diagnosis.program_seen import RunSeen
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import conclude, confidence
from mcp_server.jobs.child import Finished
from mcp_server.logs.log import read_log
from mcp_server.model import CommandWorkload
from mcp_server.runtime.context import Context
from mcp_server.worker.protocol import Change
from tests.conftest import Zoo
from tests.diagnosis.support import (
    GOOD_IDS,
    LOG,
    by,
    called,
    capture,
    cuda_case,
    package_case,
    phase,
    run,
    worker_run,
)

LINE = {"file": "serve.py", "line": 41, "code": "model(frames)"}


def test_a_call_whose_inputs_do_not_fit_is_examined_before_the_last() -> None:
    """Nothing else marks a call of the failed program, such as an error or NaN."""
    seen = capture(calls=[phase(n, load=1, thread=1, file="x.pt") for n in (2, 3)])
    assert seen.model_copy(update={"misfits": seen.calls[:1]}).suspect == seen.calls[0] != seen.suspect


def died(outcome: str, gone: list[int]) -> DiagnosisState:
    """Make a program that a signal ended, after a call with these inputs unmapped."""
    case = DiagnosisState(None)
    told = {"storage": "input", "act": "unmapped", "interval": "call", "call": 1, "names": ["not mapped"]}
    call = phase(3, load=1, thread=1, outcome=outcome, stack=[LINE])
    case.capture = capture(calls=[call], memory=[phase(2, **told, input=place) for place in gone])
    ended = Finished("signal", None, "SIGSEGV", 1.0, LOG, LOG, LOG)
    case.runs["script"] = RunSeen("script", ended, read_log([]))
    return case


def test_a_call_that_died_of_unmapped_memory() -> None:
    """The input is guilty at the call's line. Hook and signal both say so."""
    case = died("unfinished", [1])
    (found,) = detect(case)
    guilty = found.guilty
    assert (found.category, guilty.kind, guilty.input_index) == ("illegal_memory_access", "input", 1)
    assert found.guilty.model_locations[0].line == 41 and confidence(found, case) == "likely"
    assert "before the call that reads it: not mapped" in found.summary


def test_who_killed_a_program_is_not_guessed(tmp_path: Path) -> None:
    """The headline of a program that SIGKILL ended says so. It is inconclusive, not a fault."""
    case = DiagnosisState(None)
    ended = Finished("signal", None, "SIGKILL", 1.0, LOG, LOG, LOG)
    case.runs["script"] = RunSeen("script", ended, read_log([]))
    found = conclude([], case, Context(tmp_path, Path("python")))
    assert (found.outcome, found.headline) == ("inconclusive", "killed by SIGKILL")


@pytest.mark.parametrize("rebuilt", [False, True])
def test_an_older_package_after_a_failed_build(rebuilt: bool) -> None:
    """A remark names the failed export, unless the program compiled after it."""
    case, error = DiagnosisState(None), {"type": "UserError", "text": "Could not guard\nmore"}
    failed = phase(1, outcome="failed", stack=[LINE], error=error)
    compiles = [phase(2, how="aoti_compile_and_package")] if rebuilt else []
    load = phase(3, loader="AOTIModelPackageLoader", package="a.pt2")
    calls = [phase(4, load=1, thread=1, file="inputs.pt")]
    case.capture = capture(failed_exports=[failed], compiles=compiles, loads=[load], calls=calls)
    said = "The last build failed at serve.py:41 (Could not guard), and an older package was loaded then."
    assert list(remarks_on_file(case)) == ([] if rebuilt else [said])


def test_a_load_without_files_left() -> None:
    """The limit is to blame, whatever the text. A load that succeeds elsewhere proves it."""
    case = DiagnosisState(None)
    error = {"type": "RuntimeError", "text": "file open failed", "no_files": 128}
    load = phase(2, loader="x", package="a.pt2", outcome="failed", stack=[LINE], error=error)
    case.capture = capture(loads=[load])
    case.runs["script"] = run("script", "RuntimeError: Failed to initialize zip archive: file open failed")
    (found,) = by("environment.detect_limit", case)
    told = (found.category, found.guilty.name, confidence(found, case))
    assert told == ("environment", "open files", "likely")
    case.runs["plain"] = run("plain")
    assert [confidence(each, case) for each in by("environment.detect_limit", case)] == ["likely"]


def aliasing(outcome: str, storage: str = "output", compared: tuple[int, ...] = ()) -> DiagnosisState:
    """Make a program whose check failed after calls. The first call's output is a view of its input.

    The check `compared` these calls; `storage` was written.
    """
    case = DiagnosisState(None)
    first = phase(2, load=1, thread=1, outcome=outcome, stack=[LINE])
    later = {**phase(6, load=1, thread=1), "number": 3}
    call = 1 if storage == "output" else 3
    told = {"storage": storage, "act": "written", "interval": "output", "call": call, "output": 1}
    failed = phase(9, outcome="failed", calls=list(compared))
    case.capture = capture(calls=[first, later], assertions=[failed], memory=[phase(5, **told)])
    case.runs["script"] = run("script", "AssertionError: Tensor-likes are not close!")
    return case


def test_an_output_that_changed_with_its_input() -> None:
    """The overwritten input is guilty, at the line of the call whose output was kept."""
    case = aliasing("ok")
    (found,) = by("shared_memory.detect_memory_log", case)
    assert (found.category, found.guilty.input_index) == ("concurrency", 0)
    assert found.guilty.model_locations[0].line == 41 and confidence(found, case) == "possible"


@pytest.mark.parametrize(("compared", "found"), [((3,), 1), ((), 1), ((1,), 0)])
def test_an_input_that_was_written_through_an_output(compared: tuple[int, ...], found: int) -> None:
    """A later call read what the program wrote into an output. Only a check of that call can fail by it."""
    suspects = by("shared_memory.detect_memory_log", aliasing("ok", "input", compared))
    assert [each.guilty.value for each in suspects] == ["written through output 1"] * found
    assert all("output.clone()" in each.fix.text for each in suspects if each.fix is not None)


@pytest.mark.parametrize(("act", "events", "found"), [("written", 1, 1), ("written", 2, 0), ("given", 1, 1)])
def test_an_input_that_two_calls_share(act: str, events: int, found: int) -> None:
    """Written between the calls, or filled by two threads. A program that refills its buffer is normal."""
    case = aliasing("ok")
    told = {"storage": "input", "act": act, "interval": "calls", "earlier": 1}
    calls = [*case.calls, phase(7, load=1, thread=1, outcome="ok", stack=[LINE])]
    memory = [phase(5 + n, call=3 - n, **told) for n in range(events)]
    case.capture = capture(calls=calls, assertions=case.captured.assertions, memory=memory)
    suspects = by("shared_memory.detect_memory_log", case)
    assert [each.guilty.input_index for each in suspects] == [0] * found


def test_an_input_that_another_package_wrote(tmp_path: Path, zoo: Zoo) -> None:
    """The package that writes its input is named. The test is the call with the earlier values."""
    case = package_case(zoo("ranker"), GOOD_IDS)
    kept = {"thread": 1, "outcome": "ok", "file": str(tmp_path / "inputs-1-1.pt"), "stack": [LINE]}
    case.capture = capture(calls=[phase(2, load=1, **kept), {**phase(6, load=2, **kept), "number": 3}])
    case.runs["script"], earlier = run("script", OWN_CHECK), case.calls[0]
    writer: Any = SimpleNamespace(input=0, call=earlier, place=2, package="tower.pt2")
    case.writers = [writer]
    (found,) = (each for each in detect(case) if "tower.pt2" in each.summary)
    assert (found.category, found.guilty.input_index) == ("input_mismatch", 0)
    assert found.fix is not None and found.fix.text.startswith("give tower.pt2 a copy")
    assert found.intervention is not None
    (change,) = found.intervention.changes
    assert (change.change, change.size, change.file) == ("take", 2, str(earlier.file))


def test_constants_that_are_written_while_a_call_runs() -> None:
    """A write during a call is from another thread: a race, even if a later call saw the new values."""
    case = aliasing("ok")
    told = {"storage": "constant", "act": "written", "call": 3, "load": 1, "names": ["a.weight"]}
    events = [phase(5, interval=each, counted=True, **told) for each in ("update", "call")]
    case.capture = capture(calls=case.calls, memory=events)
    case.runs |= {"script": run("script", OWN_CHECK), "plain": run("plain")}
    (found,) = by("shared_memory.detect_memory_log", case)
    assert (found.category, found.guilty.kind, found.guilty.name) == ("concurrency", "constant", "a.weight")


@pytest.mark.parametrize("threads, category", [((1, 2, 1, 2), "concurrency"), ((1, 1, 2, 2), "wrong_output")])
def test_threads_that_share_the_state_of_a_load(threads: tuple[int, ...], category: str, zoo: Zoo) -> None:
    """A buffer that calls change is shared if threads alternate. One after the other may be intended."""
    case = package_case(zoo("counter"))
    output = {"shape": [4, 8], "sum": 320.0}
    calls = [phase(n, load=1, thread=t, file="i.pt", outputs=[output]) for n, t in enumerate(threads, 3)]
    case.capture = capture(calls=calls, loads=[phase(2, loader="L", package="a.pt2", stack=[LINE])])
    case.runs["script"] = run("script", OWN_CHECK)
    case.runs["plain"] = run("plain", "", called(shape=[4, 8], mean=1.0))
    (found,) = by("shared_memory.detect_kept_state", case)
    assert (found.category, found.guilty.name) == (category, "seen")
    assert ("2 threads take turns" in found.summary) == (category == "concurrency")


def test_a_host_behind_a_shell_script_names_its_package(tmp_path: Path) -> None:
    """The package is named by the program that the script starts, by the program's text, or by the folder."""
    (tmp_path / "run.sh").write_text('#!/bin/sh\ncd "$(dirname "$0")" && exec ./host\n')
    (tmp_path / "host").write_bytes(b"\x7fELF\0libtorch.so\0model.pt2\0")
    host = CommandWorkload(argv=["./run.sh"], cwd=tmp_path)
    assert may_be_a_host(host) and not named_packages(host)  # there is no such file
    for name in ("model.pt2", "other.pt2"):
        (tmp_path / name).write_bytes(b"PK")
    assert named_packages(host) == [tmp_path / "model.pt2"]
    started = CommandWorkload(argv=["./run.sh", "--model=other.pt2"], cwd=tmp_path)
    assert named_packages(started) == [tmp_path / "other.pt2"]
    both = CommandWorkload(argv=["./run.sh", f"--models={tmp_path}"], cwd=tmp_path)
    assert len(named_packages(both)) == 2
    assert not may_be_a_host(CommandWorkload(argv=["./none.sh"], cwd=tmp_path))


@pytest.mark.parametrize(("text", "found"), [("Failed to extract zip file", ["likely"]), ("no model", [])])
def test_a_package_larger_than_a_file_may_be(text: str, found: list[str]) -> None:
    """The limit is to blame only if the loader had to unpack a file."""
    case = DiagnosisState(None)
    error = {"type": "RuntimeError", "text": text, "file_bytes": 100_000}
    case.capture = capture(loads=[phase(2, loader="L", package="a.pt2", outcome="failed", error=error)])
    case.runs["script"] = run("script", f"RuntimeError: {text}")
    assert [confidence(each, case) for each in by("environment.detect_limit", case)] == found


OWN_CHECK = """Traceback (most recent call last):
  File "serve.py", line 9, in <module>
    raise RuntimeError(f"stored state is off by {drift:.3f}")
RuntimeError: stored state is off by 0.144"""


def counting(tmp_path: Path, alignment: int = 4, check: str = OWN_CHECK, **facts: Any) -> DiagnosisState:
    """Make a program whose check of a call failed. The recorded `counter` doubles its input in place."""
    case = cuda_case("counter", tmp_path)
    tensor = {"dtype": "float32", "device": "cuda:0", "shape": [4, 8]}
    leaf = {**tensor, "storage_offset": 513, "alignment": alignment}
    call = phase(1, load=1, thread=1, leaves=[leaf], file=str(tmp_path))
    case.capture = capture(calls=[call])
    case.runs["script"] = run("script", check)
    inputs = [{"input": 0, "misaligned": True, "changed": False, **facts}]
    case.runs["plain"] = run("plain", "", {"event": "changed_inputs", "inputs": inputs})
    return case


def test_only_a_misaligned_input_that_is_written_counts(tmp_path: Path, zoo: Zoo) -> None:
    """A captured call has its address. For a call from a file, the address is known when it is made."""
    assert updated_in_a_copy(counting(tmp_path)) == {0: 16}
    assert updated_in_a_copy(counting(tmp_path, alignment=16)) == {}
    assert updated_in_a_copy(cuda_case("counter", tmp_path)) == {0: 16}
    (tmp_path / "other").mkdir()
    assert updated_in_a_copy(cuda_case("scatter", tmp_path / "other")) == {}
    assert updated_in_a_copy(package_case(zoo("counter"))) == {}


@pytest.mark.parametrize("changed", [True, False])
def test_a_lost_update_is_likely_and_an_aligned_copy_decides(tmp_path: Path, changed: bool) -> None:
    """The input is named with its address. The call on an aligned copy changes that copy, or nothing."""
    case = counting(tmp_path)
    (found,) = by("concurrency.detect_lost_update", case)
    assert (found.category, found.guilty.input_index) == ("input_mismatch", 0)
    assert "offset 513" in found.summary and confidence(found, case) == "likely"
    test = found.intervention
    assert test is not None and test.changes == (Change("align", input=0),)
    aligned = {"input": 0, "misaligned": False, "changed": changed}
    plain = case.runs["plain"]
    with_copy = run("c", "", {"event": "changed_inputs", "inputs": [aligned]})
    case.trials[test.key] = by_changed_input(test, plain, with_copy, plain)
    assert (confidence(found, case) == "proven") == changed
    assert (case.trials[test.key].effect is Effect.SAME) != changed


LOOK_ALIKES: list[dict[str, Any]] = [
    {"changed": True},
    {"misaligned": False},
    {"alignment": 64},
    {"check": "RuntimeError: CUDA error: an illegal memory access was encountered"},
]


@pytest.mark.parametrize("other", LOOK_ALIKES, ids=lambda other: next(iter(other)))
def test_look_alikes_accuse_nobody(tmp_path: Path, other: dict[str, Any]) -> None:
    """An update that arrived, aligned memory, or a failure for another reason accuses nobody."""
    assert by("concurrency.detect_lost_update", counting(tmp_path, **other)) == []


@pytest.mark.parametrize(("changed", "count"), [(False, 0), (True, 1)])
def test_an_input_that_stays_as_it_was_is_not_changed(tmp_path: Path, changed: bool, count: int) -> None:
    """If the reference gets other values, inputs that are written in place are not called changed."""
    case = counting(tmp_path, changed=changed)
    case.interpreted = worker_run({"event": "compared", "equal": True, "outputs": []})
    assert len(by("concurrency.detect_changed_input", case)) == count
