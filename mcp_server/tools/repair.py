"""`repair`: a new package in which chosen launches run in eager mode, for those who cannot recompile.

The wrapper is built again from the source in the package. In place of a launch it calls the operators of the
exported program, on the buffers that the launch itself reads.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Literal

import anyio.to_thread
from pydantic import Field

from mcp_server import versions
from mcp_server.errors import ProblemError
from mcp_server.jobs.store import cause
from mcp_server.model import Artifact, Cost, PackageWorkload, Record
from mcp_server.package.launches import Argument, Launch, shifted
from mcp_server.package.members import read_text
from mcp_server.package.statements import View
from mcp_server.package.view import PackageView, view_package
from mcp_server.plurals import counted, listed, quoted
from mcp_server.probes.build import find_tools
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Options
from mcp_server.probes.model_build import ModelBuild, Tools, write_package
from mcp_server.tools.compare_with_eager import Pair, compare_pair
from mcp_server.tools.context import Context, gpus_of
from mcp_server.tools.divergence import EveryLaunch, OutputCompared, read_output
from mcp_server.tools.every_launch import LaunchFlows
from mcp_server.tools.requests import package_request
from mcp_server.worker import events
from mcp_server.worker.events import EagerCode
from mcp_server.worker.protocol import Readable


class Price(Record):
    """Median seconds of a call of the package, and of the repaired one."""

    before: float
    after: float


class Repaired(Record):
    """The new package. `outcome`: whether its outputs agree with the exported program's, or still differ."""

    outcome: Literal["agrees", "differs"]
    summary: str
    package: Path
    launches: list[int]
    operators: list[str]
    outputs: list[OutputCompared] = Field(default_factory=list)
    price: Price
    log: Artifact
    cost: Cost


async def repair(
    context: Context, workload: PackageWorkload, exported: Path, launches: Sequence[int], output: Path
) -> Repaired:
    """Write the repaired package to `output`, once a call of it came back.

    Without `launches`: all that are wrong on right inputs (compare_with_eager with every_launch).
    Raises `ProblemError`, before anything is written: an output that exists, a package without sources, no
    wrong launch, and a launch that cannot be expressed, with the node.
    """
    if output.exists() or not output.parent.is_dir():
        what = "the output is there already" if output.exists() else "the folder of the output does not exist"
        raise ProblemError(what, value=str(output), allowed="a new file in a folder that exists")
    model = await anyio.to_thread.run_sync(view_package, workload.package, workload.model_name)
    _check_package(model, launches)
    options, python, env = Options(probes=False), workload.python, workload.env
    tools = await find_tools(
        model.package.wrapper_text, options, context, python=python, cache=Cache(), env=env
    )
    release = versions.release_of(tools.toolchain.torch_version)
    if release is None or release < versions.PROXY_EXECUTOR:
        raise ProblemError(
            "the C++ of this torch cannot call operators by a list in the package",
            value=f"torch {tools.toolchain.torch_version}",
            allowed=f"torch {versions.text(versions.PROXY_EXECUTOR)} or later",
        )
    found = (await compare_pair(context, Pair(workload, exported), every=True)).every_launch
    chosen = _chosen(model, found, launches)
    assert found is not None and found.plan is not None, "_chosen refuses that"
    codes = await _codes(context, workload, model, found.plan.path, chosen)
    made = context.fresh("repair") / "repaired.pt2"
    calls = await _build(model, codes, tools, made)
    return await _tried(context, Pair(workload, exported), model, made, output, codes, calls)


def _check_package(model: PackageView, launches: Sequence[int]) -> None:
    files = model.package.files
    if files.wrapper_source is None or files.library is None:
        raise ProblemError(
            "the package holds no source of its wrapper, or no library: nothing to build it from",
            value=model.package.model_name,
            next_call="compile_with_flags on the exported program",
        )
    for number in launches:
        launch = model.launch(number) if number >= 0 else None
        if launch is None:
            allowed = f"0 to {len(model.wrapper.launches) - 1}"
            raise ProblemError("no such launch", value=number, allowed=allowed)
        if any(argument.fresh for argument in launch.tensors):
            raise ProblemError(
                "the launch cannot be repaired: it makes the tensors that it returns",
                value=f"{number} ({launch.kernel})",
                allowed="launches that write into buffers: kernels, and operators with `_out`",
            )


def _chosen(model: PackageView, found: EveryLaunch | None, launches: Sequence[int]) -> list[int]:
    """The launches to repair. Raises `ProblemError` for none, and for those without nodes."""
    if found is None or found.plan is None:
        raise ProblemError(found.summary if found is not None else "no launch was judged")
    whys = {each.launch: each.why for each in found.unjudged}
    for number in launches:
        if number in whys:
            raise ProblemError(f"the launch cannot be done in eager mode: {whys[number]}", value=number)
    doubtless = [each.launch for each in found.wrong if not (each.suspects or each.constant or each.tf32)]
    chosen = sorted(set(launches or doubtless))
    if not chosen:
        raise ProblemError(f"nothing to repair: {found.summary}", allowed="launches=the ones to repair")
    _check_package(model, chosen)
    return chosen


async def _codes(
    context: Context, workload: PackageWorkload, model: PackageView, plan: Path, launches: Sequence[int]
) -> list[EagerCode]:
    """The launches as calls. Raises `ProblemError` with the node that cannot be expressed."""
    inputs = [buffer.name for _, buffer in sorted(model.wrapper.inputs().items())]
    symbols = model.wrapper.symbols.values()
    request = {
        "plan": plan,
        "launches": list(launches),
        "readable": {number: _readable(model, inputs, number) for number in launches},
        "sizes": {
            f"{inputs.index(symbol.tensor)}.{symbol.dim}": symbol.name
            for symbol in symbols
            if symbol.kind == "size" and symbol.tensor in inputs
        },
    }
    done = await context.worker("eager_calls", request, workload=workload, gpus=())
    for refused in done.all(events.NotRepairable):
        launch = model.wrapper.launches[refused.launch]
        raise ProblemError(
            f"launch {launch.index} ({launch.kernel}) cannot be repaired: {refused.what}",
            value=launch.index,
            next_call="bisect, for a workaround at compile time",
        )
    if done.finished.ending != "exit" or not done.phases("finished"):
        raise ProblemError(f"the program's nodes cannot be read: {done.why}")
    return done.all(events.EagerCode)


def _readable(model: PackageView, inputs: Sequence[str], number: int) -> Readable:
    """What a launch can get at when it runs."""
    flow = LaunchFlows(model).of.get(number)
    launch, buffers = model.wrapper.launches[number], model.wrapper.buffers
    read = [name for name in launch.reads if name in buffers]
    writes: dict[str, list[str]] = {}
    for name in launch.writes:
        argument = written_argument(launch, name)
        layout = layout_of(model, argument) if argument is not None else None
        writes[name] = list(layout.sizes) if layout is not None else []
    earlier = {name for each in model.wrapper.launches[:number] for name in each.writes}
    earlier |= {each.writes for each in model.wrapper.run.transfers if each.start < launch.start}
    changed = {buffers[name].storage for name in earlier if name in buffers}
    constants = [one for one in model.package.constants if one.fqn and not one.folded]
    return {
        "reads": {name: buffers[name].dtype or "" for name in read},
        "writes": writes,
        # What nobody reads is memory that the kernel works in.
        "wanted": [name for name in writes if flow is None or flow["readers"].get(name)],
        "inputs": {
            str(inputs.index(name)): name
            for name in read
            if name in inputs and buffers[name].storage not in changed
        },
        "constants": {
            one.fqn: (one.name, one.dtype, list(one.shape))
            for one in constants
            if one.name in buffers and buffers[one.name].storage not in changed
        },
    }


async def _build(model: PackageView, codes: Sequence[EagerCode], tools: Tools, target: Path) -> list[str]:
    """Write the package with these launches replaced; the operators that it then calls."""
    package = model.package
    library, known = package.files.library, package.files.proxy_nodes
    assert library is not None, "checked"
    listed_before = json.loads(read_text(package.container, known.name))["nodes"] if known else []
    statements, nodes = {}, list(listed_before)
    for code in codes:
        statements[code.launch] = eager_statement(model, code, len(nodes))
        nodes += [{"name": "", "node": call.node} for call in code.calls if not call.scalar]
    work = target.parent
    options = replace(tools.options, statements=tuple(statements.items()))
    rebuilt = await ModelBuild(package, replace(tools, options=options), work).build()
    calls = work / "calls.json"
    calls.write_text(json.dumps({"nodes": nodes}, allow_nan=False))
    name = str(PurePosixPath(library.name).with_suffix(".json"))
    files = {**rebuilt.files, name: calls}
    await anyio.to_thread.run_sync(write_package, package.container, files, target)
    return [str(entry["node"]["target"]) for entry in nodes[len(listed_before) :]]


async def _tried(
    context: Context,
    pair: Pair,
    model: PackageView,
    made: Path,
    output: Path,
    codes: Sequence[EagerCode],
    operators: list[str],
) -> Repaired:
    """Call the new package and the old one, and write the new one where it is wanted."""
    workload = pair.workload
    packages = [made, workload.package]
    request = {**package_request(workload), "exported": pair.exported, "packages": packages}
    gpus = gpus_of(model.package.device_type, workload.device_index)
    done = await context.worker("price", request, workload=workload, gpus=gpus)
    seconds = {event.package: event.seconds for event in done.all(events.Timed)}
    if len(seconds) < len(packages):
        why = f"its call did not come back ({quoted(done.why)})"
        raise ProblemError(f"the repaired package was not written: {why}")
    price = Price(before=seconds[str(workload.package)], after=seconds[str(made)])
    outputs = [read_output(event) for event in done.all(events.Output)]
    wrong = [each.index for each in outputs if each.agreement in ("differs", "layout")]
    try:
        with made.open("rb") as source, output.open("xb") as target:  # it may have been made meanwhile
            await anyio.to_thread.run_sync(shutil.copyfileobj, source, target)
    except OSError as error:
        raise ProblemError(f"the output cannot be written: {cause(error)}", value=str(output)) from error
    launches = [code.launch for code in codes]
    ends, longer = "its outputs agree with", price.after / price.before
    if wrong:
        ends = f"output {listed([str(one) for one in wrong])} still differs from"
    return Repaired(
        outcome="differs" if wrong else "agrees",
        summary=f"{output} runs launch {listed([str(one) for one in launches])} in eager mode "
        f"({counted(len(operators), 'operator call')}); {ends} the exported program's. A call takes "
        f"{price.after * 1e3:.3g} ms, before {price.before * 1e3:.3g} ms: {longer:.2f} times as long.",
        package=output,
        launches=launches,
        operators=operators,
        outputs=outputs,
        price=price,
        log=context.artifact(done.finished.output, "output of the calls"),
        cost=context.cost.cost(),
    )


_CALL = "aoti_torch_proxy_executor_call_function(proxy_executor, {}, {}, {}, {}, {})"


def eager_statement(model: PackageView, code: EagerCode, first: int) -> str:
    """The block of a launch as calls; `first` is the number of its first call in the model's list."""
    launch = model.wrapper.launches[code.launch]
    lines = [f"{{ // launch {launch.index} ({launch.kernel}) in eager mode"]
    for name, variable, writer, written in code.buffers:
        lines.append(_as_written(model, name, variable, model.wrapper.launches[writer], written))
    numbers = count(first)
    for call in code.calls:
        if call.scalar:
            number = f"static_cast<{call.scalar}>({call.value})"
            lines.append(f"RAIIAtenTensorHandle {call.results[0]} = scalar_to_tensor_handle({number});")
            continue
        for result in call.results:
            lines.append(f"AtenTensorHandle {result}_handle;")
            lines.append(_checked(f"aoti_torch_new_uninitialized_tensor(&{result}_handle)"))
            lines.append(f"RAIIAtenTensorHandle {result}({result}_handle);")
        if launch.handle is not None:  # else the note above the launch would name the first call
            lines.append(f"// [Provenance debug handles] {call.node['target']}:{launch.handle}")
        integers, tensors = call.integers, [*call.tensors, *call.results]
        arrays = _array("int64_t", integers), _array("AtenTensorHandle", tensors)
        made = _CALL.format(next(numbers), len(integers), arrays[0], len(tensors), arrays[1])
        lines.append(_checked(made))
    for variable, value in code.stores:
        argument = written_argument(launch, variable)
        assert argument is not None, "the worker names only what the launch writes"
        target = variable if argument.view is None else _reinterpreted(variable, argument.view)
        lines.append(_checked(f"aoti_torch_copy_({target}, {value}, 0)"))
    return "\n        ".join(lines) + "\n    }"


def written_argument(launch: Launch, variable: str) -> Argument | None:
    """The argument by which a launch writes a variable."""
    return next((one for one in launch.tensors if one.target == variable and one.role != "read"), None)


def layout_of(model: PackageView, argument: Argument) -> View | None:
    """The tensor that a launch gets, in C++, from the start of its memory; None where that is not known."""
    buffer = model.wrapper.buffers.get(argument.target or "")
    if buffer is None:
        return None
    if argument.view is not None:
        offset = shifted(buffer.offset, argument.view.offset)
        return View(argument.view.sizes, argument.view.strides, offset)
    if buffer.sizes is None or buffer.strides is None:
        return None
    return View(buffer.sizes, buffer.strides, buffer.offset or "0")


def _as_written(model: PackageView, name: str, variable: str, writer: Launch, written: str) -> str:
    """A variable that the launch reads, under a new name, as the launch that wrote it saw it."""
    buffer, argument = model.wrapper.buffers[variable], written_argument(writer, written)
    layout = layout_of(model, argument) if argument is not None else None
    own = (buffer.sizes, buffer.strides, buffer.offset or "0")
    if layout is None or (layout.sizes, layout.strides, layout.offset) == own:
        return f"auto& {name} = {variable};"
    away = "0L" if layout.offset == own[2] else f"({layout.offset}) - ({own[2]})"
    return f"auto {name} = {_reinterpreted(variable, View(layout.sizes, layout.strides, away))};"


def _reinterpreted(variable: str, view: View) -> str:
    sizes, strides = (_array("int64_t", list(numbers)) for numbers in (view.sizes, view.strides))
    made = f"reinterpret_tensor_wrapper({variable}, {len(view.sizes)}, {sizes}, {strides}, {view.offset})"
    return f"wrap_with_raii_handle_if_needed({made})"


def _array(kind: str, values: list[str]) -> str:
    return f"std::array<{kind}, {len(values)}>{{{', '.join(values)}}}.data()"


def _checked(call: str) -> str:
    return f"AOTI_TORCH_ERROR_CODE_CHECK({call});"
