"""Launches and buffers of a wrapper, and a table of the C functions it calls: parameters and writes.

Source of the table: torch/csrc/inductor/aoti_torch/c/shim.h and generated/c_shim_{cpu,cuda}.h of torch 2.13.

`read_call` and `read_reference` read the calls and arguments in the statements of a wrapper.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from mcp_server.package.terms.blocks import Block, split_arguments

Role = Literal["read", "written", "read_write", "unknown"]

PREFIX = "aoti_torch_"
PROXY = "aoti_torch_proxy_executor_call_function"

# Calls that copy or set bytes without a kernel: positions of the argument written and the argument read.
TRANSFERS: dict[str, tuple[int, int | None]] = {
    PREFIX + "copy_": (0, 1),
    PREFIX + "tensor_copy_": (1, 0),
    PREFIX + "zero_": (0, None),
    PREFIX + "clone": (1, 0),
}

# Parameter names of common shims; parameters of other shims are numbered.
_PARAMETERS = {
    "addmm_out": "out self mat1 mat2 beta alpha",
    "baddbmm_out": "out self batch1 batch2 beta alpha",
    "mm_out": "out self mat2",
    "bmm_out": "out self mat2",
    "_int_mm_out": "out self mat2",
    "mm_dtype_out": "out self mat2 out_dtype",
    "_scaled_mm_out": "out self mat2 scale_a scale_b bias scale_result out_dtype use_fast_accum",
    "scatter_src_out": "out self dim index src",
    "scatter_value_out": "out self dim index value",
    "scatter_reduce_two_out": "out self dim index src reduce include_self",
    "index_put_out": "out self indices num_indices values accumulate",
    "convolution": (
        "input weight bias stride stride_len padding padding_len dilation dilation_len transposed "
        "output_padding output_padding_len groups ret0"
    ),
    "_embedding_bag": (
        "weight indices offsets scale_grad_by_freq mode sparse per_sample_weights include_last_offset "
        "padding_idx ret0 ret1 ret2 ret3"
    ),
    "topk": "self k dim largest sorted ret0 ret1",
    "sort_stable": "self stable dim descending ret0 ret1",
    "nonzero": "self ret0",
    "cumsum": "self dim dtype ret0",
    "index_Tensor": "self indices indices_len ret0",
    "repeat_interleave_Tensor": "repeats output_size ret0",
    "masked_scatter": "self mask source ret0",
    "_scaled_dot_product_flash_attention_for_cpu": (
        "query key value dropout_p is_causal attn_mask scale ret0 ret1"
    ),
    "_scaled_dot_product_flash_attention": (
        "query key value dropout_p is_causal return_debug_mask scale "
        "ret0 ret1 ret2 ret3 ret4 ret5 ret6 ret7 ret8"
    ),
    "_scaled_dot_product_efficient_attention": (
        "query key value attn_bias compute_log_sumexp dropout_p is_causal scale ret0 ret1 ret2 ret3"
    ),
}
_DEVICE = re.compile(r"^aoti_torch_(?:(?:cpu|cuda|xpu|mps|aten)_)?")
_OVERLOAD = re.compile(r".*__(?:Scalar|Tensor|float|source_Tensor|source_Storage)$")


def shim_operator(shim: str) -> str:
    """Reduce `aoti_torch_cuda_addmm_out` to `addmm_out`."""
    return _DEVICE.sub("", shim)


def shim_parameters(shim: str, count: int) -> list[tuple[str, Role]]:
    """Return name and role of each of a shim's `count` parameters. Names are "" for an unknown shim.

    `*_out` shims write their first tensor. Scatter and index_put also read it, as `out` is their `self`.
    Shims with a trailing underscore (or an in-place overload such as `fill__Scalar`) read and write their
    first tensor. All other tensors are read.
    """
    name = shim_operator(shim)
    first: Role = "read"
    if name.endswith("_out"):
        first = "read_write" if name.startswith(("scatter", "index_put")) else "written"
    elif name.endswith("_") or _OVERLOAD.fullmatch(name):
        first = "read_write"
    names = [*_PARAMETERS.get(name, "").split(), *[""] * count][:count]
    return [(name, "read" if position else first) for position, name in enumerate(names)]


LaunchKind = Literal["triton", "user_triton", "cpp", "extern", "fallback_shim", "proxy_executor"]
ArgumentKind = Literal[
    "buffer", "input", "constant", "symbol", "scalar", "sizes", "null", "context", "unknown"
]
_NAME = re.compile(r"[A-Za-z_]\w*")
TENSORS = frozenset({"buffer", "input", "constant"})


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a launch. Each element of an inline array is a separate argument.

    `position` counts the arguments of the C++ call, `element` the elements of an array. `start` and `end` are
    offsets in the wrapper's text. `target` is the variable without casts, moves and views. `view` is set if
    the call creates a view for this argument. `type` is the C++ or Triton type, if known.
    """

    position: int
    name: str
    expression: str
    start: int
    end: int
    kind: ArgumentKind
    target: str | None
    role: Role
    type: str = ""
    view: View | None = None
    element: int | None = None
    fresh: bool = False
    partial: bool = False

    @property
    def is_tensor(self) -> bool:
        return self.kind in TENSORS


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch. `index` counts from 0 in the order of the text.

    `kernel` is the name in the wrapper (used by value printers and provenance), `symbol` the device symbol.
    `start` and `end` are offsets of the whole statement, `line` is 1-based. `checked`: a shim's error code is
    checked. `handle` is the provenance handle; `sources` and `atens` come from the comment above. `context`
    lists the enclosing branches and loops, outermost first. `stack` is a KernelContextGuard's text.
    """

    index: int
    kernel: str
    symbol: str
    kind: LaunchKind
    callee: str
    arguments: tuple[Argument, ...]
    line: int
    start: int
    end: int
    sources: tuple[str, ...] = ()
    atens: tuple[str, ...] = ()
    handle: int | None = None
    checked: bool = True
    context: tuple[Block, ...] = ()
    stack: str = ""
    proxy_index: int | None = None
    function: str = "run_impl"

    @property
    def tensors(self) -> tuple[Argument, ...]:
        return tuple(a for a in self.arguments if a.is_tensor)

    @property
    def passed(self) -> dict[str, str]:
        """The expression for each parameter whose name is known."""
        return {a.name: a.expression for a in self.arguments if a.name}

    @property
    def reads(self) -> tuple[str, ...]:
        """The variables whose values the launch may use."""
        return tuple(dict.fromkeys(a.target for a in self.tensors if a.target and a.role != "written"))

    @property
    def writes(self) -> tuple[str, ...]:
        """The variables whose values the launch may change."""
        return tuple(dict.fromkeys(a.target for a in self.tensors if a.target and a.role != "read"))


@dataclass(frozen=True, slots=True)
class Transfer:
    """A statement that copies or fills whole tensors without a kernel: copy, zero, clone, handle assignment.

    `reads` is None for a fill with zeros.
    """

    callee: str
    writes: str
    reads: str | None
    line: int
    start: int
    end: int
    context: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True)
class Notes:
    """Facts from the comments above a launch."""

    sources: tuple[str, ...] = ()
    atens: tuple[str, ...] = ()
    handle: int | None = None
    kernel: str = ""
    stack: str = ""


def substitute(expression: str, values: Mapping[str, str]) -> str:
    """Replace the names in an expression with argument expressions."""
    return _NAME.sub(lambda match: values.get(match[0], match[0]), expression)


BufferKind = Literal[
    "input", "constant", "allocated", "pool", "returned", "view", "alias", "moved", "assigned", "declared"
]


@dataclass(frozen=True, slots=True)
class Buffer:
    """One tensor variable of the wrapper.

    Buffers of equal `storage` share memory. `sizes`, `strides` and `offset` are C++ expressions in elements;
    None if unknown. `base` is the buffer from which this one is derived, `position` the index of an input or
    constant. `line` is 1-based in wrapper.cpp. `assumed`: an operator chooses sizes and strides at run time;
    those here are what the compiler expects.
    """

    name: str
    kind: BufferKind
    storage: int
    line: int
    base: str | None = None
    sizes: tuple[str, ...] | None = None
    strides: tuple[str, ...] | None = None
    offset: str | None = None
    dtype: str | None = None
    device: str | None = None
    position: int | None = None
    reused: bool = False
    assumed: bool = False


def shifted(base: str | None, offset: str) -> str:
    """The storage offset of a view at `offset` in a tensor at `base`.

    `reinterpret_tensor_wrapper` adds its offset to the offset of its tensor (torch 2.8-2.15).
    """
    if base in (None, "0", "0L"):
        return offset
    first, second = whole_number(str(base).rstrip("L")), whole_number(offset.rstrip("L"))
    if first is not None and second is not None:
        return f"{first + second}L"
    return f"{base} + {offset}"


class BufferTable(dict[str, Buffer]):
    """The buffers defined so far, by name. A later definition replaces an earlier one."""

    storages = 0

    def add(self, buffer: Buffer) -> None:
        """Add a buffer that has its own memory, with a new storage."""
        self.storages += 1
        self[buffer.name] = replace(buffer, storage=self.storages)

    def derive(self, name: str, base: str, kind: BufferKind, line: int, view: View | None = None) -> bool:
        """Add an alias of `base`, or a `view` of it; return False if `base` is unknown."""
        old = self.get(base)
        if old is None:
            return False
        new = replace(old, name=name, kind=kind, line=line, base=base, reused=kind == "moved")
        if view is not None:
            offset = shifted(old.offset, view.offset)
            new = replace(new, sizes=view.sizes, strides=view.strides, offset=offset)
        self[name] = new
        return True


CHECK = "AOTI_TORCH_ERROR_CODE_CHECK"
_CALL = re.compile(r"\s*([A-Za-z_][\w:]*(?:(?:\.|->)[A-Za-z_]\w*)*)\(")
_CAST = re.compile(r"\((?P<type>[\w:<> ]+\*?)\)\s*\(?\s*(?P<name>[A-Za-z_]\w*)\.data_ptr\(\)\s*\)?")
_WRAP = re.compile(
    r"&?(?:wrap_with_raii_handle_if_needed|RAIIAtenTensorHandle|temporary_reference|std::move"
    r"|borrow_arrayref_tensor_as_tensor|copy_arrayref_tensor_to_tensor|convert_arrayref_tensor_to_tensor)\("
)
_TAIL = re.compile(r"\.(?:get|data|cbegin|begin)\(\)$")
_ARRAY = re.compile(r"std::array<\s*(?P<type>.+?),\s*\d+\s*>\{")
_VIEW = re.compile(r"reinterpret_tensor_wrapper\(")
# An array passed as a pointer to its first element (torch 2.14 and later).
_POINTER_TO = re.compile(r"static_cast<[\w:\s]+\*>\(")


class Call(NamedTuple):
    """A call: callee, argument offsets in the file, and whether its error code is checked."""

    callee: str
    arguments: list[tuple[int, int]]
    checked: bool


@dataclass(frozen=True, slots=True)
class View:
    """A reinterpretation of a buffer: C++ expressions for sizes, strides and offset, in elements."""

    sizes: tuple[str, ...]
    strides: tuple[str, ...]
    offset: str


@dataclass(frozen=True, slots=True)
class Reference:
    """An argument without casts: a variable, optionally a view of it or its address.

    `array` lists the offsets of the elements of an inline `std::array`.
    """

    name: str | None
    type: str = ""
    address: bool = False
    view: tuple[str, str, str] | None = None
    array: tuple[tuple[int, int], ...] | None = None


def read_call(text: str, start: int, end: int) -> Call | None:
    """Parse `text[start:end]` as a call, inside an optional error check macro. None for other text."""
    match = _CALL.match(text, start, end)
    while end > start and (text[end - 1] == ";" or text[end - 1].isspace()):
        end -= 1
    if not match or text[end - 1 : end] != ")":
        return None
    if match[1] == CHECK:
        inner = read_call(text, match.end(), end - 1)
        return inner._replace(checked=True) if inner else None
    return Call(match[1], split_arguments(text, match.end(), end - 1), False)


def read_reference(text: str, start: int, end: int) -> Reference:
    """Resolve the argument `text[start:end]`; `name` is None unless it is a single variable."""
    expression = text[start:end]
    if _NAME.fullmatch(expression):
        return Reference(expression)
    if match := _CAST.fullmatch(expression):
        return Reference(match["name"], match["type"].strip())
    if (match := _POINTER_TO.match(expression)) and expression.endswith(")"):
        return read_reference(text, start + match.end(), end - 1)
    if match := _ARRAY.match(expression):
        close = expression.rfind("}")
        places = split_arguments(text, start + match.end(), start + close) if close > 0 else []
        return Reference(None, match["type"], array=tuple(places))
    return _unwrap(expression)


def _unwrap(expression: str) -> Reference:
    """Strip wrapping calls and casts until a name or a view is left."""
    address = False
    while True:
        expression = _TAIL.sub("", expression.strip())
        if expression.startswith("&") and not expression.startswith("&temporary_reference"):
            address, expression = True, expression[1:]
        if not (match := _WRAP.match(expression)) or not expression.endswith(")"):
            break
        expression = expression[match.end() : -1]
    if _NAME.fullmatch(expression):
        return Reference(expression, address=address)
    if (view := _VIEW.match(expression)) and expression.endswith(")"):
        spans = split_arguments(expression, view.end(), len(expression) - 1)
        parts = [expression[a:b] for a, b in spans]
        if len(parts) == 5:
            return Reference(_unwrap(parts[0]).name, view=(parts[2], parts[3], parts[4]))
    return Reference(None)


def braced(text: str) -> tuple[str, ...]:
    """The elements of `{a, b}` as text."""
    open_, close = text.find("{"), text.rfind("}")
    if open_ < 0 or close < open_:
        return ()
    return tuple(text[a:b] for a, b in split_arguments(text, open_ + 1, close))


_WHOLE = re.compile(r"[0-9]{1,19}")


def whole_number(text: str) -> int | None:
    """Parse an integer without a sign. None for other text, or for more than 19 digits.

    This is stricter than `int`, which raises beyond 4,300 digits, and `str.isdigit`, which accepts "²".
    """
    return int(text) if _WHOLE.fullmatch(text) else None
