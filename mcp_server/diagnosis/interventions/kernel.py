"""Interventions on a generated kernel, and the copies of a package that they load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import anyio.to_thread

from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options
from mcp_server.diagnosis.interventions.plan import TriedCall
from mcp_server.errors import ProblemError
from mcp_server.package.archive import Package
from mcp_server.package.kernels import Kernel
from mcp_server.package.literals import Literal, with_number
from mcp_server.package.view import view_package
from mcp_server.probes.changed_kernel import kernel_named, launches_of, with_kernel
from mcp_server.probes.rewrite import replaced_once, with_bounds_kept, with_finite_mask, with_zeros
from mcp_server.tools.context import Context


@dataclass(frozen=True)
class Edit:
    """Text `old` of a kernel replaced by `new`, once."""

    kernel: str
    old: str
    new: str


@dataclass(frozen=True)
class _Way:
    """A way to do a launch: the change of its kernel, what the call is then with, and the model code."""

    change: Callable[[Kernel], str]
    what: str
    before: str
    after: str
    hides: bool = True


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
        "masked_fill(mask, float('-inf'))",
        "masked_fill(mask, -1e30)",
        hides=False,
    ),
    "skip": _Way(
        with_zeros, "zeros in place of what {kernel} computes", "# launch {launch}: {kernel}", "zeros"
    ),
}


async def edit_kernel(context: Context, call: TriedCall, edit: Edit) -> Intervention:
    """The intervention of one replacement, with its package made.

    Raises `ProblemError`: no such kernel, a text that does not occur exactly once, a replacement with side
    effects, or one that does not compile.
    """
    package = await _package(call)
    kernel = kernel_named(package, edit.kernel)
    made = await _made(context, call, package, kernel, replaced_once(kernel, edit.old, edit.new))
    return Intervention(
        key=f"kernel:{edit.kernel}:{edit.old}:{edit.new}",
        kind=Kind.KERNEL,
        what=f"the call with `{edit.new}` in place of `{edit.old}` in {edit.kernel}",
        options=Options(package=made),
        before_code=edit.old,
        after_code=edit.new,
        spelling=("--kernel", edit.kernel, "--replace", edit.old, edit.new),
    )


async def with_literal(context: Context, call: TriedCall, literal: Literal, new: float) -> Path:
    """A copy of the package in which a kernel has `new` for that literal. Raises `ProblemError`."""
    package = await _package(call)
    kernel = kernel_named(package, literal.kernel)
    return await _made(context, call, package, kernel, with_number(kernel, literal.value, new))


async def replace_launch(context: Context, call: TriedCall, launch: int, how: str) -> Intervention:
    """The intervention of one launch done another way, with its package made.

    All launches of its kernel are changed. One that cannot be done says why in `unavailable`. Raises
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
        what=f"the call with launch {launch} ({name}) done as {how}",
        spelling=("--launch", str(launch), "--as", how),
    )
    if how == "eager":
        why = "an eager operator in place of a launch is made by `repair`, which writes a package of its own"
        return replace(made, unavailable=why)
    if how not in HOWS:
        raise ProblemError("no such way to do a launch", value=how, allowed=", ".join((*HOWS, "eager")))
    way = HOWS[how]
    try:
        kernel = kernel_named(package, name)
        source = way.change(kernel)
    except ProblemError as problem:
        return replace(made, unavailable=str(problem))
    changed = await _made(context, call, package, kernel, source)
    shared = len(launches_of(package, name))
    others = f" (in all its {shared} launches)" if shared > 1 else ""
    return replace(
        made,
        what=f"the call with {way.what.format(kernel=name)}{others}",
        options=Options(package=changed),
        before_code=way.before.format(launch=launch, kernel=name),
        after_code=way.after,
        hides=way.hides,
    )


async def _package(call: TriedCall) -> Package:
    path = call.request.get("package")
    if path is None:
        raise ProblemError("kernels are changed in a .pt2 package", value=str(call.request.get("library")))
    model = str(call.request.get("model_name", "model"))
    return (await anyio.to_thread.run_sync(view_package, Path(str(path)), model)).package


async def _made(context: Context, call: TriedCall, package: Package, kernel: Kernel, source: str) -> Path:
    return await with_kernel(package, kernel, source, context, python=call.python, env=call.env)
