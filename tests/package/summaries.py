"""Summaries of wrappers: `python -m tests.package.summaries` writes `wrappers.summary.txt` again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mcp_server.package.archive import Package, open_package, read_constants
from mcp_server.package.dataflow import Dataflow
from mcp_server.package.launches import Argument, Launch
from mcp_server.package.members import DirectoryContainer, ModelFiles
from mcp_server.package.signature import read_signature
from mcp_server.package.view import PackageView
from mcp_server.package.wrapper import read_wrapper
from tests.conftest import Zoo
from tests.recorded import RECORDINGS

WRAPPERS = RECORDINGS / "wrappers"
GOLD = Path(__file__).with_name("wrappers.summary.txt")
SUMMARISED = (
    "computed_index.torch-2.13-cpu",
    "folding.torch-2.13-cpu",
    "lazy_shift.torch-2.15-cuda",
    "plugin.torch-2.9-cpu",
    "scatter.torch-2.8-cpu",
    "scatter.torch-2.15-cpu",
)
"""One for each release, device and kind of launch: the other wrappers have no line of another kind."""


def recorded(name: str, compiled_by: str = "torch-2.11-cuda") -> Any:
    """Read a recorded wrapper."""
    return read_wrapper((WRAPPERS / f"{name}.{compiled_by}.cpp").read_text())


def view_of(name: str, compiled_by: str = "torch-2.11-cuda") -> PackageView:
    """A recorded wrapper, with its recorded C++ kernels, as a package."""
    container = DirectoryContainer(RECORDINGS)
    wrapper, kernels = (
        next((each for each in container.members if each.name == f"{folder}/{name}.{compiled_by}.cpp"), None)
        for folder in ("wrappers", "kernels")
    )
    assert wrapper is not None
    files = ModelFiles("model", (wrapper,), wrapper_source=wrapper, kernel_source=kernels)
    return PackageView(Package(RECORDINGS, container, ("model",), files))


def summary(wrapper: Any) -> str:
    """Describe signature, kernels, tensors, launches with roles and last writers, transfers and problems."""
    return "\n".join([*_lines(wrapper), ""])


def _interface(text: str) -> Iterator[str]:
    """Yield the lines for the compiled signature and the constants."""
    signature = read_signature(text)
    for item in signature.inputs:
        dims = [f"{d.size or d.expression} of {d.lower}..{d.upper}" for d in item.dims]
        dims = [each.removesuffix(" of None..None") for each in dims]
        yield f"{item.label} {item.dtype} {dims} {item.strides} {item.device_type}"
    for symbol in signature.symbols:
        yield f"{symbol.symbol} = {symbol.solution or symbol.name} {symbol.what} {symbol.dim}"
    for each in read_constants(text):
        yield f"constant {each.name}: {each.kind} {each.fqn} {each.dtype} {each.shape} {each.device_type}"
    yield f"notes {signature.notes} problems {signature.problems}"


def _lines(wrapper: Any) -> Iterator[str]:
    yield from _interface(wrapper.text)
    for kernel in wrapper.kernels.values():
        blocks = f"warps {kernel.num_warps} shared {kernel.shared_bytes} {kernel.block_sizes} {kernel.grid}"
        symbol = kernel.symbol if kernel.symbol != kernel.name else "same"
        text = f"kernel {kernel.name}: {kernel.kind} {symbol} {kernel.cubin} {blocks}"
        yield text.removesuffix("warps None shared None {} ()")
    for body in filter(None, (wrapper.folding, wrapper.run)):
        yield f"{body.name}:"
        for buffer in body.buffers.values():
            layout = f" {buffer.dtype} {buffer.sizes} {buffer.strides} {buffer.offset}"
            known = "" if buffer.sizes is None else layout
            yield f"{buffer.name}: {buffer.kind} {buffer.position} storage {buffer.storage}{known}"
        flow = Dataflow(body)
        for launch in body.launches:
            yield from _launch(wrapper, flow, launch)
    for transfer in wrapper.run.transfers:
        yield f"line {transfer.line}: {transfer.callee} {transfer.reads} -> {transfer.writes}"
    for symbol in wrapper.symbols.values():
        yield f"line {symbol.line}: {symbol.name} = {symbol.expression} ({symbol.kind})"
    for index, name in wrapper.run.outputs.items():
        yield f"output {index}: {name}"
    yield from (f"folded {index}: {name}" for name, index in wrapper.folded.items())
    for problem in wrapper.problems:
        yield f"line {problem.line}: not understood: {problem.what}"


def _launch(wrapper: Any, flow: Dataflow, launch: Launch) -> Iterator[str]:
    where = " / ".join(block.header for block in launch.context)
    checked = "" if launch.checked else " unchecked"
    name = f"{launch.kind} {launch.kernel}:{launch.handle}"
    yield f"{launch.index} line {launch.line}: {name}{checked} {where}".rstrip()
    for argument in launch.arguments:
        if argument.kind != "context":
            yield f" {_argument(argument)}{_written_by(flow, launch, argument)}"
    if grid := wrapper.grid(launch):
        yield f" grid {' , '.join(grid)}"


def _argument(argument: Argument) -> str:
    seen = argument.view
    view = f" as {seen.sizes} {seen.strides} {seen.offset}" if seen else ""
    partial = " partly" if argument.partial else ""
    value = f"{argument.target} {argument.role}{partial}{view}" if argument.is_tensor else argument.expression
    return f"{argument.name or argument.position}: {argument.kind} {value}"


def _written_by(flow: Dataflow, launch: Launch, argument: Argument) -> str:
    if not argument.is_tensor or argument.role == "written" or not argument.target:
        return ""
    writers = [f"line {step.node.line}" for step in flow.last_writers(argument.target, launch.index)]
    return f" <- {', '.join(writers)}" if writers else ""


def read(zoo: Zoo, name: str) -> Any:
    package = open_package(zoo(name))
    return read_wrapper(package.wrapper_text, package.kernel_text)


def all_summaries() -> str:
    """The summaries of the wrappers in `SUMMARISED`, each below a line with its name."""
    texts = ((name, (WRAPPERS / f"{name}.cpp").read_text()) for name in SUMMARISED)
    return "\n".join(f"# {name}\n{summary(read_wrapper(text))}" for name, text in texts)


if __name__ == "__main__":
    GOLD.write_text(all_summaries())
