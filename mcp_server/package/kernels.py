"""Kernels of a package: parameters, grid, sources with line numbers, and stores.

Lazy Triton kernels: with `triton.autotune_at_compile_time=False`, torch 2.14 and later first run a JIT
wrapper, then write the autotuned configuration as macros above the wrapper. The Triton source is not embedded
(torch/_inductor/codegen/cpp_wrapper_gpu.py 2.15, generate_aoti_kernel_config_header and generate_lazy).

A number, such as a Python number of the export, has its own line in a kernel: `auto tmp1 =
static_cast<float>(0.7);` in C++, `tmp1 = 0.7` or `tmp1 = tl.full([1], 0.7, tl.float32)` in Triton
(torch/_inductor/codegen, 2.8-2.15).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mcp_server.package.launches import Role, read_call, whole_number
from mcp_server.package.terms.blocks import LineCounter, split_arguments
from mcp_server.package.terms.program import Access, read_program

_DEFINE = re.compile(
    r"^#define (?P<kernel>\w+?)_(?P<field>CUBIN_PATH|MANGLED_NAME|NUM_WARPS|SHARED_MEM|[XYZ]BLOCKS|R0BLOCKS"
    r"|RSPLIT|RSPLIT_SIZE|CONFIG_INDEX|GLOBAL_SCRATCH|PROFILE_SCRATCH) (?P<value>.*)$",
    re.M,
)
_FIELD = re.compile(r"\b(?P<kernel>\w+)_result\.(?P<field>\w+)(?:\[(?P<index>\d+)\])?")
_CASE = re.compile(
    r"case (?P<config>-?\d+): grid_0 = (?P<x>[^;]*); grid_1 = (?P<y>[^;]*); grid_2 = (?P<z>[^;]*); break;"
)


LazyConfigs = dict[tuple[str, str], str]
"""Macro values by (kernel name in capitals, field). Empty if the wrapper has no such macros."""


def _resolved(text: str, configs: LazyConfigs) -> str:
    """Replace fields such as `add_0_result.xblocks[0]` in an expression with their values."""

    def value(match: re.Match[str]) -> str:
        found = configs.get((match["kernel"].upper(), match["field"].upper()), match[0])
        if match["index"] is None or found == match[0]:
            return found
        parts = found.strip("{}").split(",")
        return parts[int(match["index"])].strip() if int(match["index"]) < len(parts) else match[0]

    return _FIELD.sub(value, text) if configs else text


KernelKind = Literal["triton", "user_triton", "cpp"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel, in the order of the call in the wrapper.

    `partial` means that a write may leave elements unchanged, because the store's index is computed from data
    or unknown (user kernels).
    """

    name: str
    type: str
    role: Role
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """One compiled kernel.

    `source` is the C++ function, or the Triton text after its opening quotes (device assertions count lines
    from there). `first_line` is the line in wrapper.cpp (Triton) or kernel.cpp (C++) at which `source`
    begins. `symbol` is the name on the device or in the .so. `grid` contains C++ expressions over the
    parameters. `cubin` is a file name in the package.
    """

    name: str
    kind: KernelKind
    symbol: str
    parameters: tuple[Parameter, ...]
    line: int
    source: str = ""
    first_line: int = 0
    grid: tuple[str, ...] = ()
    cubin: str = ""
    num_warps: int | None = None
    shared_bytes: int | None = None

    @property
    def file(self) -> str:
        """The file of the package that contains `source`."""
        return "kernel.cpp" if self.kind == "cpp" else "wrapper.cpp"

    @property
    def block_sizes(self) -> dict[str, int]:
        """The block sizes in the grid's divisions: 128 for `XBLOCK` from `((xnumel + (128 - 1)) / (128))`."""
        divided = [_DIVIDED.search(text) for text in self.grid]
        return {f"{found['axis'].upper()}BLOCK": int(found["size"]) for found in divided if found is not None}


_PROTOTYPE = re.compile(
    r'^extern\s+"C"\s+void\s+(?P<name>\w+)\s*\((?P<parameters>[^(){};]*)\)\s*(?P<end>[;{])', re.M
)
_WRAPPER = re.compile(r"^static\s+[^;{}()]*(?:\(\([\w, ]*\)\)\s*)?void\s+call_(?P<name>\w+)\s*\(", re.M)
_QUOTED = re.compile(r"async_compile\.triton\(\s*'(?P<symbol>[^']*)',\s*(?P<quote>'''|\"\"\")")
_GRID = re.compile(r"uint32_t grid_\d\s*=\s*(?P<size>[^;]*);")
_DIVIDED = re.compile(r"(?:\b|_)(?P<axis>[xyz])numel \+ \((?P<size>\d+) - 1\)")
_TOLD_BY_NAME = re.compile(r"(?:in|out|in_out)_ptr\d")
_TOLD_BY_CODE = re.compile(r"tl\.(?:atomic_|store\([^,\n]*tmp)")
_MUTATED = re.compile(r"'mutated_arg_names':\s*\[(?P<names>[^\]]*)\]")
_CONTEXT = frozenset({"device_idx_", "stream_", "kernels_", "cubin_dir_"})


def read_cpp_kernels(text: str, count_line: LineCounter) -> dict[str, Kernel]:
    """Read the C++ kernels in `text`, with their bodies if it defines them."""
    kernels = {}
    for match in _PROTOTYPE.finditer(text):
        name, source = match["name"], ""
        if match["end"] == "{":
            source = text[match.start() : _body_end(text, match.end())]
        declared = (" ".join(text[a:b].split()) for a, b in split_arguments(text, *match.span("parameters")))
        parameters = tuple(_cpp_parameter(each, source) for each in declared)
        line = count_line(match.start())
        kernels[name] = Kernel(name, "cpp", name, parameters, line, source, line if source else 0)
    return kernels


def _cpp_parameter(declared: str, source: str) -> Parameter:
    """Read a parameter with its role: Inductor declares only read-only pointers as `const T*`.

    `in_out_ptr` and pointers with only atomic additions also count as read.
    """
    type_, _, name = declared.rpartition(" ")
    if "*" not in type_ or type_.startswith("const "):
        return Parameter(name, type_, "read")
    word = re.escape(name)  # damaged text may contain any name
    stores = re.findall(rf"(?:\b{word}\[([^\n;]*)\] = |store\({word} \+([^\n;]*))", source)
    added = re.search(rf"atomic_add\w*(?:<[^()]*>)?\(&?{word}\b", source)
    both = name.startswith("in_out_ptr") or (added is not None and not stores)
    partial = bool(stores) and all("tmp" in "".join(index) for index in stores)
    return Parameter(name, type_, "read_write" if both else "written", partial)


def _body_end(text: str, start: int) -> int:
    """The end offset of a function that begins at the left margin; `start` is inside its braces."""
    end = text.find("\n}", start)
    return len(text) if end < 0 else end + 2


def read_triton_kernels(text: str, count_line: LineCounter) -> dict[str, Kernel]:
    """Read the Triton kernels of a wrapper by name, one for each `call_<kernel>` function."""
    macros = _DEFINE.finditer(text) if "LazyKernelCompileResult " in text else ()
    lazy = {(m["kernel"], m["field"]): m["value"].strip() for m in macros}
    return {m["name"]: _triton_kernel(text, m, count_line, lazy) for m in _WRAPPER.finditer(text)}


def _triton_kernel(text: str, match: re.Match[str], count_line: LineCounter, lazy: LazyConfigs) -> Kernel:
    name, start, end = match["name"], match.end(), _body_end(text, match.end())
    line = count_line(match.start())
    # The Triton source is in a comment.
    comment = text.find("/*", start, end)
    closed = text.find("*/", comment, end) if comment >= 0 else -1
    quoted = _QUOTED.search(text, comment, closed) if closed >= 0 else None
    source, first_line = "", 0
    if quoted:
        stop = text.find(quoted["quote"], quoted.end(), closed)
        source = text[quoted.end() : stop if stop >= 0 else closed]
        first_line = count_line(quoted.end())
    body = _resolved(text[closed if quoted else start : end], lazy)
    loaded, launched = _arguments("loadKernel(", body), _arguments("launchKernel(", body)
    # loadKernel("…/x.cubin", "symbol", …), launchKernel(fn, gx, gy, gz, warps, shared, args, stream)
    cubin, symbol = (part.strip('"') for part in loaded[:2]) if len(loaded) > 1 else ("", "")
    warps, shared = map(whole_number, launched[4:6]) if len(launched) > 5 else (None, None)
    grid = tuple(m["size"] for m in _GRID.finditer(body))
    if not grid and (chosen := lazy.get((name.upper(), "CONFIG_INDEX"))):
        # A `switch` over the autotuned configurations sets the grid.
        cases = (case for case in _CASE.finditer(body) if case["config"] == chosen)
        grid = next((case.group("x", "y", "z") for case in cases), ())
    own = "'kernel_name': 'triton_" in source or name.startswith("triton_")
    kind: KernelKind = "triton" if own else "user_triton"
    return Kernel(
        name,
        kind,
        symbol or name,
        _triton_parameters(text, start, max(text.find("){", start, end), start), source, kind),
        line,
        source,
        first_line,
        grid,
        cubin.rpartition("/")[2] if cubin.endswith("cubin") else "",
        warps,
        shared,
    )


def _arguments(call: str, text: str) -> list[str]:
    """The arguments of the first `call` in a text, if any."""
    start = text.find(call)
    found = read_call(text, start, text.find(";", start)) if start >= 0 else None
    return [text[a:b] for a, b in found.arguments] if found else []


def _triton_parameters(
    text: str, start: int, end: int, source: str, kind: KernelKind
) -> tuple[Parameter, ...]:
    """Read a Triton kernel's parameters and roles from the C++ function that calls it.

    Inductor's names in_ptr, out_ptr and in_out_ptr tell the role. If all names are of this kind, the code is
    examined only if a store is atomic or has a loaded index. The roles of other pointers come from the code,
    and from `mutated_arg_names`, the result of Triton's own analysis.
    """
    names = []
    for begin, stop in split_arguments(text, start, end):
        type_, _, name = text[begin:stop].partition("=")[0].strip().rpartition(" ")
        if name not in _CONTEXT:
            names.append((name, "tensor" if type_.rstrip("& ").endswith(f"{name}_type_") else type_))
    mutated = _MUTATED.search(source)
    listed = re.findall(r"'(\w+)'", mutated["names"]) if mutated else []
    tensors = tuple(Parameter(name, type_, "unknown") for name, type_ in names if type_ == "tensor")
    accesses: tuple[Access, ...] = ()
    if source and (
        _TOLD_BY_CODE.search(source) or not all(_TOLD_BY_NAME.match(each.name) for each in tensors)
    ):
        accesses = read_program(Kernel("", kind, "", tensors, 0, source)).accesses
    writes = [each for each in accesses if each.kind != "load"]
    stored = {name for each in writes for name in (each.parameter, *each.place.others)} | set(listed)
    updated = {each.parameter for each in writes if each.kind == "update"}
    loaded = {each.parameter for each in accesses if each.kind == "load"} if kind == "user_triton" else set()
    scattered = {each.parameter for each in writes if each.place.is_loaded}
    roles_known = bool(source) and all(each.parameter for each in writes)
    parameters = []
    for name, type_ in names:
        role: Role = "read"
        partial = False
        if type_ == "tensor" and name.startswith("in_out_ptr"):
            role = "read_write"
        elif type_ == "tensor" and (name in stored or name.startswith("out_ptr")):
            role = "read_write" if name in updated | loaded else "written"
            partial = kind == "user_triton" or name in listed or name in scattered
        elif type_ == "tensor" and not roles_known and not name.startswith("in_ptr"):
            role = "unknown"
        parameters.append(Parameter(name, type_, role, partial))
    return tuple(parameters)


_INDIRECT = re.compile(r"\b(?:in|out|in_out)_ptr\d+(?:\[[^\]\n]*| \+ [^,;\n]*)\btmp\d+")


def indexes_unchecked(source: str) -> bool:
    """Whether any C++ kernel in `source` uses computed indices and has no index check at all.

    It was then compiled with `assert_indirect_indexing` off.
    """
    kernels = source.split('extern "C"')[1:]
    return any(_INDIRECT.search(kernel) and "index out of bounds: " not in kernel for kernel in kernels)


_NUMBER = r"(?P<number>-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"
_CPP = re.compile(rf"auto tmp\d+ = static_cast<[\w:]+>\({_NUMBER}[LfU]*\);")
_TRITON = re.compile(rf"tmp\d+ = (?:tl\.full\(\[[^\]]*\], )?{_NUMBER}(?=$|, tl\.|\s)", re.M)
PLAIN = frozenset({0.0, 1.0, -1.0})  # too common to identify a kernel
CLOSE = 1e-6  # relative difference that rounding to float32 may cause


@dataclass(frozen=True)
class CodeNumber:
    """A number in the code of kernels, with the file, line and text of the line where it occurs first."""

    value: float
    location: str
    code: str


def literals_of(kernels: Iterable[Kernel]) -> list[CodeNumber]:
    """List the numbers in kernels, each once, in code order, without those in `PLAIN`."""
    found: dict[float, CodeNumber] = {}
    for kernel in kernels:
        lines, pattern = kernel.source.splitlines(), _CPP if kernel.kind == "cpp" else _TRITON
        for match in pattern.finditer(kernel.source):
            value = float(match["number"])
            at = kernel.source.count("\n", 0, match.start())
            if value not in PLAIN and value not in found:
                place = f"{kernel.file}:{kernel.first_line + at}"
                found[value] = CodeNumber(value, place, lines[at].strip())
    return list(found.values())


def same(first: float, second: float) -> bool:
    """Whether two numbers are equal after rounding to float32."""
    return abs(first - second) <= CLOSE * max(abs(first), abs(second))
