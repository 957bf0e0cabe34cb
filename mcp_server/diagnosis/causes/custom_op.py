"""The user's own operators and Triton kernels: broken promises, exceptions, and wrong sums."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from mcp_server.diagnosis.causes.illegal_memory_access import fix_with, numbers_doubted
from mcp_server.diagnosis.components import (
    TORCHS,
    component,
    kernel_of,
    kernel_party,
    launch_lines,
    lines_in_script,
    lines_of,
    operator_of,
    own_operators,
    reported,
    seen,
)
from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import UNREGISTERED, CausalLevel, Suspect
from mcp_server.errors import argument
from mcp_server.model import Fix, ModelLocation, PackageWorkload
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Launch
from mcp_server.package.prover import Padding, narrow_sums, paddings
from mcp_server.plurals import listed, quoted
from mcp_server.worker import events
from mcp_server.worker.events import Layout

# Lay out results of custom operators as their fake functions promise, with unused space around them.
REPAIRED = Intervention(
    key="operator:promised",
    kind=Kind.OPERATOR,
    what="the call with the operators' results laid out as their fake functions promise",
    options=Options(operators="repair"),
    before_code="return result",
    after_code="return result.to(promised.dtype).reshape(promised.shape).contiguous()",
)
# Copy results whose memory the operator keeps and the package overwrites.
KEPT = replace(
    REPAIRED,
    what="the same call, made twice with copies of the operators' results",
    after_code="return result.clone()",
)
SAME = "returns the same values"
_SETTLE = (
    "This does not change what the package returns for this call. Run the program, or compare_with_eager, to "
    "see whether it changes the eager result."
)

_RETURNS = re.compile(r"return [\w.]+(\[[^][]*\])?")  # returns one value

_OfOperator = partial(Suspect, level=CausalLevel.STATE)


def detect_unregistered(case: DiagnosisState) -> Iterator[Suspect]:
    """A load that fails because an operator listed by the package is not registered."""
    if case.package is None:
        return
    needed = ", ".join(sorted(set(case.package.proxy_nodes)))
    failed = [load for load in case.captured.loads if load.outcome != "ok"]
    here = ""
    if isinstance(case.workload, PackageWorkload) and not case.workload.extra_imports:
        # The operator may be missing only here, while the user saw another failure.
        here = f". If your program does that, diagnose again and name the module: {argument('extra_imports')}"
    for label, root in case.roots:
        op = root.fields.get("operator") or root.fields.get("op") or ""
        if root.family.id != "op_not_registered" or not op:
            continue
        yield _OfOperator(
            category="custom_op",
            guilty=component("op", op, [line for load in failed[-1:] for line in load.stack[:2]]),
            summary=f"Operator {op} is not registered in the process that loads the package, and a package "
            "contains no Python operators.",
            evidence=(reported(root, label), seen("open_package", f"the package calls {quoted(needed)}")),
            fix=Fix(
                text=f"before the package is loaded, import the module that registers {op}, or load its "
                f"library with torch.ops.load_library{here}"
            ),
            refusal="" if here else UNREGISTERED,
        )


def launch_of(op: str, case: DiagnosisState) -> tuple[int | None, list[ModelLocation]]:
    """The only launch of `torch.ops.namespace.name.overload` (None if several), and its model lines.

    Lines of the exported program come first: the package adds lines of other operators in a fused kernel.
    """
    exported = case.exported.special if case.exported is not None else ()
    written = [line for target, line in exported if target == op.removeprefix("torch.ops.")]
    short = op.removeprefix("torch.ops.").removesuffix(".default")
    found = [launch.index for launch in case.launches if _launches(launch, short, case)]
    if not found:
        return None, written[:2]
    lines = list(dict.fromkeys([*written, *launch_lines(found[0], case, 2)]))
    return found[0] if len(found) == 1 else None, lines[:2]


def _launches(launch: Launch, op: str, case: DiagnosisState) -> bool:
    """Whether a launch calls `namespace::name`. Wrappers use the shim's name, which has no namespace."""
    target = case.package.proxy_target(launch.proxy_index) if case.package is not None else ""
    if target:
        return target.replace("::", ".") == op
    if launch.kernel == f"aoti_torch_{case.device}_{op.rpartition('.')[2]}":
        return True
    texts = (launch.kernel, launch.callee)
    return any(name in text for name in (op, op.replace(".", "::")) for text in texts)


def detect_operator_results(case: DiagnosisState) -> Iterator[Suspect]:
    """Suspect each operator that broke a promise, at its first such call."""
    first: dict[str, events.Operator] = {}
    for event in case.operators.all(events.Operator) if case.operators is not None else ():
        first.setdefault(f"torch.ops.{event.op}", event)
    trial = case.trials.get(REPAIRED.key)
    for op, event in first.items():
        broken, fix = _broken_promise(op, event)
        launch, lines = launch_of(op, case)
        overrun = bool(event.overrun)
        without_effect = trial is not None and trial.reason == SAME and not overrun
        effect = "the package relies on what the fake function promised"
        if overrun:
            effect = "the data there is overwritten, and its next use fails"
        elif event.kept:
            if trial is None or not trial.proves:
                continue  # the package may only read the result
            effect = "the package takes it for a new tensor and writes into it, so later calls read that"
            lines = [*lines_of(event), *lines]
        yield _OfOperator(
            category="illegal_memory_access" if overrun else "custom_op",
            guilty=component("op", op, lines, launch=launch),
            summary=f"{broken}; {effect}.",
            evidence=(seen("watch_operators", f"call {event.call} of {op}: {broken}"),),
            fix=fix,
            intervention=KEPT if event.kept else REPAIRED,
            observed=not without_effect,
            weak=without_effect and not case.failed,
            settle=_SETTLE,
        )


def _broken_promise(op: str, event: events.Operator) -> tuple[str, Fix]:
    """Say what the operator did, and how to fix it."""
    if event.overrun:
        tensor = event.overrun[0]
        side, count = ("past the end", tensor.after) if tensor.after else ("before the start", tensor.before)
        kind = f"shape {tensor.shape}, {tensor.dtype.removeprefix('torch.')}"
        text = f"{op} writes up to {count} bytes {side} of a tensor that it allocated ({kind})"
        fix = f"make {op} write only inside that tensor, or allocate a tensor that is large enough"
        return text, Fix(text=fix)
    if event.kept:
        code = event.stack[0].code if len(event.stack) == 1 else ""
        code = code if _RETURNS.fullmatch(code) else "return result"
        text = f"{op} returns memory that it keeps: a later call of it returned the same memory"
        return text, Fix(
            text=f"let {op} return a copy of what it keeps", before=code, after=f"{code}.clone()"
        )
    if event.layouts:
        promised, returned = event.layouts[0].promised, event.layouts[0].returned
        text = f"The fake function of {op} promises {_layout(promised)}"
        text += f"; the operator returned {_layout(returned)}"
        return text, Fix(text=kept_promise(op, promised, returned))
    if event.mutated:
        names = ", ".join(event.mutated)
        text = f"{op} writes to its argument {names}, which its schema declares as read-only"
        return text, Fix(text=f"declare it (mutates_args), or let {op} work on a copy")
    names = ", ".join(event.aliases)
    text = f"{op} returns memory of its argument {names}, although its schema declares a new tensor"
    return text, Fix(text=f"return a clone from {op}")


def kept_promise(op: str, promised: Layout, returned: Layout) -> str:
    """Say how to fix a result that differs from what the fake function promises."""
    aspects = ("shape", "dtype", "device")
    differing = [what for what in aspects if getattr(promised, what) != getattr(returned, what)]
    steps = zip(returned.shape, promised.stride, returned.stride, strict=False)
    if "shape" not in differing and any(size != 1 and wanted != made for size, wanted, made in steps):
        differing.append("stride")  # a different shape also changes the stride
    what = listed(differing)
    made = f"make the fake function of {op} return the {what} of the real result"
    return f"{made}, or make the operator return what it promises"


def _layout(layout: Layout) -> str:
    dtype = str(layout.dtype).removeprefix("torch.")
    return f"shape {layout.shape}, stride {layout.stride}, {dtype}"


def detect_fake_results(case: DiagnosisState) -> Iterator[Suspect]:
    """Operators outside torch whose result in the exported program differs from the promised one."""
    for event in case.eager_events(events.FakeMismatch):
        op, promised, returned = f"torch.ops.{event.op}", event.promised, event.returned
        if event.op.startswith(("aten.", "<")) or promised is None or returned is None:
            continue
        fact = f"promised {_layout(promised)}; it returned {_layout(returned)}"
        yield _OfOperator(
            category="custom_op",
            guilty=component("op", op, lines_of(event)),
            summary=f"The fake function of {op} disagrees with the operator: {fact}.",
            evidence=(seen("interpret", f"{op} {fact}"),),
            fix=Fix(text=kept_promise(op, promised, returned)),
            intervention=REPAIRED,
            harmful=case.failed or REPAIRED.key in case.trials,
        )


def detect_operator_error(case: DiagnosisState) -> Iterator[Suspect]:
    """Suspect the operator in whose code an exception was raised, if the operator is known."""
    for source, root in case.roots:
        if root.family.id != "operator_raised" or case.package is None:
            continue
        # Up to torch 2.12, errors name no node: take the package's only operator. Later errors name it.
        own = own_operators(case)
        op = own[0] if len(own) == 1 else ""
        if "node" in root.fields:
            op = case.package.proxy_target(int(root.fields["node"]))
        if not op or op.startswith(TORCHS):
            continue
        calling = [launch.index for launch in case.launches if operator_of(launch.index, case) == op]
        launch = calling[0] if len(calling) == 1 else None
        at = ModelLocation(file=root.fields["at_file"], line=int(root.fields["at_line"]))
        place = f"{at.file}:{at.line}, in {root.fields['at_function']}"
        lines, action = [at, *launch_lines(launch, case, 2)], f"let {op} handle such arguments"
        yield _OfOperator(
            category="custom_op",
            guilty=component("op", op, lines, value=quoted(root.text, 200), launch=launch),
            summary=f"Operator {op} raised an exception for these arguments: {quoted(root.text, 200)}",
            evidence=(reported(root, source), seen("run", f"the operator calls {place}, which raised it")),
            fix=Fix(text=f"{action}, or do not pass them to it in the model", before=place),
        )
        return


def detect_reductions(case: DiagnosisState) -> Iterator[Suspect]:
    """Mistakes of the user's Triton kernels: sums in 16 bits, masked lanes in a reduction, those of `SHOWN`.

    Yielded only if the numbers of a call are in doubt.
    """
    plain = case.failure_of("plain")
    if case.call is None or case.device != "cuda" or case.ended_well or plain not in ("none", "differs"):
        return
    kernels = {k.name: (k, launch) for launch in reversed(case.launches) if (k := kernel_of(launch, case))}
    for kernel, launch in kernels.values():
        for kind, code, (what, fact, advice) in _mistakes(kernel, case):
            lines = lines_in_script(case, re.compile(re.escape(code)))
            change = case.users_changes.get((kernel.name, kind))
            yield Suspect(
                category="wrong_output",
                guilty=kernel_party(kernel.symbol, launch, lines, case),
                summary=f"{kernel.symbol} {what}: {code}.",
                level=CausalLevel.FAULT_SITE,
                evidence=(seen("inspect_package", f"{code} {fact}"),),
                fix=fix_with(advice, change, case, code),
                intervention=change,
                weak=plain == "none" and not numbers_doubted(case),
                observed=False,
            )


_Words = tuple[str, str, str]  # what the kernel does, what its code shows, and what to do


def _mistakes(kernel: Kernel, case: DiagnosisState) -> Iterator[tuple[str, str, _Words]]:
    """Yield kind, code and words of each mistake of a kernel."""
    yield from (("narrow_sum", code, _narrow(line)) for line, code in narrow_sums(kernel)[:1])
    yield from (("padded", each.load, _padded(each)) for each in paddings(kernel)[:1])
    for kind, words in SHOWN.items():
        change = case.users_changes.get((kernel.name, kind))
        if change is not None and case.trials[change.key].gone:
            yield kind, change.before_code, words


# Signs in a kernel's text that may be intended. Each is a suspect only if the program passes without it.
SHOWN = {
    "unmasked": (
        "also stores lanes that the mask of its load leaves out",
        "has no mask, and the value that it stores was loaded with one",
        "give the store the mask of the load",
    ),
    "past_end": (
        "works on one lane too many, the one at the limit itself",
        "includes the limit, which is passed or loaded as a number of elements",
        "let the lanes end before the limit",
    ),
    "tuned": (
        "is tuned on the tensors of its first call, and each of the tuner's launches updates them once more",
        "names no restore_value, and the kernel updates what it reads",
        "let the tuner restore what the kernel updates, or store to a separate output",
    ),
    "short_grid": (
        "is launched for fewer programs than its elements need",
        "rounds the size of the grid down, so that the last elements have no program",
        "round the size of the grid up",
    ),
    "strides": (
        "addresses a tensor as if it were contiguous",
        "gives a tensor of other strides, and the kernel gets no strides",
        "give the kernel the strides of the tensor, or a contiguous tensor",
    ),
    "overflow": (
        "computes an address in 32 bits, in a tensor that has more elements than they count",
        "multiplies a loaded 32-bit index",
        "widen the index to 64 bits before it is multiplied",
    ),
}


def _narrow(line: int) -> _Words:
    return (
        "sums in 16 bits, too few for a long sum",
        f"at line {line} is kept in 16 bits",
        "widen what is summed to float32, and narrow the result when it is stored",
    )


def _padded(found: Padding) -> _Words:
    needed = repr(found.needed) if math.isfinite(found.needed) else f"float('{found.needed}')"
    advice = f"give masked lanes {needed} before the {found.kind}, as tl.where(mask, …, {needed})"
    if math.isinf(found.needed):
        advice = f"load masked lanes with other={needed}, and start a running {found.kind} from it"
    held = "an unknown value" if math.isnan(found.filler) else f"{found.filler:g}"
    return (
        f"lets lanes that its mask leaves out take part in {found.code}, where they hold {held} and must "
        f"hold {needed}",
        f"at line {found.load_line}, gives masked-out lanes a value that reaches {found.code}",
        advice,
    )
