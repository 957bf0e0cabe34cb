"""Interventions on a generated kernel, and the copies of a package that they load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options
from mcp_server.diagnosis.interventions.plan import TriedCall
from mcp_server.errors import ProblemError
from mcp_server.package.archive import Package, open_package
from mcp_server.package.kernels import Kernel
from mcp_server.package.literals import Literal as literals_Literal
from mcp_server.package.literals import with_number
from mcp_server.package.wrapper import read_wrapper
from mcp_server.probes.changed_kernel import (
    Interposed,
    interpose,
    kernel_named,
    launches_of,
    recompile_triton,
)
from mcp_server.probes.rewrite import replaced_once, with_bounds_kept, with_finite_mask, with_zeros
from mcp_server.tools.context import Context

How = Literal["skip", "guard", "finite-mask"]


@dataclass(frozen=True)
class Edit:
    """Text `old` of a kernel replaced by `new`, once; `model_before` and `model_after` are model code."""

    kernel: str
    old: str
    new: str
    model_before: str = ""
    model_after: str = ""


def edited(edit: Edit, package: Path, what: str = "") -> Intervention:
    """The call of the edited copy `package`."""
    return Intervention(
        key=f"kernel:{edit.kernel}:{edit.old}:{edit.new}",
        kind=Kind.KERNEL,
        what=what or f"the call with `{edit.new}` in place of `{edit.old}` in {edit.kernel}",
        options=Options(package=package),
        before_code=edit.model_before or edit.old,
        after_code=edit.model_after or edit.new,
        spelling=spelled(edit),
    )


def relaunched(launch: int, kernel: str, how: How, package: Path, shared: int = 1) -> Intervention:
    """Launch number `launch` done another way, in the copy `package`.

    `shared` launches have this kernel: all of them are changed.
    """
    words = {
        "skip": f"zeros in place of what {kernel} computes",
        "guard": f"every index that {kernel} checks kept within its bound",
        "finite-mask": f"a finite number where {kernel} fills in minus infinity",
    }
    others = f" (in all its {shared} launches)" if shared > 1 else ""
    code = {
        "skip": (f"# launch {launch}: {kernel}", "zeros"),
        "guard": ("table[index]", "table[index.clamp(0, len(table) - 1)]"),
        "finite-mask": ("masked_fill(mask, float('-inf'))", "masked_fill(mask, -1e30)"),
    }
    return Intervention(
        key=f"launch:{launch}:{how}",
        kind=Kind.KERNEL,
        what=f"the call with {words[how]}{others}",
        options=Options(package=package),
        before_code=code[how][0],
        after_code=code[how][1],
        spelling=("--launch", str(launch), "--as", how),
        hides=how != "finite-mask",
    )


def not_replaced(launch: int, kernel: str, how: str, why: str) -> Intervention:
    """A launch that cannot be done that way, and why."""
    return Intervention(
        key=f"launch:{launch}:{how}",
        kind=Kind.KERNEL,
        what=f"the call with launch {launch} ({kernel}) done as {how}",
        unavailable=why,
        spelling=("--launch", str(launch), "--as", how),
    )


def spelled(edit: Edit) -> tuple[str, ...]:
    return ("--kernel", edit.kernel, "--replace", edit.old, edit.new)


HOWS: dict[How, Callable[[Kernel], str]] = {
    "guard": with_bounds_kept,
    "finite-mask": with_finite_mask,
    "skip": with_zeros,
}


async def edit_kernel(context: Context, call: TriedCall, edit: Edit) -> Intervention:
    """The intervention of one replacement, with its package made.

    Raises `ProblemError`: no such kernel, a text that does not occur exactly once, a replacement with side
    effects, or one that does not compile.
    """
    package = _package(call)
    kernel = kernel_named(package, edit.kernel)
    made = await _made(context, call, package, kernel, replaced_once(kernel, edit.old, edit.new))
    return edited(edit, made.package)


async def with_literal(context: Context, call: TriedCall, literal: literals_Literal, new: float) -> Path:
    """A copy of the package in which a kernel has `new` for that literal. Raises `ProblemError`."""
    package = _package(call)
    kernel = kernel_named(package, literal.kernel)
    return (await _made(context, call, package, kernel, with_number(kernel, literal.value, new))).package


async def replace_launch(context: Context, call: TriedCall, launch: int, how: str) -> Intervention:
    """The intervention of one launch done another way, with its package made.

    One that cannot be done says why in `unavailable`. Raises `ProblemError` for an unknown launch or way.
    """
    package = _package(call)
    wrapper = read_wrapper(package.wrapper_text, package.kernel_text)
    if not 0 <= launch < len(wrapper.run.launches):
        raise ProblemError("no such launch", value=launch, allowed=f"0 to {len(wrapper.run.launches) - 1}")
    name = wrapper.run.launches[launch].kernel
    change = next((change for known, change in HOWS.items() if known == how), None)
    if how == "eager":
        why = "an eager operator in place of a launch is made by `repair`, which writes a package of its own"
        return not_replaced(launch, name, how, why)
    if change is None:
        raise ProblemError("no such way to do a launch", value=how, allowed=", ".join((*HOWS, "eager")))
    try:
        kernel = kernel_named(package, name)
        source = change(kernel)
    except ProblemError as problem:
        return not_replaced(launch, name, how, str(problem))
    made = await _made(context, call, package, kernel, source)
    known_how: How = next(known for known in HOWS if known == how)
    return relaunched(launch, name, known_how, made.package, len(launches_of(package, name)))


def _package(call: TriedCall) -> Package:
    path = call.request.get("package")
    if path is None:
        raise ProblemError("kernels are changed in a .pt2 package", value=str(call.request.get("library")))
    return open_package(Path(str(path)), str(call.request.get("model_name", "model")))


async def _made(
    context: Context, call: TriedCall, package: Package, kernel: Kernel, source: str
) -> Interposed:
    make = interpose if kernel.kind == "cpp" else recompile_triton
    return await make(
        package.path,
        kernel,
        source,
        context,
        model_name=package.model_name,
        python=call.python,
        env=call.env,
    )
