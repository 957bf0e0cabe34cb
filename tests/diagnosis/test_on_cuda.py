"""What differs on CUDA, on recorded packages of torch 2.11: late errors, devices, streams, graphs."""

import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from mcp_server.diagnosis.call_seen import CallSpec
from mcp_server.diagnosis.diagnose import detect
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind
from mcp_server.diagnosis.observe import corrections, place, rerun
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence
from mcp_server.logs.log import read_log
from mcp_server.model import Category, PackageWorkload, ScriptWorkload
from mcp_server.package.mismatch import GivenTensor, compare_inputs
from mcp_server.runtime.context import Context
from mcp_server.tools.check_devices import Given
from mcp_server.worker.protocol import Change
from tests.conftest import Zoo
from tests.diagnosis.support import (
    GOOD_IDS,
    by,
    called,
    capture,
    failing,
    look,
    package_case,
    phase,
    run,
    trial,
)
from tests.support.programs import recorded

# A user's operator calls torch after an earlier kernel failed. pybind11 adds the frames; the rest is as
# recorded on an H200.
IN_OPERATOR = """RuntimeError: CUDA error: {status}

At:
  /srv/ops.py(7): halve_rows
  /venv/lib/python3.12/site-packages/torch/_library/custom_ops.py(502): wrapped_fn
"""
INVALIDATED = "torch.AcceleratorError: CUDA error: operation failed due to a previous error during capture"
ILLEGAL, ASSERTED = "an illegal memory access was encountered", "device-side assert triggered"


@pytest.mark.parametrize("status", [ILLEGAL, ASSERTED, "out of memory"])
def test_an_operator_that_meets_an_error_of_the_device_has_not_made_it(status: str) -> None:
    """A device error does not accuse the operator that raised it. An error that torch explains does."""
    root = read_log(IN_OPERATOR.format(status=status).splitlines()).root
    assert root is not None and root.family.id != "operator_raised" and root.candidates[0] != "custom_op"
    stated = IN_OPERATOR.format(status="x").replace("CUDA error: x", "shape '[3]' is invalid for input")
    found = read_log(stated.splitlines()).root
    assert found is not None and found.family.id == "operator_raised"


@pytest.mark.parametrize(
    ("seen", "open_too"),
    [({}, False), ({"streams": True}, True), ({"notice": "a CUDA graph was being captured"}, True)],
)
def test_one_thread_with_streams_or_graphs_may_race(seen: dict[str, object], open_too: bool) -> None:
    """Calls of one thread rule out concurrency only with one stream and no graph."""
    case = DiagnosisState(None)
    case.capture = capture(calls=[phase(1, load=1, thread=1, thread_name="MainThread", **seen)])
    case.runs["script"] = run("script", INVALIDATED)
    found: set[Category] = {hypothesis.category for hypothesis in detect(case)}
    assert "illegal_memory_access" in found and ("concurrency" in found) == open_too


MEMORY = "Exception in aoti_torch: CUDA out of memory. Tried to allocate 2.29 GiB."
RAISED = ["Traceback (most recent call last):", '  File "a.py", line 9, in main', "RuntimeError: run_func_"]


@pytest.mark.parametrize(
    ("after", "fatal"),
    [(["split 300000 after RuntimeError", "server stopped"], False), (RAISED, True), ([], True)],
)
def test_an_error_that_the_program_handled_ended_nothing(after: list[str], fatal: bool) -> None:
    """Up to torch 2.12 every error is printed where it occurs. A program that handled it prints more."""
    assert read_log([MEMORY, *after]).fatal == fatal


FAULT = "CUDA error: an illegal memory access was encountered"


def on_second_card(zoo: Zoo) -> DiagnosisState:
    """Make a package loaded on the first device and called with an input on the second."""
    case = package_case(zoo("ranker"), GOOD_IDS)
    assert case.package is not None and case.given is not None
    given = [replace(tensor, device="cuda:1") for tensor in case.given.tensors]
    found = compare_inputs(case.package.signature, given, device_index=0)
    case.mismatches = tuple(m for m in found if m.aspect == "device_index")
    return case


def test_a_call_with_an_input_elsewhere_is_proven_by_moving_it(zoo: Zoo) -> None:
    """If the call works, there is no fault: GPUs with peer access compute the right numbers."""
    case = on_second_card(zoo)
    case.runs["plain"] = run("plain", "", called())
    (found,) = by("input_mismatch.detect_contract", case)
    assert found.weak and not found.harmful
    (found,) = by("input_mismatch.detect_contract", failing(case, FAULT))
    assert (found.category, found.guilty.input_index, found.weak) == ("device_mismatch", 0, False)
    assert found.intervention is not None
    assert found.intervention.changes == (Change("move", input=0, device="cuda:0"),)
    case.trials[found.intervention.key] = trial(found.intervention, Effect.GONE)
    assert confidence(found, case) == "proven"


@pytest.mark.parametrize(
    ("managed", "loaded_on", "names"),
    [(True, 1, ["cuda:1"]), (True, 0, []), (False, 1, [])],
    ids=["read over there", "the same card", "copied"],
)
def test_memory_on_another_card(zoo: Zoo, managed: bool, loaded_on: int, names: list[str]) -> None:
    """Copied values may come from any GPU."""
    case = failing(package_case(zoo("ranker")), FAULT)
    assert case.package is not None
    weight = case.package.constants[0]
    leaf = {"dtype": weight.dtype, "shape": list(weight.shape), "device": "cuda:0"}
    given = {"arguments": [False, True, managed], "constants": {weight.fqn: leaf}}
    case.capture = capture(
        loads=[phase(1, loader="x", package="m.pt2", current_device=loaded_on)],
        updates=[phase(2, load=1, how="load_constants", **given)],
        calls=[phase(3, load=1, thread=1)],
    )
    named = [h for h in detect(case) if (h.guilty.value or "").startswith("device")]
    assert [(h.guilty.value or "").split("compiled: ")[1].rstrip(")") for h in named] == names


@pytest.mark.parametrize(
    ("asked", "devices", "gpus", "placed"),
    [
        (-1, ["cuda:1", "cuda:1"], 2, 1),
        (-1, ["cuda:1", "cpu"], 2, 1),
        (-1, ["cuda:0", "cuda:1"], 2, -1),
        (-1, ["cuda:0"], 2, -1),
        (0, ["cuda:1"], 2, 0),
        (-1, ["cuda:1"], 1, -1),
    ],
    ids=["where they are", "one on the host", "scattered", "the first card", "asked for", "one card"],
)
def test_a_package_without_a_device_goes_where_its_inputs_are(
    asked: int, devices: list[str], gpus: int, placed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs were saved in calls on that GPU. With one GPU, nothing waits for them."""
    second = tmp_path / "nvidia1"
    if gpus > 1:
        second.touch()
    monkeypatch.setattr("mcp_server.runtime.context.SECOND_GPU", second)
    case = DiagnosisState(PackageWorkload(package=tmp_path, inputs=tmp_path / "i.pt", device_index=asked))
    case.call = CallSpec("run", {"device_index": asked}, tmp_path, tmp_path / "i.pt")
    case.package = recorded("counter", tmp_path).package
    if asked < 0 and gpus > 1:
        assert look("run").gain(case, []) == 0
    case.given = Given(tuple(GivenTensor("float32", (2,), device=device) for device in devices))
    place(case)
    case.done.append("compare_inputs")
    assert case.call.request["device_index"] == placed and look("run").gain(case, []) > 0
    assert bool(case.notes) == (placed == 1)


def call(n: int, **more: object) -> dict[str, object]:
    """Make a captured call with its own line."""
    line = {"file": "a.py", "line": n, "code": f"step{n}(x)"}
    return {**phase(n, load=1, thread=1, stack=[line]), **more}


def written(n: int, **more: object) -> dict[str, object]:
    """Make an input that another stream was still writing."""
    return phase(n, storage="input", act="written", interval="stream", **more)


def seen(**records: object) -> DiagnosisState:
    """Make a case whose program ran under the hook and failed."""
    case = DiagnosisState(None)
    case.capture = capture(**records)  # type: ignore[arg-type]
    case.runs["script"] = run("script", "AssertionError: Tensor-likes are not close!")
    return case


def test_an_input_that_is_still_written_is_a_race(zoo: Zoo) -> None:
    """The first call whose input changed is named, with its line, except if the package writes the input."""
    calls = [call(3), call(5, number=2), call(7, number=3)]
    raced = [written(6, call=2, input=1), written(8, call=3, input=0)]
    (found,) = by("shared_memory.detect_memory_log", seen(calls=calls, memory=raced))
    assert found.category == "concurrency" and found.harmful
    assert (found.guilty.kind, found.guilty.input_index) == ("input", 1)
    assert found.guilty.model_locations[0].line == 5
    case = package_case(zoo("counter"))  # adds to its input in place
    case.capture = capture(calls=[call(3)], memory=[written(4, call=1, input=0)])
    assert by("shared_memory.detect_memory_log", case) == []


def test_a_replay_without_its_input_is_named_at_both_lines() -> None:
    """The line of the replay comes first, then the call in the captured graph."""
    line = {"file": "a.py", "line": 40, "code": "graph.replay()"}
    replay = phase(9, storage="input", act="freed", interval="graph", call=1, input=0, stack=[line])
    (found,) = by("shared_memory.detect_memory_log", seen(calls=[call(3)], memory=[replay]))
    assert [place.line for place in found.guilty.model_locations] == [40, 3]
    assert found.guilty.input_index == 0


GRAPH = "with torch.cuda.graph(g):\n            y = f(pos)\n        "


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("self.pos = self.pos + 1", "self.pos.copy_(self.pos + 1)"),
        ("self.pos = new", "self.pos.copy_(new)"),
        ("pos = pos * 2", "pos.copy_(pos * 2)"),
        ("pos = new", ""),
        (f"{GRAPH}pos = new", f"{GRAPH}pos.copy_(new)"),
        ("self.pos.add_(1)", ""),
    ],
)
def test_the_line_that_binds_the_input_of_a_graph_again(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, kept: str
) -> None:
    """It is run as a copy into the captured tensor, and is the fix if the program passes.

    A file beside the script that the script does not name is not looked at.
    """
    monkeypatch.setattr("mcp_server.diagnosis.observe.rerun.name_of", lambda _input: "pos")
    case, script = package_case(zoo("ranker")), tmp_path / "serve.py"
    text = (
        f"class A:\n    def __init__(self):\n        self.pos = 0\n    def step(self, new):\n        {line}\n"
    )
    for path in (script, tmp_path / "aside.py"):
        path.write_text(text)
    case.workload = ScriptWorkload(script=script, cwd=tmp_path)
    replay = phase(9, storage="input", act="freed", interval="graph", call=1, input=0)
    case.capture = capture(calls=[call(3)], memory=[replay])
    case.runs["script"] = run("script", "AssertionError: Tensor-likes are not close!")
    assert rerun.rebound(case) == ((script, text.replace(line, kept)) if kept else None)
    assert (look("try_users_kernels").gain(case, []) > 0) == bool(kept)
    case.users_changes["", "graph"] = change = Intervention("s", Kind.SOURCE, "x", after_code="kept")
    case.trials["s"] = trial(change, Effect.GONE)
    (found,) = by("shared_memory.detect_memory_log", case)
    assert confidence(found, case) == "proven" and found.fix is not None and found.fix.after == "kept"


LOADED = "f = load_package('m.pt2', {given})"
BLOCK = """if x:
    with torch.cuda.stream(side):
        y = f(x)
    print(y)
"""


@pytest.mark.parametrize(
    ("kind", "text", "line"),
    [
        ("stream", BLOCK, (2, "    side.wait_stream(torch.cuda.current_stream())")),
        ("output_stream", BLOCK, (4, "    torch.cuda.current_stream().wait_stream(side)")),
        ("copy", BLOCK, None),
        ("stream", "with open(side):\n    pass\n", None),
    ],
)
def test_a_wait_is_added_around_a_streams_block(kind: str, text: str, line: tuple[int, str] | None) -> None:
    """One statement is added at the block's indentation. Without such a block, the text stays."""
    lines = text.split("\n")
    if line is not None:
        lines.insert(line[0] - 1, line[1])
    assert corrections.LACKS[kind](text) == ("\n".join(lines) if line else "")


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ("'m'", "'m', run_single_threaded=True"),
        ("num_runners=1", "num_runners=1, run_single_threaded=True"),
        ("run_single_threaded=False", ""),
        ("**options", ""),
    ],
)
def test_a_package_for_a_graph_is_loaded_for_one_thread(given: str, changed: str) -> None:
    """The option is added only if the program does not set it."""
    text = LOADED.format(given=given)
    assert corrections.single_threaded(text) == (LOADED.format(given=changed) if changed else "")


def test_a_setting_is_turned_off_where_the_program_turns_it_on() -> None:
    """Only its value changes. A text with the corrected value stays."""
    for kind, text in (("update", "f(w, user_managed={})"), ("precision", "b.allow_tf32 = {}")):
        on, off = (text.format(value) for value in (True, False))
        assert [corrections.LACKS[kind](each) for each in (on, off)] == [off, ""]
    assert corrections.LACKS["precision"]("x.fp32_precision = 'tf32'") == 'x.fp32_precision = "ieee"'


COPIED = "import sys\nsys.exit(int(dict(non_blocking={})['non_blocking']))\n"


def test_a_copy_that_nothing_waits_for_is_named_by_the_wait_with_which_the_program_passes(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program fails, passes with copies that end first, and fails again. The line is the fix."""
    monkeypatch.setattr(DiagnosisState, "device", "cuda")
    case, script = seen(calls=[call(3)]), tmp_path / "serve.py"
    case.runs["script"] = run("script")
    script.write_text(COPIED.format(True))
    case.workload = ScriptWorkload(script=script, cwd=tmp_path)
    assert look("run_alone").gain(case, []) > 0
    anyio.run(look("run_alone").act, case, Context(tmp_path / "job", Path(sys.executable)))
    (found,) = by("shared_memory.detect_memory_log", case)
    assert confidence(found, case) == "proven" and found.fix is not None
    lines = [COPIED.format(each).split("\n")[1] for each in (True, False)]
    assert [found.fix.before, found.fix.after] == lines


def test_weights_that_are_written_while_the_gpu_reads_them() -> None:
    """If the program passes in order and writes the constant in place, it writes too early."""
    told = phase(6, storage="constant", act="written", interval="update", names=["w"], load=1, call=2)
    case = seen(calls=[call(3), call(7, number=2)], memory=[told])
    case.trials[rerun.IN_ORDER.key] = trial(rerun.IN_ORDER, Effect.GONE)
    case.users_changes["", ""] = rerun.IN_ORDER
    (found,) = by("shared_memory.detect_memory_log", case)
    assert (found.guilty.kind, found.guilty.name, confidence(found, case)) == ("constant", "w", "proven")
    case.captured.memory.append(case.captured.memory[0].model_copy(update={"storage": "input"}))
    assert "constant" not in {each.guilty.kind for each in by("shared_memory.detect_memory_log", case)}


def let_go(*, fails: bool) -> DiagnosisState:
    """Make a program that freed an input too early, and failed under the hook or not."""
    freed = phase(9, storage="input", act="freed", interval="stream", call=1, input=1)
    case = seen(calls=[call(3)], memory=[freed])
    if not fails:
        case.runs["script"] = run("script")
    return case


def test_a_program_that_fails_only_alone_lost_its_input(tmp_path: Path) -> None:
    """The program fails without the hook but not where calls are awaited, which is the proof."""
    script = tmp_path / "serve.py"
    script.write_text("import os, sys\nsys.exit('AOTI_DEBUG_CAPTURE' not in os.environ)\n")
    case = let_go(fails=False)
    (found,) = detect(case)
    assert not found.harmful and look("run_alone").gain(case, [found]) > 0
    case.workload = ScriptWorkload(script=script, cwd=tmp_path)
    anyio.run(look("run_alone").act, case, Context(tmp_path / "job", Path(sys.executable)))
    assert case.fails_only_alone and case.failed and not case.ended_well
    (found,) = detect(case)
    assert found.harmful and confidence(found, case) == "likely"
    assert (found.category, found.guilty.input_index) == ("concurrency", 1)
    assert found.guilty.model_locations[0].line == 3
