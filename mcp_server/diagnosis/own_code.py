"""The code that the user wrote into a model: Triton kernels, their launches and lines, and operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from mcp_server.diagnosis.case import Case
from mcp_server.model import ModelLocation, Party, ScriptWorkload
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Launch
from mcp_server.steps.reduce.variant import Changed, Variant

Change = Callable[[Kernel], str | None]

TORCHS = ("aten::", "prims::", "inductor::", "quantized::", "_c10d_functional::")  # namespaces
_LONGEST = 1 << 20  # bytes of a script


def changeable(case: Case, change: Change) -> dict[str, Launch]:
    """The first launch of each kernel whose source `change` can rewrite, by its name on the device."""
    found: dict[str, Launch] = {}
    read: set[str] = set()  # a kernel is looked at once, however often it is launched
    for launch in case.view.wrapper.launches if case.view is not None else ():
        kernel = kernel_of(launch, case)
        if kernel is None or kernel.name in read or kernel.symbol in found:
            continue
        read.add(kernel.name)
        if change(kernel):
            found[kernel.symbol] = launch
    return found


def kernel_of(launch: Launch, case: Case) -> Kernel | None:
    """The user's own Triton kernel that is launched, with its source."""
    if case.view is None or launch.kind != "user_triton":
        return None
    kernel = case.view.wrapper.kernels.get(launch.kernel)
    return kernel if kernel is not None and kernel.source else None


def changed_launches(
    tried: Mapping[str, Variant], launches: Mapping[str, Launch], more_than: float
) -> Iterator[tuple[str, Launch, Changed]]:
    """Kernels whose launch another source changed by more than that part of the largest value it wrote."""
    for symbol, variant in tried.items():
        changed = variant.changed
        if symbol in launches and changed is not None and changed.relative > more_than:
            yield symbol, launches[symbol], changed


def own_operators(case: Case) -> list[str]:
    """Operators outside torch that the package calls, as `namespace::name`."""
    nodes = case.package.proxy_nodes if case.package is not None else ()
    return sorted({node.target for node in nodes if not node.target.startswith(TORCHS)})


def users_code(case: Case) -> list[str]:
    """Kernels and operators of the user's in the package: an exported program runs the very same.

    That the two agree says nothing of what these compute.
    """
    launches = case.view.wrapper.launches if case.view is not None else ()
    kernels = {kernel.symbol for launch in launches if (kernel := kernel_of(launch, case)) is not None}
    return [*sorted(kernels), *own_operators(case)]


def script_text(case: Case) -> str:
    """The user's script, in which kernels may stand; empty where there is none, or a very long one."""
    workload = case.workload
    if not isinstance(workload, ScriptWorkload):
        return ""
    try:
        if workload.script.stat().st_size > _LONGEST:
            return ""
        return workload.script.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def line_in_script(case: Case, text: str, line: int) -> ModelLocation:
    """Line `line` of the script, whose text that is."""
    assert isinstance(case.workload, ScriptWorkload)
    code = text.splitlines()[line - 1].strip()
    return ModelLocation(file=str(case.workload.script), line=line, code=code)


def kernel_party(symbol: str, launch: Launch, lines: list[ModelLocation], case: Case) -> Party:
    """That kernel at that launch: the lines in the script, then those of the model behind the launch."""
    assert case.view is not None
    places = [*lines, *case.view.provenance(launch).locations[:3]]
    distinct = list({(place.file, place.line): place for place in places}.values())
    return Party(kind="kernel", name=symbol, launch_index=launch.index, model_locations=distinct)
