"""Replays a single launch: a script with the source of its kernel, or a changed one, and recorded inputs."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from mcp_server.errors import ProblemError
from mcp_server.jobs.command import Finished
from mcp_server.model import ExportedWorkload, PackageWorkload, ScriptWorkload
from mcp_server.package.kernels import Kernel
from mcp_server.package.terms.sizes import evaluate
from mcp_server.package.view import PackageView, view_package
from mcp_server.probes.build import instrument
from mcp_server.probes.commands import Options, read_recorded, safe_flags
from mcp_server.runtime.context import Context, WorkerRun, gpus_of
from mcp_server.runtime.failure import read_failure
from mcp_server.tools.capture import capture
from mcp_server.tools.compile_with_flags import compiled_package
from mcp_server.tools.kernel_io import Choice, find_first_bad, last_of
from mcp_server.tools.locate_fault import captured_call
from mcp_server.tools.probe_backend import observe, unset_arguments
from mcp_server.tools.reduce.failing import (
    SCRIPT,
    SMALL,
    FailureShown,
    Reduced,
    of_ending,
    of_script,
    one_line,
    run_script,
)
from mcp_server.tools.requests import run_request
from mcp_server.tools.run_deterministic import BLOCKING
from mcp_server.worker import events
from mcp_server.worker.events import Argument

CPP_FILE = "kernel.cpp"
TRITON_FILE = "kernel.py"

_DECORATOR = re.compile(r"^@triton_heuristics\.\w+\(\n.*?^\)\n", re.M | re.S)
_CONSTANTS = re.compile(r"'constants': (\{[^{}]*\})")
_BLOCK = re.compile(r"\(\((\w+) \+ \((\d+)L? - 1L?\)\) / \((\d+)L?\)\)")
_CONSTEXPR = re.compile(r"(\w+)\s*:\s*tl\.constexpr")
_CTYPES = {
    "int64_t": "c_int64", "int32_t": "c_int32", "int": "c_int", "double": "c_double", "float": "c_float",
    "bool": "c_bool", "long": "c_long",
}  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """One argument as it was before the launch: a tensor in the file of inputs, or a plain `number`."""

    parameter: str
    number: str = ""
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    device: str = "cpu"


# Such a script is run with torch alone, by anyone who gets it.
SCRIPT_TEMPLATE = Path(__file__).with_name("launch_script.template")
CPP_TEMPLATE = Path(__file__).with_name("launch_cpp.template")
TRITON = """

def launch(arguments):
    sys.path.insert(0, HERE)
    from kernel import {symbol}

    print("phase: calling", flush=True)
    {symbol}[{grid}]({call})
    torch.cuda.synchronize()
"""


@dataclass(frozen=True)
class Replay:
    """What a script must know: parameters that held nothing before, and those recorded after the launch.

    `code` is the text that ends with the recorded compile command of C++ kernels.
    """

    title: str
    torch: str
    kernel: Kernel
    recorded: tuple[Recorded, ...]
    unset: tuple[str, ...]
    after: tuple[str, ...]
    code: str


def files(replay: Replay) -> tuple[dict[str, str], list[str]]:
    """Files by name, and what was assumed.

    Raises `ProblemError` for a kernel without a source, or whose grid cannot be computed.
    """
    kernel = replay.kernel
    if not kernel.source:
        raise ProblemError("the package holds no source of the kernel", value=kernel.name)
    if kernel.kind == "cpp":
        name, text, needs = CPP_FILE, f"#include <torch/csrc/inductor/cpp_prefix.h>\n{kernel.source}\n", ""
        body, notes = _cpp(kernel, replay.recorded, replay.code), list[str]()
    else:
        name, text, needs = TRITON_FILE, triton_source(kernel), ", Triton and a GPU"
        body, notes = _triton(kernel, replay.recorded)
    tensors = "\n".join(
        f'        "{one.parameter}": place("{one.parameter}", {one.shape}, {one.stride}, {one.device!r}),'
        for one in replay.recorded
        if not one.number
    )
    script = SCRIPT_TEMPLATE.read_text().format(
        title=replay.title,
        torch=replay.torch,
        needs=needs,
        files=f"the folder inputs and {name}",
        launch=body,
        unset=replay.unset,
        after=replay.after,
        arguments=tensors,
    )
    return {SCRIPT: script, name: text}, notes


def _cpp(kernel: Kernel, recorded: Sequence[Recorded], code: str) -> str:
    """Compiles the kernel with the recorded flags, and calls it with its arguments by position."""
    by_name = {one.parameter: one for one in recorded}
    words = []
    for parameter in kernel.parameters:
        one = by_name.get(parameter.name)
        if one is None:
            raise ProblemError("an argument of the launch was not recorded", value=parameter.name)
        kind = _CTYPES.get(parameter.type.removeprefix("const ").strip(), "c_int64")
        pointer = f'ctypes.c_void_p(arguments["{parameter.name}"].data_ptr())'
        words.append(f"ctypes.{kind}({one.number})" if one.number else pointer)
    flags = [flag for flag in safe_flags(read_recorded(code)).kept if not flag.startswith("-W")]
    return CPP_TEMPLATE.read_text().format(flags=flags, symbol=kernel.symbol, call=", ".join(words))


def triton_source(kernel: Kernel) -> str:
    """The kernel's source without Inductor's launcher around it, so that it can be launched directly."""
    return _DECORATOR.sub("", textwrap.dedent(kernel.source)).strip() + "\n"


def _triton(kernel: Kernel, recorded: Sequence[Recorded]) -> tuple[str, list[str]]:
    """Calls the kernel with its arguments by name; and what was assumed."""
    signature = re.search(rf"def {re.escape(kernel.symbol)}\((.*?)\)\s*(?:->[^:]*)?:", kernel.source, re.S)
    if not signature:
        raise ProblemError("the kernel's signature cannot be read", value=kernel.name)
    parts = [part for part in signature[1].split(",") if part.strip()]
    names = [part.partition(":")[0].partition("=")[0].strip() for part in parts]
    constants, notes = _constants(kernel, names)
    values = {one.parameter: one.number or f'arguments["{one.parameter}"]' for one in recorded}
    values |= {name: repr(value) for name, value in constants.items()}
    missing = next((name for name in names if name not in values), None)
    if missing is not None:
        raise ProblemError("an argument of the launch was not recorded", value=missing)
    words = [f"{name}={values[name]}" for name in names]
    words += [f"num_warps={kernel.num_warps}"] if kernel.num_warps else []
    numbers = [one for one in recorded if re.fullmatch(r"-?\d+", one.number)]
    sizes = [evaluate(size, {one.parameter: int(one.number) for one in numbers}) for size in kernel.grid]
    if None in sizes:
        raise ProblemError("the grid of the launch cannot be computed", value=", ".join(kernel.grid))
    grid = tuple(int(size) for size in sizes if size is not None)
    return TRITON.format(symbol=kernel.symbol, grid=grid, call=", ".join(words)), notes


def _constants(kernel: Kernel, names: Sequence[str]) -> tuple[dict[str, object], list[str]]:
    """Values of the compile-time parameters: as recorded, from the grid, else assumed (and said)."""
    recorded = _CONSTANTS.search(kernel.source)
    found: dict[str, object] = dict(ast.literal_eval(recorded[1])) if recorded else {}
    for axis, expression in zip("XYZ", kernel.grid, strict=False):
        block = _BLOCK.search(expression)
        found.setdefault(f"{axis}BLOCK", int(block[3]) if block else 1)
    wanted = _CONSTEXPR.findall(kernel.source)
    assumed = [name for name in names if name in wanted and name not in found]
    notes = [f"{name} = 1024 is assumed: the package does not say it" for name in assumed]
    return {**{k: v for k, v in found.items() if k in names}, **dict.fromkeys(assumed, 1024)}, notes


GENERATED = ("cpp", "triton", "user_triton")


async def reduce_launch(
    context: Context, workload: PackageWorkload | ExportedWorkload | ScriptWorkload, launch: int | None
) -> Reduced:
    """A script that makes launch number `launch` alone, with the values that it got in this call.

    By default the launch that first wrote a bad value, or in which the call ended. The kernel's source is the
    package's own. Raises ProblemError for a launch that is no generated kernel, and when none is chosen and
    every launch is healthy.
    """
    if isinstance(workload, PackageWorkload):
        called = workload
    elif isinstance(workload, ExportedWorkload):
        called = await compiled_package(context, workload)
    else:
        taken, why = captured_call(await capture(context, workload), workload)
        if taken is None:
            what = f"the script makes no call that could be taken: {why}"
            raise ProblemError(what, value=str(workload.script))
        called = taken
    # A fault then ends the launch that made it, and not a later one.
    called = called.model_copy(update={"env": {**BLOCKING, **called.env}})
    model = await anyio.to_thread.run_sync(view_package, called.package, called.model_name)
    number = await _suspect(context, called, model) if launch is None else launch
    replayed = await record(context, called, model, number)
    finished = await replayed.run(context)
    failure, directory = replayed.failure, replayed.directory
    shown = of_script(finished)
    same = failure.same_cause_as(shown) if failure is not None else shown is None
    return Reduced(
        outcome="reduced" if same and failure else "replayed" if same else "not_reduced",
        scope="launch",
        summary=_summary(failure, shown, same),
        failure=failure,
        command=shlex.join([str(context.python_for(called)), str(directory / SCRIPT)]),
        exit_status=finished.returncode,
        files=[context.artifact(path, path.name) for path in sorted(directory.rglob("*")) if path.is_file()],
        notes=replayed.notes,
        log=context.artifact(finished.output, "output of the reproduction"),
        cost=context.cost.cost(),
    )


def _summary(failure: FailureShown | None, shown: FailureShown | None, same: bool) -> str:
    if failure is None and same:
        return "The launch writes the same values again; nothing is wrong that it shows by itself."
    if failure is None:
        return f"The launch was healthy in the call, and replayed it is not: {shown}."
    if same:
        return f"The launch alone fails in the same way: {str(shown).rstrip('.')}."
    return f"The launch failed in the call ({failure}), but replayed alone it shows {shown or 'no fault'}."


async def _suspect(context: Context, called: PackageWorkload, model: PackageView) -> int:
    """The launch that first wrote a bad value, or after whose begin nothing more was seen."""
    seen = await observe(context, called, model, Choice())
    bad = find_first_bad(seen.launches(), model)
    if bad is not None and bad.launch is not None:
        return bad.launch
    last = last_of(seen.launches()) if seen.run.last(events.Called) is None else None
    if last is not None and last.launch is not None:
        return last.launch
    raise ProblemError(
        "no launch of this call fails or makes a value that is not finite",
        allowed="launch=N to replay a healthy one",
        next_call="reduce with scope graph, or diagnose",
    )


def kernel_of(model: PackageView, number: int) -> Kernel:
    """The kernel of a launch. Raises `ProblemError` for no such launch, or none with a source."""
    launch = model.known_launch(number)
    if launch.kind not in GENERATED or launch.kernel not in model.wrapper.kernels:
        raise ProblemError(
            f"launch {number} calls {launch.callee}, which has no source in the package",
            allowed="a launch of a generated or user-written kernel",
            next_call="reduce with scope graph",
        )
    return model.wrapper.kernels[launch.kernel]


@dataclass(frozen=True)
class WrittenReplay:
    """The directory of a script that replays one launch; how the launch failed in the call, if it did."""

    called: PackageWorkload
    gpus: tuple[int, ...] | None
    directory: Path
    failure: FailureShown | None
    notes: list[str]

    async def run(self, context: Context) -> Finished:
        return await run_script(context, self.called, self.directory, self.gpus)


async def record(context: Context, called: PackageWorkload, model: PackageView, number: int) -> WrittenReplay:
    """Make the call once more, save what the launch reads and writes, and write the script that replays it.

    Raises `ProblemError` for a launch without a source of its kernel, and for one that cannot be recorded.
    """
    kernel = kernel_of(model, number)
    rebuilt = await instrument(called.package, Options(), context, python=called.python, env=called.env)
    observed = context.fresh("record")
    tensors = observed / "tensors"
    tensors.mkdir()
    request = {"package": rebuilt.package, "launches": [number], "unset_too": True, "save": tensors}
    done = await context.worker(
        "observe",
        {**run_request(called), **request},
        directory=observed,
        workload=called,
        env=rebuilt.environment,
    )
    arguments = [each for each in done.all(Argument) if each.launch == number]
    written = {each.name for each in arguments if each.role == "written"}
    unset = written.union(unset_arguments(model).get(number, ()))
    failure = _failure(done, arguments, unset)
    saved = [each for each in arguments if each.saved]
    how, torch = one_line(str(failure or "healthy")), done.last(events.Torch)
    texts, notes = files(
        Replay(
            title=f"Launch {number} of an AOTInductor package, {kernel.name}: {how}",
            torch=torch.version if torch is not None else "",
            kernel=kernel,
            recorded=_recorded(arguments),
            unset=tuple(sorted({each.parameter for each in arguments if each.name in unset})),
            after=tuple(sorted({each.parameter for each in saved if each.phase == "after"})),
            code=model.package.kernel_text or "",
        )
    )
    directory = context.fresh("reproduction")
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    inputs = directory / "inputs"
    inputs.mkdir()
    for each in saved:
        shutil.copyfile(str(each.saved), inputs / f"{each.parameter}-{each.phase}.safetensors")
    size = sum(path.stat().st_size for path in inputs.iterdir())
    notes.append("the folder inputs holds values of the workload")
    if size > SMALL:
        notes.append(f"the recorded values take {size} bytes")
    gpus = gpus_of(model.package.device_type, called.device_index)
    return WrittenReplay(called, gpus, directory, failure, notes)


def _recorded(arguments: Sequence[Argument]) -> tuple[Recorded, ...]:
    """The arguments before the launch. Raises `ProblemError` when the launch was never reached."""
    found = []
    for each in arguments:
        if each.phase != "before":
            continue
        if each.value is not None:
            found.append(Recorded(each.parameter, number=str(each.value)))
            continue
        if not each.saved:
            raise ProblemError("a tensor of the launch was too large to be saved", value=each.name)
        layout = tuple(each.shape or ()), tuple(each.stride or ())
        found.append(Recorded(each.parameter, "", *layout, device=str(each.device)))
    if not found:
        raise ProblemError("the call ended before that launch", next_call="trace_launches")
    return tuple(found)


def _failure(done: WorkerRun, arguments: Sequence[Argument], unset: set[str]) -> FailureShown | None:
    """How this launch failed in the call; None when it did not."""
    after = [each for each in arguments if each.phase == "after"]
    failure = read_failure(done.finished)
    if not after and failure is not None:
        return of_ending(done.finished, failure, "calling")
    bad = [each for each in arguments if each.not_finite]
    was = {each.name for each in bad if each.phase == "before"} - unset
    new = [each for each in bad if each.phase == "after" and each.name not in was]
    nan = any(each.nan for each in new)
    return FailureShown(kind="not_finite", phase="calling", nan=nan) if new else None
