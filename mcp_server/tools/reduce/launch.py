"""Replays a single launch: a script with the kernel's source and its recorded inputs."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcp_server.errors import ProblemError
from mcp_server.jobs.types import Command, Finished
from mcp_server.model import ExportedWorkload, PackageWorkload, ScriptWorkload
from mcp_server.package.archive import open_package
from mcp_server.package.kernels import Kernel
from mcp_server.package.statements import evaluate
from mcp_server.package.wrapper import read_wrapper
from mcp_server.probes.build import instrument
from mcp_server.probes.commands import Options, read_recorded, safe_flags
from mcp_server.tools.capture import capture
from mcp_server.tools.compile_with_flags import compiled_package
from mcp_server.tools.context import Context, Event, WorkerRun, gpus_of
from mcp_server.tools.failure import read_failure
from mcp_server.tools.first_bad import Choice, Model, find_first_bad
from mcp_server.tools.locate_fault import captured_call
from mcp_server.tools.probe_backend import observe, unset_arguments
from mcp_server.tools.reduce.failing import (
    ALONE,
    SCRIPT,
    SMALL,
    FailureShown,
    Reduced,
    of_ending,
    of_script,
    one_line,
)
from mcp_server.tools.requests import run_request

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
    """One argument as it was before the launch: a tensor in the file of inputs, or a plain number."""

    parameter: str
    number: str = ""
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    device: str = "cpu"

    @property
    def is_tensor(self) -> bool:
        return not self.number


# How every such script begins; it is run with torch alone, by whom it is given to.
HEADER = Path(__file__).with_name("launch_header.template")

CPP = '''
FLAGS = {flags!r}


def build():
    """Compile kernel.cpp against torch's headers; its library."""
    root = os.path.dirname(torch.__file__)
    include = [os.path.join(root, "include"), os.path.join(root, "include/torch/csrc/api/include")]
    include.append(sysconfig.get_path("include"))
    libraries = ["-L" + os.path.join(root, "lib"), "-ltorch_cpu", "-lc10"]
    target = os.path.join(tempfile.mkdtemp(), "kernel.so")
    command = [os.environ.get("CXX", "g++"), *FLAGS, "-w", *("-I" + path for path in include)]
    command += ["-shared", "-fPIC", os.path.join(HERE, "kernel.cpp"), "-o", target, *libraries]
    subprocess.run(command, check=True)
    return ctypes.CDLL(target)


def launch(arguments):
    kernel = build().{symbol}
    kernel.restype = None
    print("phase: calling", flush=True)
    kernel({call})
'''

TRITON = """

def launch(arguments):
    sys.path.insert(0, HERE)
    from kernel import {symbol}

    print("phase: calling", flush=True)
    {symbol}[{grid}]({call})
    torch.cuda.synchronize()
"""

MAIN = """

UNSET = {unset!r}  # before the launch nothing was written there
KNOWN_AFTER = {after!r}

if __name__ == "__main__":
    arguments = {{
{arguments}
    }}
    launch(arguments)
    status = judge(arguments)
    print("exit status", status, flush=True)
    sys.exit(status)
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
    beside = f"the folder inputs and {name}"
    head = HEADER.read_text().format(title=replay.title, torch=replay.torch, needs=needs, files=beside)
    tensors = "\n".join(_tensor(one) for one in replay.recorded if one.is_tensor)
    main = MAIN.format(unset=replay.unset, after=replay.after, arguments=tensors)
    return {"repro.py": head + body + main, name: text}, notes


def _tensor(one: Recorded) -> str:
    layout = f"{one.shape}, {one.stride}, {one.device!r}"
    return f'        "{one.parameter}": place("{one.parameter}", {layout}),'


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
        words.append(pointer if one.is_tensor else f"ctypes.{kind}({one.number})")
    flags = [flag for flag in safe_flags(read_recorded(code)).kept if not flag.startswith("-W")]
    return CPP.format(flags=flags, symbol=kernel.symbol, call=", ".join(words))


def triton_source(kernel: Kernel) -> str:
    """The kernel's source without Inductor's launcher around it, so that it can be launched directly."""
    return _DECORATOR.sub("", textwrap.dedent(kernel.source)).strip() + "\n"


def _triton(kernel: Kernel, recorded: Sequence[Recorded]) -> tuple[str, list[str]]:
    numbers = {one.parameter: one.number for one in recorded if not one.is_tensor}
    names = _parameters(kernel)
    constants, notes = _constants(kernel, names)
    words = []
    for name in names:
        if name in constants:
            words.append(f"{name}={constants[name]!r}")
        elif name in numbers:
            words.append(f"{name}={numbers[name]}")
        elif any(one.parameter == name for one in recorded):
            words.append(f'{name}=arguments["{name}"]')
        else:
            raise ProblemError("an argument of the launch was not recorded", value=name)
    words += [f"num_warps={kernel.num_warps}"] if kernel.num_warps else []
    call = ", ".join(words)
    return TRITON.format(symbol=kernel.symbol, grid=_grid(kernel, numbers), call=call), notes


def _parameters(kernel: Kernel) -> list[str]:
    match = re.search(rf"def {re.escape(kernel.symbol)}\((.*?)\)\s*(?:->[^:]*)?:", kernel.source, re.S)
    if not match:
        raise ProblemError("the kernel's signature cannot be read", value=kernel.name)
    return [part.partition(":")[0].partition("=")[0].strip() for part in match[1].split(",") if part.strip()]


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


def _grid(kernel: Kernel, numbers: Mapping[str, str]) -> tuple[int, ...]:
    values = {name: int(value) for name, value in numbers.items() if re.fullmatch(r"-?\d+", value)}
    sizes = [evaluate(expression, values) for expression in kernel.grid]
    if any(size is None for size in sizes):
        raise ProblemError("the grid of the launch cannot be computed", value=", ".join(kernel.grid))
    return tuple(int(size) for size in sizes if size is not None)


# A fault then ends the launch that made it, and not a later one.
BLOCKING = {"CUDA_LAUNCH_BLOCKING": "1"}
GENERATED = ("cpp", "triton", "user_triton")


async def reduce_launch(
    context: Context, workload: PackageWorkload | ExportedWorkload | ScriptWorkload, launch: int | None
) -> Reduced:
    """A script that makes launch number `launch` alone, from the values that it was given in this call.

    By default the launch that first wrote a bad value, or in which the call ended. The kernel's source is the
    package's own. Raises ProblemError for a launch that is no generated kernel, and when none is chosen and
    every launch is healthy.
    """
    called = await _package(context, workload)
    called = called.model_copy(update={"env": {**BLOCKING, **called.env}})
    package = open_package(called.package, called.model_name)
    model = Model(package, read_wrapper(package.wrapper_text, package.kernel_text))
    number = await _suspect(context, called, model) if launch is None else launch
    kernel = kernel_of(model, number)
    seen = seen_in(await record(context, called, number), model, number)
    directory = context.fresh("reproduction")
    notes = write(replay(seen, model, kernel), seen.arguments, directory)
    finished = await run_alone(context, called, directory, gpus_of(package.device_type, called.device_index))
    return _result(context, seen.failure, finished, [str(context.python_for(called))], directory, notes)


@dataclass(frozen=True)
class SeenLaunch:
    """Events of one launch's arguments, names of those that held nothing before it, and how it failed."""

    number: int
    arguments: list[Event]
    unset: frozenset[str]
    failure: FailureShown | None
    torch: str


def seen_in(done: WorkerRun, model: Model, number: int) -> SeenLaunch:
    """Launch `number` in what `record` saw."""
    arguments = [event for event in done.all("argument") if event["launch"] == number]
    written = {event["name"] for event in arguments if event["role"] == "written"}
    unset = frozenset(written.union(unset_arguments(model).get(number, ())))
    version = (done.last("torch") or {"version": ""})["version"]
    return SeenLaunch(number, arguments, unset, _failure(done, arguments, unset), str(version))


def replay(seen: SeenLaunch, model: Model, kernel: Kernel) -> Replay:
    """What a script must know to make that launch alone."""
    how = one_line(str(seen.failure or "healthy"))
    return Replay(
        title=f"Launch {seen.number} of an AOTInductor package, {kernel.name}: {how}",
        torch=seen.torch,
        kernel=kernel,
        recorded=_recorded(seen.arguments),
        unset=tuple(sorted({e["parameter"] for e in seen.arguments if e["name"] in seen.unset})),
        after=tuple(sorted({e["parameter"] for e in _saved(seen.arguments, "after")})),
        code=model.package.kernel_text or "",
    )


async def _package(
    context: Context, workload: PackageWorkload | ExportedWorkload | ScriptWorkload
) -> PackageWorkload:
    if isinstance(workload, PackageWorkload):
        return workload
    if isinstance(workload, ExportedWorkload):
        return await compiled_package(context, workload, {})
    called, why = captured_call(await capture(context, workload), workload)
    if called is None:
        raise ProblemError(f"the script makes no call that could be taken: {why}", value=str(workload.script))
    return called


async def _suspect(context: Context, called: PackageWorkload, model: Model) -> int:
    """The launch that first wrote a bad value, or after whose begin nothing more was seen."""
    seen = await observe(context, called, model, Choice(), save=False, stop=False)
    bad = find_first_bad(seen.launches, model)
    if bad is not None and bad.launch is not None:
        return bad.launch
    last = seen.launches.last if seen.run.last("called") is None else None
    if last is not None and last.launch is not None:
        return last.launch
    raise ProblemError(
        "no launch of this call fails or makes a value that is not finite",
        allowed="launch=N to replay a healthy one",
        next_call="reduce with scope graph, or diagnose",
    )


def kernel_of(model: Model, number: int) -> Kernel:
    """The kernel of a launch. Raises `ProblemError` for no such launch, or none with a source."""
    launch = model.launch(number)
    if launch is None:
        raise ProblemError("no such launch", value=number, allowed=f"0 to {len(model.wrapper.launches) - 1}")
    if launch.kind not in GENERATED or launch.kernel not in model.wrapper.kernels:
        raise ProblemError(
            f"launch {number} calls {launch.callee}, which has no source in the package",
            allowed="a launch of a generated or user-written kernel",
            next_call="reduce with scope graph",
        )
    return model.wrapper.kernels[launch.kernel]


async def record(context: Context, called: PackageWorkload, number: int) -> WorkerRun:
    """Run once more and save what the launch is given and what it leaves."""
    python = context.python_for(called)
    rebuilt = await instrument(called.package, Options(), context, python=python, env=called.env)
    directory = context.fresh("record")
    tensors = directory / "tensors"
    tensors.mkdir()
    preload = {"LD_PRELOAD": " ".join(rebuilt.preload)} if rebuilt.preload else {}
    request = {
        **run_request(called),
        "package": rebuilt.package,
        "launches": [number],
        "unset_too": True,
        "save": tensors,
    }
    return await context.worker(
        "observe",
        request,
        directory=directory,
        env={**called.env, **preload},
        python=python,
        cwd=called.cwd,
        timeout_s=called.timeout_s,
    )


def _saved(arguments: Sequence[Event], phase: str) -> list[Event]:
    return [event for event in arguments if event["phase"] == phase and event.get("saved")]


def _recorded(arguments: Sequence[Event]) -> tuple[Recorded, ...]:
    """The arguments before the launch. Raises `ProblemError` when the launch was never reached."""
    before = [event for event in arguments if event["phase"] == "before"]
    if not before:
        raise ProblemError("the call ended before that launch", next_call="trace_launches")
    return tuple(_argument(event) for event in before)


def _argument(event: Event) -> Recorded:
    if "value" in event:
        return Recorded(event["parameter"], number=str(event["value"]))
    if not event.get("saved"):
        raise ProblemError("a tensor of the launch was too large to be saved", value=event["name"])
    layout = tuple(event["shape"]), tuple(event["stride"])
    return Recorded(event["parameter"], "", *layout, device=str(event["device"]))


def _failure(done: WorkerRun, arguments: Sequence[Event], unset: Collection[str]) -> FailureShown | None:
    """How this launch failed in the call; None when it did not."""
    after = [event for event in arguments if event["phase"] == "after"]
    failure = read_failure(done.finished)
    if not after and failure is not None:
        return of_ending(done.finished, failure, "calling")
    was = {e["name"] for e in arguments if e["phase"] == "before" and e["name"] not in unset and _bad(e)}
    new = [event for event in after if _bad(event) and event["name"] not in was]
    nan = any(event.get("nan") for event in new)
    return FailureShown(kind="not_finite", phase="calling", nan=nan) if new else None


def _bad(event: Event) -> bool:
    return bool(event.get("nan") or event.get("inf"))


def write(replay: Replay, arguments: Sequence[Event], directory: Path) -> list[str]:
    """Write the script with its files; what was assumed, and what is large."""
    texts, notes = files(replay)
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    inputs = directory / "inputs"
    inputs.mkdir()
    for event in arguments:
        if event.get("saved"):
            shutil.copyfile(event["saved"], inputs / f"{event['parameter']}-{event['phase']}.safetensors")
    size = sum(path.stat().st_size for path in inputs.iterdir())
    notes.append("the folder inputs holds values of the workload")
    return [*notes, f"the recorded values take {size} bytes"] if size > SMALL else notes


async def run_alone(
    context: Context, called: PackageWorkload, directory: Path, gpus: tuple[int, ...] | None
) -> Finished:
    """Run the script in `directory`."""
    argv = (str(context.python_for(called)), SCRIPT)
    command = Command(argv=argv, cwd=directory, env=ALONE, timeout_s=called.timeout_s, gpus=gpus)
    return await context.run(command, "reproduction-run", runs=1)


def _result(
    context: Context,
    failure: FailureShown | None,
    finished: Finished,
    python: list[str],
    directory: Path,
    notes: list[str],
) -> Reduced:
    shown = of_script(finished)
    same = failure.same_cause_as(shown) if failure is not None else shown is None
    return Reduced(
        outcome="reduced" if same and failure else "replayed" if same else "not_reduced",
        scope="launch",
        summary=_summary(failure, shown, same),
        failure=failure,
        command=shlex.join([*python, str(directory / SCRIPT)]),
        exit_status=finished.returncode,
        files=[context.artifact(path, path.name) for path in sorted(directory.rglob("*")) if path.is_file()],
        notes=notes,
        log=context.artifact(finished.output, "output of the reproduction"),
        cost=context.cost.cost(),
    )


def _summary(failure: FailureShown | None, shown: FailureShown | None, same: bool) -> str:
    if failure is None:
        return (
            "The launch writes the same values again; nothing is wrong that it shows by itself."
            if same
            else (f"The launch was healthy in the call, and replayed it is not: {shown}.")
        )
    if same:
        return f"The launch alone fails in the same way: {str(shown).rstrip('.')}."
    return f"The launch failed in the call ({failure}), but replayed alone it shows {shown or 'no fault'}."
