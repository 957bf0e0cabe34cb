"""Kernels of a package: parameters, grid, sources with line numbers, and stores.

Lazy Triton kernels: torch 2.14 and later with `triton.autotune_at_compile_time=False` runs a JIT wrapper
first, then writes the autotuned configuration as macros before the wrapper. The Triton source is not embedded
(torch/_inductor/codegen/cpp_wrapper_gpu.py 2.15, generate_aoti_kernel_config_header and generate_lazy).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from mcp_server.package.arithmetic import whole_number
from mcp_server.package.launches import Role
from mcp_server.package.statements import read_call, split_arguments

_DEFINE = re.compile(
    r"^#define (?P<kernel>\w+?)_(?P<field>CUBIN_PATH|MANGLED_NAME|NUM_WARPS|SHARED_MEM|[XYZ]BLOCKS|R0BLOCKS"
    r"|RSPLIT|RSPLIT_SIZE|CONFIG_INDEX|GLOBAL_SCRATCH|PROFILE_SCRATCH) (?P<value>.*)$",
    re.M,
)
_FIELD = re.compile(r"\b(?P<kernel>\w+)_result\.(?P<field>\w+)(?:\[(?P<index>\d+)\])?")
_CASE = re.compile(r"case (-?\d+): grid_0 = ([^;]*); grid_1 = ([^;]*); grid_2 = ([^;]*); break;")
_MARK = "LazyKernelCompileResult "


@dataclass(frozen=True)
class LazyConfigs:
    """Macro values by (kernel name in capitals, field); empty for a wrapper without them."""

    values: Mapping[tuple[str, str], str]

    def resolved(self, text: str) -> str:
        """Replace fields such as `add_0_result.xblocks[0]` in an expression by their values."""
        return _FIELD.sub(self._value, text) if self.values else text

    def chosen_grid(self, kernel: str, text: str) -> tuple[str, ...]:
        """The autotuned grid out of a `switch`; empty without one."""
        index = self.values.get((kernel.upper(), "CONFIG_INDEX"))
        return next((match.groups()[1:] for match in _CASE.finditer(text) if match[1] == index), ())

    def _value(self, match: re.Match[str]) -> str:
        value = self.values.get((match["kernel"].upper(), match["field"].upper()))
        if value is None:
            return match[0]
        if match["index"] is None:
            return value
        parts = [part.strip() for part in value.strip("{}").split(",")]
        return parts[int(match["index"])] if int(match["index"]) < len(parts) else match[0]


def read_lazy_configs(text: str) -> LazyConfigs:
    """Parse the configuration macros of a wrapper."""
    if _MARK not in text:
        return LazyConfigs({})
    return LazyConfigs({(m["kernel"], m["field"]): m["value"].strip() for m in _DEFINE.finditer(text)})


_STORE = re.compile(r"tl\.(?P<call>store|atomic_\w+)\(")
_ASSIGNED = re.compile(r"^\s*(\w+)\s*(?:\+?=)\s*(.+)$", re.M)
_NAME = re.compile(r"[A-Za-z_]\w*")
_DEPTH = 20


@dataclass(frozen=True, slots=True)
class Stores:
    """Store targets of a kernel: `plain`, `atomic`, and `data_index` for indices computed from data.

    `unresolved`: the target of some store is unknown.
    """

    plain: frozenset[str]
    atomic: frozenset[str]
    data_index: frozenset[str]
    unresolved: bool


def find_stores(source: str, tensors: Collection[str]) -> Stores:
    """The stores of a kernel body to any of its tensor parameters.

    Pointers are followed through assignments (`p = out + offsets`). Names inside `tl.load(...)` belong to an
    index, not to the pointer.
    """
    assigned: dict[str, list[str]] | None = None
    plain: set[str] = set()
    atomic: set[str] = set()
    data_index: set[str] = set()
    unresolved = False
    for match in _STORE.finditer(source):
        pointer = _first_argument(source, match.end())
        first = _NAME.match(pointer)
        if first and first.group() in tensors:
            targets = {first.group()}
        else:
            assigned = _assignments(source) if assigned is None else assigned
            targets = _bases(pointer, frozenset(tensors), assigned)
        unresolved |= not targets
        (plain if match["call"] == "store" else atomic).update(targets)
        if "tmp" in pointer:
            data_index.update(targets)
    return Stores(frozenset(plain), frozenset(atomic), frozenset(data_index), unresolved)


def _assignments(source: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for match in _ASSIGNED.finditer(source):
        found.setdefault(match[1], []).append(match[2])
    return found


def _first_argument(source: str, start: int) -> str:
    """The text up to the first comma outside brackets."""
    depth = 0
    for index in range(start, min(len(source), start + 2000)):
        letter = source[index]
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        if depth < 0 or (letter == "," and depth == 0):
            return source[start:index]
    return source[start : start + 2000]


def _bases(pointer: str, tensors: frozenset[str], assigned: dict[str, list[str]]) -> set[str]:
    """The parameters that a pointer expression may start from."""
    found: set[str] = set()
    seen: set[str] = set()
    queue = [pointer]
    while queue and len(seen) < _DEPTH * 10:
        for name in _NAME.findall(_without_loads(queue.pop())):
            if name in tensors:
                found.add(name)
            elif name not in seen:
                seen.add(name)
                queue += assigned.get(name, [])
    return found


def _without_loads(expression: str) -> str:
    """The expression with every `tl.load(...)` cut out."""
    start = expression.find("tl.load(")
    if start < 0:
        return expression
    depth = 0
    for index in range(start, len(expression)):
        depth += (expression[index] == "(") - (expression[index] == ")")
        if depth == 0 and expression[index] == ")":
            return expression[:start] + _without_loads(expression[index + 1 :])
    return expression[:start]


KernelKind = Literal["triton", "user_triton", "cpp"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel, in the order of the call in the wrapper.

    `partial`: a write may leave elements unchanged, as the store's index is computed from data or unknown
    (user kernels).
    """

    name: str
    type: str
    role: Role
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """One compiled kernel.

    `source` is the C++ function or the embedded Triton text; line 1 of the latter follows the opening quotes,
    as in device assertions. `first_line` is the line of line 1 of `source` in wrapper.cpp (Triton) or
    kernel.cpp (C++). `symbol` is the name on the device or in the .so. `grid` holds C++ expressions over the
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


_PROTOTYPE = re.compile(
    r'^extern\s+"C"\s+void\s+(?P<name>\w+)\s*\((?P<parameters>[^(){};]*)\)\s*(?P<end>[;{])', re.M
)
_WRAPPER = re.compile(r"^static\s+[^;{}()]*(?:\(\([\w, ]*\)\)\s*)?void\s+call_(?P<name>\w+)\s*\(", re.M)
_QUOTED = re.compile(r"async_compile\.triton\(\s*'(?P<symbol>[^']*)',\s*(?P<quote>'''|\"\"\")")
_GRID = re.compile(r"uint32_t grid_(\d)\s*=\s*([^;]*);")
_LOAD = re.compile(r"loadKernel\(")
_LAUNCH = re.compile(r"launchKernel\(")
_MUTATED = re.compile(r"'mutated_arg_names':\s*\[([^\]]*)\]")
_CONTEXT = frozenset({"device_idx_", "stream_", "kernels_", "cubin_dir_"})


def read_cpp_kernels(text: str, count_line: LineCounter) -> dict[str, Kernel]:
    """C++ kernels declared or defined in `text`, with parameters, and with bodies if defined."""
    kernels = {}
    for match in _PROTOTYPE.finditer(text):
        parameters = _cpp_parameters(text, match.start("parameters"), match.end("parameters"))
        source = text[match.start() : _body_end(text, match.end())] if match["end"] == "{" else ""
        line = count_line(match.start())
        roles = tuple(_refined(parameter, source) for parameter in parameters)
        kernels[match["name"]] = Kernel(
            match["name"], "cpp", match["name"], roles, line, source, line if source else 0
        )
    return kernels


class LineCounter:
    """Maps ascending text offsets to 1-based lines in one pass over the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1

    def __call__(self, offset: int) -> int:
        if offset < self.at:
            self.at, self.line = 0, 1
        self.line += self.text.count("\n", self.at, offset)
        self.at = offset
        return self.line


def _body_end(text: str, start: int) -> int:
    """The end offset of a function at the left margin. `start` is inside its braces."""
    end = text.find("\n}", start)
    return len(text) if end < 0 else end + 2


def _cpp_parameters(text: str, start: int, end: int) -> tuple[Parameter, ...]:
    parameters = []
    for begin, stop in split_arguments(text, start, end):
        type_, _, name = " ".join(text[begin:stop].split()).rpartition(" ")
        parameters.append(Parameter(name, type_, _constness(type_)))
    return tuple(parameters)


def _constness(type_: str) -> Role:
    """Inductor declares read-only pointers `const T*`; `in_out_ptr` and `out_ptr` are not const."""
    if "*" not in type_:
        return "read"
    return "read" if type_.startswith("const ") else "written"


def _refined(parameter: Parameter, source: str) -> Parameter:
    """Mark `in_out_ptr` and pointers that are only added to atomically as read too."""
    if parameter.role != "written":
        return parameter
    name = parameter.name
    stores = re.findall(rf"(?:\b{name}\[([^\n;]*)\] = |store\({name} \+([^\n;]*))", source)
    added = re.search(rf"atomic_add\w*(?:<[^()]*>)?\(&?{name}\b", source)
    both = name.startswith("in_out_ptr") or (added is not None and not stores)
    partial = bool(stores) and all("tmp" in "".join(index) for index in stores)
    return replace(parameter, role="read_write" if both else "written", partial=partial)


def read_triton_kernels(text: str, count_line: LineCounter) -> dict[str, Kernel]:
    """Triton kernels of a wrapper, one per `call_<kernel>` function, keyed by the kernel's name."""
    kernels = {}
    lazy = read_lazy_configs(text)
    for match in _WRAPPER.finditer(text):
        end = _body_end(text, match.end())
        kernels[match["name"]] = _triton_kernel(
            match["name"], text, match.start(), match.end(), end, count_line, lazy
        )
    return kernels


def _triton_kernel(
    name: str, text: str, begin: int, start: int, end: int, count_line: LineCounter, lazy: LazyConfigs
) -> Kernel:
    close = text.find("){", start, end)
    line = count_line(begin)
    source, at, after = _embedded(text, start, end)
    first_line = count_line(at) if at else 0
    body = lazy.resolved(text[after:end])
    symbol, cubin = _loaded(body)
    warps, shared = _launched(body)
    names = _triton_parameters(text, start, close if close > 0 else start)
    grid = tuple(m[2] for m in _GRID.finditer(body)) or lazy.chosen_grid(name, body)
    kind: KernelKind = (
        "triton" if "'kernel_name': 'triton_" in source or name.startswith("triton_") else "user_triton"
    )
    parameters = _with_roles(names, source, kind)
    return Kernel(
        name, kind, symbol or name, parameters, line, source, first_line, grid, cubin, warps, shared
    )


def _embedded(text: str, start: int, end: int) -> tuple[str, int, int]:
    """The embedded Triton source, its offset, and the offset after the comment that holds it."""
    comment = text.find("/*", start, end)
    closed = text.find("*/", comment, end) if comment >= 0 else -1
    match = _QUOTED.search(text, comment, closed) if closed >= 0 else None
    if not match:
        return "", 0, start
    stop = text.find(match["quote"], match.end(), closed)
    return text[match.end() : stop if stop >= 0 else closed], match.end(), closed


def _triton_parameters(text: str, start: int, end: int) -> list[tuple[str, str]]:
    pairs = []
    for begin, stop in split_arguments(text, start, end):
        declaration = text[begin:stop].partition("=")[0].strip()
        type_, _, name = declaration.rpartition(" ")
        if name not in _CONTEXT:
            pairs.append((name, "tensor" if type_.rstrip("& ").endswith(f"{name}_type_") else type_))
    return pairs


def _with_roles(names: list[tuple[str, str]], source: str, kind: KernelKind) -> tuple[Parameter, ...]:
    """The roles of a Triton kernel's parameters.

    Inductor names its pointers in_ptr, out_ptr and in_out_ptr. The roles of a user's kernel come from its
    stores and from `mutated_arg_names`, the result of Triton's own analysis.
    """
    stores = find_stores(source, [name for name, type_ in names if type_ == "tensor"])
    mutated = _MUTATED.search(source)
    listed = re.findall(r"'(\w+)'", mutated[1]) if mutated else []
    return tuple(_triton_parameter(name, type_, source, kind, stores, listed) for name, type_ in names)


def _triton_parameter(
    name: str, type_: str, source: str, kind: KernelKind, stores: Stores, listed: list[str]
) -> Parameter:
    if type_ != "tensor":
        return Parameter(name, type_, "read")
    if name.startswith("in_out_ptr"):
        return Parameter(name, type_, "read_write")
    touched = name in stores.plain | stores.atomic or name in listed or name.startswith("out_ptr")
    if not touched:
        roles_known = bool(source) and not stores.unresolved
        return Parameter(name, type_, "read" if roles_known or name.startswith("in_ptr") else "unknown")
    user = kind == "user_triton"
    loaded = user and re.search(rf"tl\.load\(\s*{re.escape(name)}\b", source)
    role: Role = "read_write" if name in stores.atomic or loaded else "written"
    return Parameter(name, type_, role, user or name in listed or name in stores.data_index)


def _loaded(text: str) -> tuple[str, str]:
    """GPU symbol and cubin file name of `loadKernel("…/x.cubin", "symbol", …)`."""
    match = _LOAD.search(text)
    call = read_call(text, match.start(), text.find(";", match.end())) if match else None
    if not call or len(call.arguments) < 2:
        return "", ""
    first, second = (text[a:b].strip('"') for a, b in call.arguments[:2])
    return second, first.rpartition("/")[2] if first.endswith("cubin") else ""


def _launched(text: str) -> tuple[int | None, int | None]:
    """Warps and shared bytes of `launchKernel(fn, gx, gy, gz, warps, shared, args, stream)`."""
    match = _LAUNCH.search(text)
    call = read_call(text, match.start(), text.find(";", match.end())) if match else None
    if not call or len(call.arguments) < 6:
        return None, None
    warps, shared = (text[a:b] for a, b in call.arguments[4:6])
    return whole_number(warps), whole_number(shared)
