"""Turns the calls in a function body of a wrapper into launches, buffers and symbols."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from mcp_server.package import launches
from mcp_server.package.kernels import Kernel, Parameter
from mcp_server.package.launches import (
    TENSORS,
    Argument,
    ArgumentKind,
    Buffer,
    BufferKind,
    BufferTable,
    Call,
    Launch,
    LaunchKind,
    Notes,
    Reference,
    Role,
    Transfer,
    View,
    braced,
    read_reference,
    shifted,
    whole_number,
)
from mcp_server.package.symbols import Symbol, names_in
from mcp_server.package.terms.blocks import Block, Statement

Span = tuple[int, int]
"""Start and end of an expression, as offsets in the wrapper's text."""
_UNNAMED = Parameter("", "", "unknown")
_BUFFER_KINDS: dict[str, ArgumentKind] = {"input": "input", "constant": "constant"}
_CONTEXT = frozenset({"stream", "kernels", "proxy_executor", "this->device_idx_", "this->cubin_dir_"})


# These expressions create a tensor. An argument with one of them is never a scalar.
_TENSOR_MADE = re.compile(r"reinterpret_tensor_wrapper\(|RAIIAtenTensorHandle\(|\.data_ptr\(|_handle\b")


@dataclass(frozen=True, slots=True)
class Problem:
    """A statement that was not understood, with its 1-based line in wrapper.cpp."""

    what: str
    line: int
    text: str = ""


@dataclass
class Body:
    """One function in textual order: `run_impl`, or `_const_run_impl` (constant folding at load).

    `start` and `end` are offsets of the body; `line` is the 1-based line of its `{`. `freed` maps a tensor
    variable to the line of its last `reset()`; `exits` maps a loop to the statement that leaves it. `outputs`
    maps an output index to the variable returned.
    """

    name: str
    start: int
    end: int
    line: int
    launches: tuple[Launch, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    buffers: BufferTable = field(default_factory=BufferTable)
    symbols: dict[str, Symbol] = field(default_factory=dict)
    outputs: dict[int, str] = field(default_factory=dict)
    freed: dict[str, int] = field(default_factory=dict)
    exits: dict[Block, str] = field(default_factory=dict)


class Scope(Body):
    """A function while it is read: its body, arrays, scalars, pointers, and the notes above a launch."""

    def __init__(self, text: str, kernels: Mapping[str, Kernel], name: str, start: int, line: int) -> None:
        super().__init__(name, start, start, line)
        self.launched: list[Launch] = []
        self.moved: list[Transfer] = []
        self.text, self.kernels = text, kernels
        self.arrays: dict[str, tuple[str, ...]] = {}
        self.scalars: set[str] = set()
        self.pointers: dict[str, str] = {}
        self.problems: list[Problem] = []
        self.notes = Notes()

    def array(self, expression: str) -> tuple[str, ...]:
        """The elements of an `int_array_N` variable or of a braced list."""
        known = self.arrays.get(expression)
        return braced(expression) if known is None else known

    def view(self, reference: Reference) -> View | None:
        if reference.view is None:
            return None
        sizes, strides, offset = reference.view
        return View(self.array(sizes), self.array(strides), offset)

    def argument(
        self, position: int, span: Span, name: str, role: Role, type_: str = "", element: int | None = None
    ) -> list[Argument]:
        """Read the argument at `span`. An inline array yields one argument per element."""
        reference = read_reference(self.text, *span)
        if reference.array is not None and "AtenTensorHandle" in reference.type:
            label, type_ = name or str(position), reference.type
            inner = enumerate(reference.array)
            read = (self.argument(position, each, f"{label}[{i}]", role, type_, i) for i, each in inner)
            return [argument for found in read for argument in found]
        expression = self.text[slice(*span)]
        target = reference.name
        if target in self.pointers:
            target = self.pointers[target]
        elif target and reference.address and target.endswith("_handle") and target not in self.buffers:
            target = target.removesuffix("_handle")
        kind = self._kind(expression, reference, target)
        if kind in ("scalar", "context", "null") and target not in self.scalars:
            target = None
        role = role if kind in TENSORS or kind == "unknown" else "read"
        type_, view = type_ or reference.type, self.view(reference)
        return [Argument(position, name, expression, *span, kind, target, role, type_, view, element)]

    def _kind(self, expression: str, reference: Reference, target: str | None) -> ArgumentKind:
        if expression == "nullptr":
            return "null"
        if expression in _CONTEXT or expression.startswith(("this->", "cached_torch_")):
            return "context"
        if reference.array is not None:
            return "sizes"
        if target is None:
            known = any(name in self.buffers for name in names_in(expression))
            return "unknown" if known or _TENSOR_MADE.search(expression) else "scalar"
        if reference.address and target not in self.buffers and reference.name != target:
            return "buffer"
        if target in ("true", "false"):
            return "scalar"
        if buffer := self.buffers.get(target or ""):
            return _BUFFER_KINDS.get(buffer.kind, "buffer")
        if target in self.symbols:
            return "scalar" if reference.address else "symbol"
        if target in self.arrays:
            return "sizes"
        return "scalar" if target in self.scalars else "unknown"

    def tensor(self, span: Span) -> str | None:
        """The tensor variable at `span`, or None."""
        return self.argument(0, span, "", "read")[0].target

    def problem(self, what: str, line: int, text: str = "") -> None:
        self.problems.append(Problem(what, line, text[:200]))


# Checks, properties, guards, handles and debug printing; these are not launches.
_NO_EFFECT = re.compile(
    r"printf|AOTI_TORCH_(?:CHECK|WARN)|CUDA_DRIVER_CHECK|AOTI_RUNTIME_CUDA_CHECK|assert_(?:alignment|numel|dtype)"
    r"|__check_inputs_outputs|inputs\.clear|wrap_with_raii_handle_if_needed|init\dDTMADescriptor|std::call_once"
    r"|aoti_torch_(?:check|check_inf_and_nan|warn|new_uninitialized_tensor|create_\w+_guard|grad_mode_set_enabled|get_\w+"
    r"|is_(?:contiguous|defined)|(?:print|save)_tensor_handle|\w+_to_ivalue|delete_(?:tensor|c10_value)_object)"
)
_ITEM = re.compile(r"aoti_torch_item_(\w+)")
_VIEW_DTYPE = re.compile(r"aoti_torch_(?:(?:cpu|cuda|xpu|mps)_)?view_dtype")


def handle_call(scope: Scope, statement: Statement, call: Call) -> bool:
    """Record the effect of a call; return False for an unknown callee."""
    name = call.callee
    if form := _FORMS.get("view_dtype" if _VIEW_DTYPE.fullmatch(name) else name):
        handler, counts, what = form
        if len(call.arguments) in counts:
            handler(scope, statement, call)
        else:
            scope.problem(f"{what} with an unexpected number of arguments", statement.line, statement.text)
    elif call.arguments and (item := _ITEM.fullmatch(name)):
        # aoti_torch_item_int64(tensor, &scalar) copies an element to a host scalar.
        tensor = scope.tensor(call.arguments[0])
        if scalar := read_reference(scope.text, *call.arguments[-1]).name:
            scope.scalars.discard(scalar)
            value = f"{tensor}.item<{item[1]}>()"
            scope.symbols[scalar] = Symbol(scalar, "value", value, statement.line, tensor)
    elif name == "assert_size_stride":
        # (tensor, {sizes}, {strides}, "op"): the shape that the compiler assumed
        name, sizes, strides = (*_parts(scope, call), "", "", "")[:3]
        buffer = scope.buffers.get(name) if strides else None
        if buffer is not None and buffer.sizes is None:
            scope.buffers[name] = replace(buffer, sizes=braced(sizes), strides=braced(strides), assumed=True)
    elif name == "aoti_torch_new_uninitialized_tensor" and call.arguments:
        # A proxy executor call fills this tensor in later.
        scope.buffers.add(Buffer(_variable(scope.text, call.arguments[0]), "declared", 0, statement.line))
    elif not _NO_EFFECT.fullmatch(name):
        return _launch(scope, statement, call)
    return True


def _variable(text: str, span: Span) -> str:
    """The variable of an argument: `buf0` for `&buf0_handle`."""
    return (read_reference(text, *span).name or text[slice(*span)]).removesuffix("_handle")


def _parts(scope: Scope, call: Call) -> list[str]:
    return [scope.text[a:b] for a, b in call.arguments]


def _allocation(scope: Scope, statement: Statement, call: Call) -> None:
    """Record a new tensor, with its own memory or in a pool.

    aoti_torch_empty_strided(ndim, sizes, strides, dtype, device type, device index, &handle)
    aoti_torch__alloc_from_pool(pool, offset in bytes, dtype, ndim, sizes, strides, &handle)
    """
    kind: BufferKind = "allocated"
    base: str | None = None
    if call.callee == launches.PREFIX + "_alloc_from_pool":
        kind = "pool"
        base, _, dtype, _, sizes, strides, _ = _parts(scope, call)
        pool = scope.buffers.get(base)
        device = (pool and pool.device) or ""
    else:
        _, sizes, strides, dtype, device, _, _ = _parts(scope, call)
    name, shape = _variable(scope.text, call.arguments[6]), (scope.array(sizes), scope.array(strides), "0")
    device = device.removeprefix("cached_torch_device_type_")
    dtype = dtype.removeprefix("cached_torch_dtype_")
    scope.buffers.add(Buffer(name, kind, 0, statement.line, base, *shape, dtype, device))


def _as_strided(scope: Scope, statement: Statement, call: Call) -> None:
    """Record a view: aoti_torch_as_strided(tensor, sizes, strides, &handle)."""
    _, sizes, strides, _ = _parts(scope, call)
    base, name = _variable(scope.text, call.arguments[0]), read_reference(scope.text, *call.arguments[3]).name
    view = View(scope.array(sizes), scope.array(strides), "0")
    if not name or not scope.buffers.derive(name, base, "view", statement.line, view):
        scope.problem(f"a view of {base}, which is not known", statement.line, statement.text)


def _alias(scope: Scope, statement: Statement, call: Call) -> None:
    """Record a second handle to the same memory. Arguments: (tensor, [dtype,] &handle)."""
    base = scope.tensor(call.arguments[0])
    name = _variable(scope.text, call.arguments[-1])
    if base is None or not scope.buffers.derive(name, base, "alias", statement.line):
        scope.problem(f"an alias of {base}, which is not known", statement.line, statement.text)
    elif "view_dtype" in call.callee:
        dtype, buffer = _parts(scope, call)[1].removeprefix("cached_torch_dtype_"), scope.buffers[name]
        view = scope.view(read_reference(scope.text, *call.arguments[0]))
        offset = shifted(buffer.offset, view.offset) if view is not None else buffer.offset
        scope.buffers[name] = replace(
            buffer, kind="view", dtype=dtype, sizes=None, strides=None, offset=offset
        )


def _transfer(scope: Scope, statement: Statement, call: Call) -> None:
    written, read = launches.TRANSFERS[call.callee]
    source = scope.tensor(call.arguments[read]) if read is not None else None
    expression = _parts(scope, call)[written]
    if output := re.fullmatch(r"&output_handles\[(\d+)\]", expression):
        scope.outputs[int(output[1])] = source or expression
        return
    target = _variable(scope.text, call.arguments[written])
    if target not in scope.buffers:
        scope.buffers.add(Buffer(target, "returned", 0, statement.line))
    add_transfer(scope, statement, call.callee, target, source)


_MANY = 64
_FORMS: dict[str, tuple[Callable[[Scope, Statement, Call], None], range, str]] = {
    "aoti_torch_empty_strided": (_allocation, range(7, 8), "an allocation"),
    "aoti_torch_empty_strided_pinned": (_allocation, range(7, 8), "an allocation"),
    "aoti_torch__alloc_from_pool": (_allocation, range(7, 8), "a pool allocation"),
    "aoti_torch_as_strided": (_as_strided, range(4, 5), "a view"),
    "view_dtype": (_alias, range(2, _MANY), "an alias"),
    "aoti_torch_assign_tensors_out": (_alias, range(2, _MANY), "an alias"),
    "aoti_torch_new_tensor_handle": (_alias, range(2, _MANY), "an alias"),
    "aoti_torch_clone_preserve_strides": (_alias, range(2, _MANY), "an alias"),
    **{
        name: (_transfer, range(1 + max(written, read or 0), _MANY), "a copy")
        for name, (written, read) in launches.TRANSFERS.items()
    },
}
"""Calls that create, name or copy a tensor: handler, argument counts, and the term used in a problem."""


def add_transfer(scope: Scope, statement: Statement, callee: str, target: str, source: str | None) -> None:
    """Record that `target` is overwritten with `source`, or with zeros if `source` is None."""
    scope.notes = Notes()
    place = (statement.line, statement.start, statement.end, statement.block.path[1:])
    scope.moved.append(Transfer(callee, target, source, *place))


def _launch(scope: Scope, statement: Statement, call: Call) -> bool:
    """Record a launch; return False if the callee is neither a shim nor a kernel."""
    name = call.callee
    if name == launches.PROXY:
        return _proxy_launch(scope, statement, call)
    arguments: list[Argument] = []
    if name.startswith(launches.PREFIX):
        parameters = launches.shim_parameters(name, len(call.arguments))
        for position, (span, parameter) in enumerate(zip(call.arguments, parameters, strict=True)):
            found = scope.argument(position, span, *parameter)
            arguments += [_returned(scope, statement, argument) for argument in found]
        kind: LaunchKind = "extern" if name.endswith("_out") else "fallback_shim"
        _add(scope, statement, call, name, kind, arguments)
        return True
    bare = name.removeprefix("kernels.")
    kernel = scope.kernels.get(bare.removeprefix("call_"))
    if kernel is None:
        if not bare.startswith(("cpp_fused", "call_", "cuda_", "cutlass_", "triton_")):
            return False
        name = bare.removeprefix("call_")
        kernel = Kernel(name, "cpp" if name == bare else "triton", bare, (), 0)
        scope.problem(f"the kernel {kernel.name} is launched but not declared", statement.line)
    for position, span in enumerate(call.arguments):
        known = kernel.parameters[position] if position < len(kernel.parameters) else _UNNAMED
        found = scope.argument(position, span, known.name, known.role, known.type)
        arguments += [replace(a, partial=known.partial) for a in found]
    _add(scope, statement, call, kernel.name, kernel.kind, arguments)
    return True


def _returned(scope: Scope, statement: Statement, argument: Argument) -> Argument:
    """Treat `&buf3_handle` as a tensor that the call creates."""
    name, text = argument.target, argument.expression
    known = name in scope.buffers and not text.endswith("_handle")
    if argument.kind != "buffer" or not text.startswith("&") or name is None or known:
        return argument
    scope.buffers.add(Buffer(name, "returned", 0, statement.line))
    return replace(argument, role="written", fresh=True)


def _proxy_launch(scope: Scope, statement: Statement, call: Call) -> bool:
    """Record aoti_torch_proxy_executor_call_function(executor, node, n_ints, ints, n_tensors, tensors).

    The tensors are inputs, then outputs. A mutated input is listed a second time. An operator without outputs
    may mutate any input, and the wrapper does not say which: its tensors get the role `unknown`.
    """
    if len(call.arguments) != 6:
        return False
    node = _parts(scope, call)[1]
    tensors = scope.argument(5, call.arguments[5], "tensor", "read")
    buffers = [scope.buffers.get(argument.target or "") for argument in tensors]
    fresh = [buffer is not None and buffer.kind == "declared" for buffer in buffers]
    seen: set[str | None] = set()
    arguments = scope.argument(3, call.arguments[3], "int", "read")
    for argument, new in zip(tensors, fresh, strict=True):
        role = argument.role
        if new:
            role = "written"
        elif argument.target in seen:
            role = "read_write"
        elif not any(fresh):
            role = "unknown"
        seen.add(argument.target)
        arguments.append(replace(argument, role=role, fresh=new))
    name = scope.notes.kernel or f"{launches.PROXY}[{node}]"
    _add(scope, statement, call, name, "proxy_executor", arguments, whole_number(node))
    return True


def _add(
    scope: Scope,
    statement: Statement,
    call: Call,
    kernel: str,
    kind: LaunchKind,
    arguments: list[Argument],
    proxy_index: int | None = None,
) -> None:
    # The comments since the previous launch belong to this launch, unless they name another kernel.
    notes, scope.notes = scope.notes, Notes()
    if notes.kernel and notes.kernel != kernel:
        scope.problem(f"the note above names {notes.kernel}, the call {kernel}", statement.line)
        notes = Notes()
    known = scope.kernels.get(kernel)
    for argument in arguments:
        if argument.kind == "unknown":
            scope.problem(f"the argument {argument.expression} of {kernel}", statement.line, statement.text)
        if argument.fresh and (buffer := scope.buffers.get(argument.target or "")):
            scope.buffers[buffer.name] = replace(buffer, kind="returned")
    scope.launched.append(
        Launch(
            index=len(scope.launched),
            kernel=kernel,
            symbol=known.symbol if known else kernel,
            kind=kind,
            callee=call.callee,
            arguments=tuple(arguments),
            line=statement.line,
            start=statement.start,
            end=statement.end,
            sources=notes.sources,
            atens=notes.atens,
            handle=notes.handle,
            stack=notes.stack,
            checked=call.checked or not call.callee.startswith(launches.PREFIX),
            context=statement.block.path[1:],
            proxy_index=proxy_index,
            function=scope.name,
        )
    )
