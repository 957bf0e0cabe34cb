"""The text of a script that replays one launch of a generated kernel from its recorded arguments."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcp_server.errors import ProblemError
from mcp_server.instrument.commands import read_recorded, safe_flags
from mcp_server.package.arithmetic import evaluate
from mcp_server.package.kernels import Kernel

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
