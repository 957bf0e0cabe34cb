"""Interventions on a launch: change its kernel in a copy of the package, or run it in eager mode."""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio.to_thread

from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, Options, Trial
from mcp_server.diagnosis.interventions.run import TriedCall, try_intervention
from mcp_server.diagnosis.origin import Operation, Origin
from mcp_server.diagnosis.origin.lines import MASK_FILL, guarded_code
from mcp_server.errors import ProblemError, argument
from mcp_server.model import PackageWorkload
from mcp_server.package.archive import Package
from mcp_server.package.kernels import Kernel
from mcp_server.package.prover import Finding
from mcp_server.package.view import view_package
from mcp_server.probes.changed_kernel import kernel_named, launches_of, with_kernel
from mcp_server.probes.domain_guard import with_domain_guarded, with_exponents_shifted
from mcp_server.probes.rewrite import (
    replaced_once,
    with_bounds_kept,
    with_finite_mask,
    with_limits,
    with_wide_indices,
    with_wide_integers,
)
from mcp_server.runtime.context import Context
from mcp_server.tools.compare_with_eager import Pair, compare_pair
from mcp_server.tools.every_launch import EveryLaunch
from mcp_server.worker.protocol import EagerLaunches


@dataclass(frozen=True)
class _Way:
    """A way to run a launch: the change of its kernel, a description, and the model code before and after."""

    change: Callable[[Kernel], str]
    what: str
    before: str
    after: str
    hides: bool = True
    action: str = ""


def _guard(family: str) -> _Way:
    """Keep the operands of operations in their domain. `family` is one of those in `HOWS`."""
    before, after, action = guarded_code(family)
    what = f"each {family} of {{kernel}} kept in its domain"
    change = partial(with_domain_guarded, family=family)
    return _Way(change, what, before, after, hides=False, action=action)


HOWS = {
    "guard": _Way(
        with_bounds_kept,
        "every index that {kernel} checks kept within its bound",
        "table[index]",
        "table[index.clamp(0, len(table) - 1)]",
    ),
    "finite-mask": _Way(
        with_finite_mask,
        "a finite number where {kernel} fills in minus infinity",
        *MASK_FILL,
        hides=False,
        action="fill masked elements with the smallest finite number of their type. The softmax of a fully "
        "masked row then has equal weights: replace them by 0 (torch.where) if the row should count for "
        "nothing",
    ),
    **{f"guard-{family}": _guard(family) for family in ("div", "log", "sqrt", "acos", "pow")},
}

REPAIRS = {"overflow": "64-bit indices", "narrow": "64-bit integers"}


async def edit_kernel(context: Context, call: TriedCall, name: str, old: str, new: str) -> Intervention:
    """Build the package with one replacement in a kernel's text, and return the intervention.

    Raise `ProblemError` for an unknown kernel, if `old` does not occur exactly once, or if `new` has side
    effects or does not compile.
    """
    what = f"`{new}` in place of `{old}` in {name}"
    made = await _changed(context, call, name, partial(replaced_once, old=old, new=new), f"{old}:{new}", what)
    return replace(made, before_code=old, after_code=new, spelling=("--kernel", name, "--replace", old, new))


ANEW = "{} compiled again from its source in the package"


def anew(kernel: str) -> Intervention:
    """The intervention of `compile_anew` without building the package."""
    return Intervention(f"kernel:{kernel}:anew", Kind.KERNEL, f"the call with {ANEW.format(kernel)}")


async def with_text(context: Context, call: TriedCall, name: str, text: str) -> Options:
    """Build the call's package with another text of a kernel. Raise `ProblemError` if impossible."""
    return (await _changed(context, call, name, lambda _kernel: text, "text", name)).options


async def compile_anew(context: Context, call: TriedCall, name: str) -> Intervention:
    """Compile the kernel again from its source. Raise `ProblemError` if it cannot be compiled."""
    return await _changed(context, call, name, lambda kernel: kernel.source, "anew", ANEW.format(name))


async def replace_launch(context: Context, call: TriedCall, launch: int, how: str) -> Intervention:
    """Build the package that runs a launch in another way, and return the intervention.

    All launches of its kernel are changed. If the change is impossible, `unavailable` says why. Raise
    `ProblemError` for an unknown launch or way.
    """
    package = await _package(call)
    launches = package.wrapper.run.launches
    if not 0 <= launch < len(launches):
        raise ProblemError("no such launch", value=launch, allowed=f"0 to {len(launches) - 1}")
    name = launches[launch].kernel
    made = Intervention(
        key=f"launch:{launch}:{how}",
        kind=Kind.KERNEL,
        what=f"the call with launch {launch} ({name}) run with {how}",
        spelling=("--launch", str(launch), "--as", how),
    )
    if how == "eager":
        why = f"to run a launch in eager mode, give the exported program ({argument('exported')})"
        return replace(made, unavailable=why)
    if how not in HOWS:
        raise ProblemError("unknown change of a launch", value=how, allowed=", ".join((*HOWS, "eager")))
    if name not in package.wrapper.kernels:
        why = f"launch {launch} is the operator {name}: only a generated kernel can be run with {how}"
        return replace(made, unavailable=why)
    way = HOWS[how]
    try:
        kernel = kernel_named(package, name)
        source = way.change(kernel)
    except ProblemError as problem:
        return replace(made, unavailable=str(problem))
    changed = await with_kernel(package, kernel, source, context, python=call.python, env=call.env)
    shared = len(launches_of(package, name))
    others = f" (in all its {shared} launches)" if shared > 1 else ""
    return replace(
        made,
        what=f"the call with {way.what.format(kernel=name)}{others}",
        options=Options(package=changed),
        before_code=way.before,
        after_code=way.after,
        hides=way.hides,
        action=way.action,
    )


async def guard_operation(context: Context, call: TriedCall, found: Operation) -> Intervention:
    """Guard the operation whose operand left its domain, and all others of its kind in the kernel.

    `what` describes the change that ran; the line to ship may add an epsilon instead. Raises `ProblemError`
    as `replace_launch` does.
    """
    made = await replace_launch(context, call, found.launch_index, f"guard-{found.family}")
    return replace(
        made,
        what=f"the call with launch {found.launch_index} changed to "
        f"{made.action if found.shipped else found.action}",
        before_code=found.code,
        after_code=found.shipped or found.guarded_code,
        action=found.action,
    )


# An overflow of exp in the explanation of an origin.
EXPONENT = re.compile(r"\bexp\((\d+(?:\.\d+)?)\) is (?:inf|\S+, too large for (?P<dtype>\w+))")
# The largest argument after the shift. The limit is 88.7 in float32 and 11.1 in float16, and sums of the
# results must also fit.
LARGEST, OF_HALF = 80, 4


async def shift_exponents(context: Context, call: TriedCall, origin: Origin) -> Intervention:
    """Subtract a number from every argument of exp in a kernel, so that none overflows.

    Raises `ProblemError` if no exp can be found in the kernel.
    """
    found = EXPONENT.search(origin.explanation)
    assert found is not None, "only of an origin that is an exponential"
    shift = math.ceil(float(found[1]) - (OF_HALF if found["dtype"] == "float16" else LARGEST))
    change = partial(with_exponents_shifted, shift=float(shift))
    what = f"{shift} subtracted from every argument of exp in {origin.kernel}"
    made = await _changed(context, call, origin.kernel, change, f"exp-{shift}", what)
    return replace(
        made,
        before_code="torch.exp(x)",
        after_code="torch.exp(x - x.amax(-1, keepdim=True))",
        action="subtract the largest argument from every argument before the exponential, as torch.softmax "
        "does; this does not change the quotient by the sum",
    )


async def correct_expression(context: Context, call: TriedCall, origin: Origin) -> Intervention:
    """Correct the expression at an origin in its kernel, and so in all launches of that kernel.

    Raises `ProblemError` if the kernel cannot be edited or does not compile.
    """
    found = origin.correction
    assert found is not None, "only an origin with a correction is corrected"

    change = partial(with_limits, lines=found.lines, low=found.low, high=found.high)
    what = f"`{found.text}` in place of `{origin.expression}` in launch {origin.launch_index}"
    made = await _changed(context, call, origin.kernel, change, "corrected", what)
    return replace(made, before_code=origin.expression, after_code=found.text, spelling=())


async def repair_kernel(context: Context, call: TriedCall, found: Finding) -> Intervention:
    """Remove a defect of a kind in `REPAIRS` from its kernel. May raise `ProblemError`."""
    repair = with_wide_integers if found.kind == "narrow" else with_wide_indices
    what = f"{REPAIRS[found.kind]} in {found.kernel}"
    return await _changed(context, call, found.kernel, repair, found.kind, what)


async def _changed(
    context: Context, call: TriedCall, name: str, change: Callable[[Kernel], str], slug: str, what: str
) -> Intervention:
    """Change a kernel in a copy of the package.

    The intervention has no `spelling` unless exactly one line changed and its old text occurs once.
    """
    package = await _package(call)
    kernel = kernel_named(package, name)
    source = change(kernel)
    made = await with_kernel(package, kernel, source, context, python=call.python, env=call.env)
    lines = zip(kernel.source.split("\n"), source.split("\n"), strict=False)
    pairs = [(old.strip(), new.strip()) for old, new in lines if old != new]
    tried = Intervention(
        f"kernel:{name}:{slug}", Kind.KERNEL, f"the call with {what}", options=Options(package=made)
    )
    if len(pairs) != 1:
        return tried
    old, new = (text.partition(" = ")[2].rstrip(";") for text in pairs[0])
    once = kernel.source.count(old) == 1
    return replace(tried, spelling=("--kernel", name, "--replace", old, new)) if once else tried


async def _package(call: TriedCall) -> Package:
    path = call.request.get("package")
    if path is None:
        raise ProblemError("kernels are changed in a .pt2 package", value=str(call.request.get("library")))
    model = str(call.request.get("model_name", "model"))
    return (await anyio.to_thread.run_sync(view_package, Path(str(path)), model)).package


# Each launch that was wrong on correct inputs is tried in eager mode, in a package with probes. If several
# are wrong, the others run in eager mode in all three calls: a call that fails for two reasons still fails
# without one of them.
MOST_TRIED = 3  # wrong launches that are tried


def in_eager(launch: int, kernel: str, others: Sequence[int] = (), plan: Path | None = None) -> Intervention:
    """Run the launch in eager mode on its own inputs. The `others` run in eager mode in all three calls."""
    also = f" (launches {', '.join(map(str, others))} run in eager mode in all calls)" if others else ""
    asked = EagerLaunches(plan=str(plan), launches=sorted((launch, *others))) if plan is not None else None
    return Intervention(
        key=eager_key(launch),
        kind=Kind.KERNEL,
        what=f"the call with launch {launch} ({kernel}) run in eager mode{also}",
        options=Options(eager=asked),
    )


def eager_key(launch: int) -> str:
    return f"launch:{launch}:eager"


def on_probes(call: TriedCall, plan: Path, launches: Sequence[int] = ()) -> TriedCall:
    """The call of the package with probes, with these launches in eager mode."""
    package = json.loads(plan.read_text())["package"]
    asked = EagerLaunches(plan=str(plan), launches=list(launches))
    return replace(call, request={**call.request, "package": package, "eager": asked})


async def try_in_eager(
    context: Context, call: TriedCall, found: EveryLaunch, exported: Path | None = None
) -> dict[str, Trial]:
    """Try the wrong launches, and return the trials by key. Launches that may be right are not tried.

    A launch that alone does not make the call fail stays compiled in later trials. `exported` is the program
    for the command that repeats a trial.
    """
    assert found.plan is not None, "only launches of a call that came back are wrong"
    plan = found.plan.path
    doubtless = [each for each in found.wrong if not (each.suspects or each.constant or each.tf32)]
    kernels = {each.launch: each.kernel for each in doubtless[:MOST_TRIED]}
    trials: dict[str, Trial] = {}
    open_ones = list(kernels)
    for launch in kernels:
        others = [other for other in open_ones if other != launch]
        made = in_eager(launch, kernels[launch], others, plan)
        if exported is not None and not others:
            made = replace(made, spelling=_spelled_eager(launch, exported))
        tried = await try_intervention(context, on_probes(call, plan, others), made)
        trials[made.key] = tried
        if tried.effect is Effect.NOT_APPLICABLE:
            open_ones.remove(launch)
    return trials


async def launch_in_eager(
    context: Context, call: TriedCall, workload: PackageWorkload, exported: Path, launch: int
) -> tuple[TriedCall, Intervention]:
    """The call with probes, which should give eager mode's values, and the change of the launch."""
    model = await anyio.to_thread.run_sync(view_package, workload.package, workload.model_name)
    known = model.launch(launch)
    if known is None:
        allowed = f"0 to {len(model.wrapper.launches) - 1}"
        raise ProblemError("no such launch", value=launch, allowed=allowed)
    found = (await compare_pair(context, Pair(workload, exported))).every_launch
    if found.plan is None or found.eager_outputs is None:
        raise ProblemError(found.summary, value=launch)
    why = next((each.why for each in found.unjudged if each.launch == launch), "")
    if why:
        raise ProblemError(f"the launch cannot be done in eager mode: {why}", value=launch)
    if not call.symptom.judges:
        call = replace(call, symptom=replace(call.symptom, expect=found.eager_outputs.path))
    made = in_eager(launch, known.kernel, plan=found.plan.path)
    return on_probes(call, found.plan.path), replace(made, spelling=_spelled_eager(launch, exported))


def _spelled_eager(launch: int, exported: Path) -> tuple[str, ...]:
    """The arguments of `try-fix` for a launch in eager mode."""
    return ("--launch", str(launch), "--as", "eager", "--exported", str(exported))
