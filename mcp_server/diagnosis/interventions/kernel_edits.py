"""Makes the copies of a package that interventions on kernels load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mcp_server.diagnosis.interventions.base import Intervention
from mcp_server.diagnosis.interventions.kernel import Edit, How, edited, not_replaced, relaunched
from mcp_server.diagnosis.interventions.plan import TriedCall
from mcp_server.errors import ProblemError
from mcp_server.instrument.interpose import Interposed, interpose, kernel_named, launches_of
from mcp_server.instrument.kernel_source import (
    replaced_once,
    with_bounds_kept,
    with_finite_mask,
    with_zeros,
)
from mcp_server.instrument.triton_kernel import recompile_triton
from mcp_server.package.archive import Package, open_package
from mcp_server.package.kernels import Kernel
from mcp_server.package.wrapper import read_wrapper
from mcp_server.steps.context import Context

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
