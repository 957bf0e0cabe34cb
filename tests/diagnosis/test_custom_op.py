"""Custom operators: errors, broken promises, missing operators, and defects of kernels."""

from functools import partial
from pathlib import Path

import anyio
import pytest

from mcp_server.diagnosis.call_seen import CallSpec
from mcp_server.diagnosis.causes.custom_op import REPAIRED
from mcp_server.diagnosis.components import operator_missing_here, operators_from
from mcp_server.diagnosis.diagnose import detect
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind
from mcp_server.diagnosis.observe import corrections, rerun
from mcp_server.diagnosis.observe.intervene import in_eager
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel
from mcp_server.diagnosis.verdict import bystanders, confidence, is_bystander
from mcp_server.logs.log import read_log
from mcp_server.memory_faults import Fault
from mcp_server.model import PackageWorkload, ScriptWorkload, Workload
from mcp_server.tools.locate_fault import LocatedFault
from mcp_server.worker import events
from mcp_server.worker.report import Overrun
from tests.conftest import Zoo
from tests.diagnosis.support import (
    by,
    called,
    capture,
    failing,
    look,
    package_case,
    phase,
    run,
    trial,
    worker_run,
)
from tests.memory_faults.support import FAULTS, given_to, joined, view_of
from tests.worker.support import context_in

CALLER = "  /app/serve.py(55): main"
OPERATOR = "  /app/ops.py(15): spacing"
TORCH = "  /venv/lib/python3.11/site-packages/torch/_library/custom_ops.py(502): wrapped_fn"
SHIM = "Error: aoti_torch_proxy_executor_call_function(proxy, 0, 0) API call failed at a.cpp, line 9"


def text(*frames: str) -> str:
    """What a call prints whose operator raised through these frames, innermost first."""
    return "\n".join([SHIM, "RuntimeError: ValueError: no peak", "", "At:", *frames])


def test_an_exception_of_an_operator_names_it(zoo: Zoo) -> None:
    """The node names the operator, the frames its line, except if torch raised below the operator."""
    case = failing(package_case(zoo("plugin")), text(OPERATOR, TORCH, CALLER))
    (found,) = by("custom_op.detect_operator_error", case)
    party = found.guilty
    assert (found.category, party.kind, party.name) == ("custom_op", "op", "aotizoo::halve_rows")
    assert (found.guilty.model_locations[0].file, found.guilty.model_locations[0].line) == ("/app/ops.py", 15)
    assert confidence(found, case) == "likely"
    assert not list(by("custom_op.detect_operator_error", failing(case, text(TORCH, CALLER))))


def test_a_log_alone_names_the_operators_function() -> None:
    """Without a package, the function and its line are the party."""
    case = DiagnosisState(None)
    case.log, case.log_source = read_log(text(OPERATOR, TORCH, CALLER).splitlines()), "crash.log"
    first = next(iter(detect(case)))
    assert (first.category, first.guilty.kind, first.guilty.name) == ("custom_op", "op", "spacing")
    assert first.guilty.model_locations[0].line == 15


FOUND = trial(REPAIRED, Effect.NOT_APPLICABLE, "returns the same values")


def watched(*, failing: bool) -> DiagnosisState:
    """Make an operator that wrote to its argument, on which the package's outputs did not depend."""
    case = DiagnosisState(None)
    told = {"op": "own.trim", "call": 1, "layouts": [], "mutated": ["level"], "aliases": []}
    case.operators = worker_run({"event": "operator", **told})
    case.runs["plain"] = run("plain", "Error: wrong" if failing else "")
    assert in_eager(worker_run({"event": "compared", "equal": True}), FOUND).proves
    departs = in_eager(worker_run({"event": "compared", "equal": False}), FOUND)
    assert departs.effect is Effect.NOT_APPLICABLE, "neither the cause nor cleared"
    case.trials[REPAIRED.key] = in_eager(None, FOUND)
    return case


@pytest.mark.parametrize("failing", [True, False])
def test_a_broken_promise_without_effect_is_neither_cleared_nor_claimed(failing: bool) -> None:
    """Without a program to compare with, a call that returns leaves the question open."""
    case = watched(failing=failing)
    (found,) = by("custom_op.detect_operator_results", case)
    assert not is_bystander(found, case) and found.weak != failing
    assert confidence(found, case) == "possible"


def test_a_write_beyond_its_memory_is_told_before_any_other_promise() -> None:
    """It damages other memory, whether or not this call shows it."""
    case = watched(failing=False)
    assert case.operators is not None
    (event,) = case.operators.all(events.Operator)
    event.overrun = [Overrun([75, 3], "torch.float32", 0, 124)]
    (found,) = detect(case)
    assert (found.category, found.guilty.name) == ("illegal_memory_access", "torch.ops.own.trim")
    assert "124 bytes past the end" in found.summary and not found.weak


@pytest.mark.parametrize("effect", [Effect.GONE, Effect.NOT_APPLICABLE])
def test_memory_that_an_operator_keeps(effect: Effect) -> None:
    """The memory is a cause only if copies remove the failure. The fix copies the value where it returns."""
    line = {"file": "ops.py", "line": 9, "code": "return _tables[key]"}
    case = DiagnosisState(None)
    case.operators = worker_run({"event": "operator", "op": "o.t", "call": 2, "kept": True, "stack": [line]})
    case.trials[REPAIRED.key] = trial(REPAIRED, effect)
    found = by("custom_op.detect_operator_results", case)
    assert [confidence(each, case) for each in found] == ["proven"] * (effect is Effect.GONE)
    for each in found:
        assert each.fix is not None and each.fix.after == "return _tables[key].clone()"
        assert [place.line for place in each.guilty.model_locations] == [9]


MISSING = "RuntimeError: Could not find schema for shop::halve. Custom operators created via torch"


def taken(refused: str = "", *lines: int) -> dict[str, object]:
    return {"event": "operators_taken", "file": "/job/serve.py", "lines": list(lines), "refused": refused}


def program(text: str) -> DiagnosisState:
    """Make a program that printed this after a call that returned."""
    case = DiagnosisState(None)
    case.capture = capture(calls=[phase(3, load=1, thread=1)])
    case.runs["script"] = run("script", text)
    return case


def test_a_call_that_lacks_what_the_program_had() -> None:
    """The worker's run proves nothing about the program, unless the program lacked the operator, too."""
    plain = run("plain", MISSING, taken("line 4 would have to be run"))
    reason = operator_missing_here(plain, program("AssertionError: Tensor-likes are not close!"))
    assert "shop::halve" in reason and "line 4" in reason
    assert not operator_missing_here(run("plain", MISSING), program(MISSING))


def test_where_the_operators_came_from() -> None:
    """The verdict has the program's lines that were run for its operators."""
    case = program("x")
    case.runs["plain"] = run("plain", "", taken("", 12, 30))
    (fact,) = operators_from(case)
    assert "only lines 12, 30 of serve.py ran" in fact.fact
    case.runs["plain"] = run("plain", "", taken("it cannot be read"))
    assert operators_from(case) == []


# Defects in the code of kernels.

ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
REFUSED = "RuntimeError: CUDA driver error: invalid argument"
OWN_CHECK = "ValueError: books do not balance"


def wide(directory: Path, text: str, *, rows: int | None = None) -> DiagnosisState:
    """Make the recorded call of a kernel with a 32-bit index, of 66,000 rows or `rows`. It printed `text`."""
    case = DiagnosisState(None)
    view = view_of(FAULTS / "int32_overflow", directory)
    case.parsed, case.package = view, view.package
    case.given = given_to("int32_overflow", rows=rows)
    case.call = CallSpec("run", {}, directory, None)
    case.runs["plain"] = run("plain", text)
    return case


def read(case: DiagnosisState, directory: Path) -> DiagnosisState:
    anyio.run(partial(look("read_kernels").act, case, context_in(directory)))
    return case


@pytest.mark.parametrize(
    ("text", "looked", "category"),
    [
        (ILLEGAL, True, "illegal_memory_access"),
        (REFUSED, True, None),  # a wrong grid would explain it
        (OWN_CHECK, True, None),
        ("", False, None),
    ],
)
def test_a_defect_explains_its_kind(tmp_path: Path, text: str, looked: bool, category: str | None) -> None:
    """A healthy call is not examined, and an overflow does not explain the program's own error."""
    case = wide(tmp_path, text)
    assert (look("read_kernels").gain(case, []) > 0) == looked
    found = by("illegal_memory_access.detect_kernel_defect", read(case, tmp_path))
    assert [each.category for each in found] == ([category] if category else [])


@pytest.mark.parametrize("text", [OWN_CHECK, "parity check failed at batch 1024"])
def test_a_users_kernel_is_suspect_if_the_programs_own_check_fails(tmp_path: Path, text: str) -> None:
    """Half of the output is never stored: likely if the program failed, with its own error or without."""
    case = wide(tmp_path, "")
    half = tmp_path / "half"
    half.mkdir()
    view = view_of(FAULTS / "uninitialised", half)
    case.parsed, case.package, case.given = view, view.package, given_to("uninitialised")
    case.runs["script"] = run("script", "")
    assert look("read_kernels").gain(case, []) == 0.0  # the program succeeded
    case.runs["script"] = run("script", text)
    (found,) = by("illegal_memory_access.detect_kernel_defect", read(case, tmp_path))
    assert found.category == "wrong_output" and "64 of the 128 elements of out" in found.summary
    assert confidence(found, case) == "likely" and "cdiv" in (found.fix.text if found.fix else "")


def test_a_defect_is_possible_and_one_that_was_located_likely(tmp_path: Path) -> None:
    """memcheck's address is 2**32 elements from the argument whose index is wrong."""
    case = read(wide(tmp_path, ILLEGAL), tmp_path)
    (alone,) = by("illegal_memory_access.detect_kernel_defect", case)
    assert confidence(alone, case) == "possible" and alone.guilty.name == "wide_kernel"
    assert alone.guilty.generated_location == "wrapper.cpp:213" and "66,000" not in alone.summary
    directory = tmp_path / "joined"
    directory.mkdir()
    fault = joined("int32_overflow", directory)
    case.located = LocatedFault.model_construct(fault=fault)
    (located,) = by("illegal_memory_access.detect_kernel_defect", case)
    assert confidence(located, case) == "likely" and located.key == alone.key
    assert "2**32 elements" in located.evidence[1].fact and located.level is CausalLevel.FAULT_SITE


@pytest.mark.parametrize("effect", [Effect.GONE, Effect.SAME])
def test_the_call_without_the_defect_decides(tmp_path: Path, effect: Effect) -> None:
    """If the failure disappears, the defect is proven. Otherwise it is a bystander, but clears no others."""
    case = read(wide(tmp_path, ILLEGAL), tmp_path)
    (before,) = by("illegal_memory_access.detect_kernel_defect", case)
    change = Intervention(key="kernel:wide_kernel_0:overflow", kind=Kind.KERNEL, what="with it repaired")
    assert case.kernel_defects is not None
    case.kernel_defects = dict.fromkeys(case.kernel_defects, change)
    case.trials[change.key] = trial(change, effect)
    (after,) = by("illegal_memory_access.detect_kernel_defect", case)
    assert (confidence(after, case) == "proven") == (effect is Effect.GONE)
    assert is_bystander(after, case) == (after.key != before.key) == (effect is Effect.SAME)
    assert bool(bystanders([after], case)) == (effect is Effect.SAME)


def test_a_kernel_that_cannot_be_compiled_here_stays_possible(tmp_path: Path) -> None:
    """The recording has no package, and this machine no GPU. A note says why nothing was tried."""
    case = read(wide(tmp_path, ILLEGAL), tmp_path)
    case.call = CallSpec("run", {"package": str(tmp_path)}, tmp_path, None)
    assert look("mend_kernels").gain(case, []) > 0
    anyio.run(partial(look("mend_kernels").act, case, context_in(tmp_path)))
    (found,) = by("illegal_memory_access.detect_kernel_defect", case)
    assert found.intervention is None and "eager" in found.settle
    assert any("It was not repaired" in note for note in case.notes)


BODY = "tl.store(out + row * width + col, tl.load(table + index * width + col))"
SUM = "tl.store(out + row, tl.sum(tl.load(table + index * width + col), 0))"


def reducing(
    directory: Path, body: str, dtype: str = "fp32", workload: Workload | None = None
) -> DiagnosisState:
    """Make a call of a recorded package whose kernel reads a row of a `dtype` table and computes `body`."""
    given = workload or PackageWorkload(package=directory, inputs=Path("inputs.pt"))
    case = DiagnosisState(given, call=CallSpec("run", {"inputs": "inputs.pt"}, directory, Path("inputs.pt")))
    changes = {BODY: body, "{'table': '*fp32'": f"{{'table': '*{dtype}'"}
    case.package = view_of(FAULTS / "host_tensor", directory, changes).package
    case.runs["plain"] = run("plain", "", called())
    return case


@pytest.mark.parametrize(("dtype", "narrow"), [("fp16", True), ("bf16", True), ("fp32", False)])
def test_a_kernel_that_sums_in_16_bits_is_suspect(tmp_path: Path, dtype: str, narrow: bool) -> None:
    """The signature in the package has the dtype. Nothing was run, so it is only possible."""
    found = by("custom_op.detect_reductions", reducing(tmp_path, SUM, dtype))
    assert [each.guilty.name for each in found] == (["lookup_kernel"] if narrow else [])
    for each in found:
        assert each.category == "wrong_output" and "tl.sum(" in each.summary and not each.observed


MAXIMUM = "tl.store(out + row, tl.max(tl.load(table + col, mask=col < width, other={other}), 0))"
EXPECTED = {"event": "compared_expected", "equal": False, "outputs": [{"output": 0, "elements": 6}]}
SCRIPT = f"""import triton

@triton.jit
def lookup_kernel(table, ids, out, width: tl.constexpr):
    col, row = tl.arange(0, width), 0
    {MAXIMUM.format(other=0.0)}
"""


def test_a_kernel_whose_masked_lanes_count_is_suspect(tmp_path: Path) -> None:
    """Masked lanes with 0 are wrong for a maximum. A neutral filler is not suspect."""
    (found,) = by("custom_op.detect_reductions", reducing(tmp_path, MAXIMUM.format(other="0.0")))
    party = found.guilty
    assert (found.category, party.kind, party.name) == ("wrong_output", "kernel", "lookup_kernel")
    assert found.fix is not None and "other=float('-inf')" in found.fix.text
    assert "tl.max(" in found.summary and found.weak
    sound = tmp_path / "sound"
    sound.mkdir()
    right = reducing(sound, MAXIMUM.format(other="float('-inf')"))
    assert not by("custom_op.detect_reductions", right)


def test_a_reference_that_differs_makes_it_the_first_to_suspect(tmp_path: Path) -> None:
    """The numbers are wrong, and the source says where."""
    case = reducing(tmp_path, MAXIMUM.format(other="0.0"))
    case.runs["plain"] = run("plain", "", called(), EXPECTED)
    (found,) = by("custom_op.detect_reductions", case)
    assert not found.weak and confidence(found, case) == "possible"


def test_the_line_in_the_users_script_comes_first(tmp_path: Path) -> None:
    """If the kernel is in the given script, the load with the wrong filler is named."""
    script = tmp_path / "model.py"
    script.write_text(SCRIPT)
    case = reducing(tmp_path, MAXIMUM.format(other="0.0"), workload=ScriptWorkload(script=script))
    (found,) = by("custom_op.detect_reductions", case)
    first = found.guilty.model_locations[0]
    assert (first.file, first.line) == (str(script), 6) and "other=0.0" in first.code


KERNEL = """
@triton.jit
def k(p, q, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    x = tl.load(p + i, mask=m, other=0.0).to(tl.float32)
    old = tl.load(o + tl.load(q + i))
    j = tl.load(q)
    {line}
"""
CORRECTED = {
    "unmasked": ("tl.store(o + i, x * 2)", "tl.store(o + i, x * 2, mask=m)"),
    "lost": ("tl.store(o + tl.load(q + i), old + x, mask=m)", "tl.atomic_add(o + tl.load(q + i), x, mask=m)"),
    "clash": ("tl.store(o, x)", "tl.atomic_add(o, x)"),
    "beyond": (
        "y = tl.load(p + i); tl.store(o, y, m)",
        "y = tl.load(p + i, mask=m, other=0.0); tl.store(o, y, m)",
    ),
    "beyond of an index": (
        "y = tl.load(p + j[:, None] * n + i, mask=m, other=0)",
        "y = tl.load(p + j[:, None] * n + i, mask=m & (j[:, None] != float('-inf')), other=0)",
    ),
    "past_end": ("w = (i <= j) & (n > i) & (i <= i)", "w = (i < j) & (n > i) & (i <= i)"),
    "padded": ("y = tl.load(p + i, m, 0.0)", "y = tl.load(p + i, m, float('-inf'))"),
    "narrow_sum": ("y = tl.zeros([B], tl.float16)", "y = tl.zeros([B], tl.float32)"),
    "overflow": ("y = tl.load(p + n * (old + 1))", "y = tl.load(p + n * (old.to(tl.int64) + 1))"),
    "retyped": ("y = tl.load(p.to(tl.pointer_type(tl.float16)))", "y = tl.load(p)"),
    "unknown": ("y = x", ""),
}


@pytest.mark.parametrize("kind", CORRECTED)
def test_a_mistake_of_a_kernel_is_corrected_in_its_line(kind: str) -> None:
    """One line changes, and none moves. If nothing fits, the text stays."""
    line, expected = CORRECTED[kind]
    text = KERNEL.format(line=line)
    changed = corrections.corrected(text, "k", (kind.partition(" ")[0], 6, "float('-inf')"))
    assert changed == (KERNEL.format(line=expected) if expected else "")


TUNED = """
@triton.autotune(
    configs=[],
    key=["n"],{given}
)"""


@pytest.mark.parametrize(
    ("given", "line", "needed"),
    [
        ("", "at = o + i\n    tl.store(at, tl.load(at, m) + x, m)", True),
        ("", "tl.atomic_add(o, x)", True),
        ("", "tl.store(q + i, x, m)", False),
        (" reset_to_zero=['o'],", "tl.atomic_add(o, x)", False),
    ],
)
def test_a_tuner_restores_what_the_kernel_updates(given: str, line: str, needed: bool) -> None:
    """Only arguments that the kernel reads and writes are restored, unless its decorator names them."""
    text = TUNED.format(given=given) + KERNEL.format(line=line).replace("tl.load(o + tl.load(q + i))", "0")
    text = text.replace("tl.load(q)", "0")
    found = [each for each in corrections.shown(text, "k") if each.kind == "tuned"]
    changed = [corrections.corrected(text, "k", each) for each in found]
    assert changed == [text.replace('["n"]', '["n"], restore_value=["o"]')] * needed


LAUNCHED = (
    KERNEL
    + """
grid = lambda meta: (n // meta["B"],)
out = torch.empty_like(x)
wrap_triton(k)[grid]({given})
"""
)


@pytest.mark.parametrize(
    ("kind", "given", "old", "new"),
    [
        ("short_grid", "x", 'n // meta["B"]', "triton.cdiv(n, meta['B'])"),
        ("strides", "x.t(), o=out", "[grid](x.t()", "[grid](x.t().contiguous()"),
        ("strides", "x.contiguous(), o=out", "", ""),
    ],
)
def test_a_launch_is_corrected_where_it_stands(kind: str, given: str, old: str, new: str) -> None:
    """A grid is rounded up, or what a kernel without strides reads is made contiguous, in one line."""
    text = LAUNCHED.format(line="tl.store(o, tl.load(p + i))", given=given)
    found = [each for each in corrections.shown(text, "k") if each.kind == kind]
    changed = [corrections.corrected(text, "k", each) for each in found]
    assert changed == ([text.replace(old, new)] if old else [])


def test_memory_that_a_kernel_updates_is_made_of_zeros() -> None:
    """It was made with `empty_like`, and a kernel that adds to it never filled it."""
    text = LAUNCHED.format(line="tl.atomic_add(o + i, tl.load(p + i))", given="x, o=out")
    zeroed = text.replace("empty_like", "zeros_like")
    assert corrections.corrected(text, "k", corrections.Mistake("unset", 1)) == zeroed


@pytest.mark.parametrize(
    ("ends", "marker"),
    [((3, 2**31 - 1), "2147483647"), ((-1, 8), "-1"), ((3, 12), ""), ((-1, 2**31 - 1), "")],
)
@pytest.mark.parametrize("effect", [Effect.GONE, Effect.SAME])
def test_a_mask_with_which_the_program_passes_accuses_the_kernel(
    tmp_path: Path, ends: tuple[int, int], marker: str, effect: Effect
) -> None:
    """Otherwise the ids are at fault. A single value that no row has may be a marker: both are reported."""
    case, gone, name = reducing(tmp_path, BODY), effect is Effect.GONE, "input 1 (ids)"
    (launch,) = (each for each in case.launches if each.kind == "user_triton")
    own = {"kind": "user_triton", "how": "", "certain": True, "line": 1}
    at = {"index": launch.index, "kernel": launch.kernel, **own}
    of_input = {"parameter": "ids", "label": name, "input_index": 1, "minimum": ends[0], "maximum": ends[1]}
    part = {"kind": "index", "beyond": True, "lowest": 0, "limit": 10, **of_input}
    blame = {"kind": "input", "name": name, "category": "index_out_of_bounds", "input_index": 1}
    seen = {"tool": "memcheck", "kind": "read", "text": "x", "kernel": "lookup_kernel"}
    told = {**seen, "launch": at, "parts": [part], "blame": blame}
    case.located = LocatedFault.model_construct(fault=Fault.model_validate(told))
    change = Intervention("source:k", Kind.SOURCE, "a mask", before_code="mask=m", after_code="mask=m & x")
    case.users_changes[launch.kernel, "beyond"], case.trials[change.key] = change, trial(change, effect)
    (found,) = by("illegal_memory_access.detect_memory", case)
    assert look("try_users_kernels").after_proof(case) == bool(marker)
    assert found.fix is not None and (f"{marker} marks unused" in found.fix.text) == bool(marker)
    assert (found.guilty.kind, confidence(found, case) == "proven") == ("kernel" if gone else "input", gone)
    assert found.fix.after == ("mask=m & x" if gone else None)


@pytest.mark.parametrize(("dtype", "rows", "far"), [("i32", 2**28, 1), ("i64", 2**28, 0), ("i32", 4, 0)])
def test_an_address_that_32_bits_cannot_count(tmp_path: Path, dtype: str, rows: int, far: int) -> None:
    """The address overflows only in a tensor of more than 2**31 elements, with a 32-bit index."""
    changes = {"'ids': '*i64'": f"'ids': '*{dtype}'", "shape = {64, 16}": f"shape = {{{rows}, 16}}"}
    view = view_of(FAULTS / "host_tensor", tmp_path, changes)
    case = DiagnosisState(None, package=view.package, parsed=view)
    (kernel,) = rerun.users_kernels(case)
    mistakes = corrections.shown_by_code(kernel, view, case.sizes)
    assert [kind for kind, _, _ in mistakes] == ["overflow"] * far
