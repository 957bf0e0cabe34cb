"""Reads the calls in a function body of a wrapper into launches, buffers and symbols."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mcp_server.package import launches
from mcp_server.package.arithmetic import whole_number
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import (
    TENSORS,
    Argument,
    ArgumentKind,
    BufferTable,
    Launch,
    LaunchKind,
    Notes,
    Role,
    Transfer,
)
from mcp_server.package.statements import Block, Call, Reference, Statement, View, braced, read_reference
from mcp_server.package.symbols import Symbol, names_in

_BUFFER_KINDS: dict[str, ArgumentKind] = {"input": "input", "constant": "constant"}
_CONTEXT = frozenset({"stream", "kernels", "proxy_executor", "this->device_idx_", "this->cubin_dir_"})


# These expressions always make a tensor, so an unknown name in one is a problem, not a scalar.
_TENSOR_MADE = re.compile(r"reinterpret_tensor_wrapper\(|RAIIAtenTensorHandle\(|\.data_ptr\(|_handle\b")


@dataclass(frozen=True, slots=True)
class Problem:
    """A statement that was not understood, with its 1-based line in wrapper.cpp."""

    what: str
    line: int
    text: str = ""


@dataclass
class Scope:
    """Known names and the results so far of reading one function."""

    text: str
    kernels: Mapping[str, Kernel]
    function: str
    buffers: BufferTable = field(default_factory=BufferTable)
    arrays: dict[str, tuple[str, ...]] = field(default_factory=dict)
    symbols: dict[str, Symbol] = field(default_factory=dict)
    scalars: set[str] = field(default_factory=set)
    pointers: dict[str, str] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    outputs: dict[int, str] = field(default_factory=dict)
    freed: dict[str, int] = field(default_factory=dict)
    exits: dict[Block, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: Notes = field(default_factory=Notes)

    def array(self, expression: str) -> tuple[str, ...]:
        """The elements of an `int_array_N` variable or of a braced list."""
        known = self.arrays.get(expression)
        return braced(expression) if known is None else known

    def kind_of(self, name: str) -> ArgumentKind:
        """The kind of a variable."""
        buffer = self.buffers.get(name)
        if buffer:
            return _BUFFER_KINDS.get(buffer.kind, "buffer")
        if name in self.symbols:
            return "symbol"
        if name in self.arrays:
            return "sizes"
        if name in self.scalars:
            return "scalar"
        return "unknown"

    def argument(
        self, position: int, span: tuple[int, int], name: str, role: Role, type_: str = ""
    ) -> list[Argument]:
        """Read the argument at text offsets `span`; an inline array gives one argument per element."""
        start, end = span
        if self.text[start:end] in _CONTEXT:
            return [Argument(position, name, self.text[start:end], start, end, "context", None, "read")]
        reference = read_reference(self.text, start, end)
        if reference.array is not None and "AtenTensorHandle" in reference.type:
            return [
                self._one(
                    position,
                    inner,
                    read_reference(self.text, *inner),
                    f"{name or position}[{i}]",
                    role,
                    reference.type,
                    i,
                )
                for i, inner in enumerate(reference.array)
            ]
        return [self._one(position, span, reference, name, role, type_, None)]

    def _one(
        self,
        position: int,
        span: tuple[int, int],
        reference: Reference,
        name: str,
        role: Role,
        type_: str,
        element: int | None,
    ) -> Argument:
        start, end = span
        expression = self.text[start:end]
        target = self._target(reference)
        kind = self._kind(expression, reference, target)
        view = self._view(reference)
        return Argument(
            position,
            name,
            expression,
            start,
            end,
            kind,
            target if kind not in ("scalar", "context", "null") or target in self.scalars else None,
            role if kind in TENSORS or kind == "unknown" else "read",
            type_ or reference.type,
            view,
            element,
        )

    def _target(self, reference: Reference) -> str | None:
        name = reference.name
        if name is None:
            return None
        if name in self.pointers:
            return self.pointers[name]
        if reference.address and name.endswith("_handle") and name not in self.buffers:
            return name.removesuffix("_handle")
        return name

    def _kind(self, expression: str, reference: Reference, target: str | None) -> ArgumentKind:
        if expression == "nullptr":
            return "null"
        if expression in _CONTEXT or expression.startswith(("this->", "cached_torch_")):
            return "context"
        if reference.array is not None:
            return "sizes"
        if target is not None:
            return self._named(reference, target)
        known = any(name in self.buffers for name in names_in(expression))
        return "unknown" if known or _TENSOR_MADE.search(expression) else "scalar"

    def _named(self, reference: Reference, target: str) -> ArgumentKind:
        if reference.address and target not in self.buffers and reference.name != target:
            return "buffer"
        if target in ("true", "false"):
            return "scalar"
        kind = self.kind_of(target)
        return "scalar" if reference.address and kind == "symbol" else kind

    def _view(self, reference: Reference) -> View | None:
        if reference.view is None:
            return None
        sizes, strides, offset = reference.view
        return View(self.array(sizes), self.array(strides), offset)

    def problem(self, what: str, line: int, text: str = "") -> None:
        self.problems.append(Problem(what, line, text[:200]))


_NO_EFFECT = re.compile(
    r"(?:printf|AOTI_TORCH_CHECK|AOTI_TORCH_WARN|CUDA_DRIVER_CHECK|AOTI_RUNTIME_CUDA_CHECK|assert_alignment|assert_numel"
    r"|__check_inputs_outputs|inputs\.clear|wrap_with_raii_handle_if_needed|init\dDTMADescriptor"
    r"|aoti_torch_item_\w+|std::call_once|assert_dtype)"
)
_ITEM = re.compile(r"aoti_torch_item_(\w+)")
_VIEW_DTYPE = re.compile(r"aoti_torch_(?:(?:cpu|cuda|xpu|mps)_)?view_dtype")
_ALIASES = frozenset(
    "aoti_torch_" + name for name in ("assign_tensors_out", "new_tensor_handle", "clone_preserve_strides")
)


def variable(text: str, span: tuple[int, int]) -> str:
    """The variable of an argument: `buf0` for `&buf0_handle`."""
    return (read_reference(text, *span).name or text[span[0] : span[1]]).removesuffix("_handle")


def handle_call(scope: Scope, statement: Statement, call: Call) -> bool:
    """Record the effect of a call; False for an unknown callee."""
    name = call.callee
    if handler := _MEMORY.get(name):
        handler(scope, statement, call)
    elif name in _ALIASES or _VIEW_DTYPE.fullmatch(name):
        _alias(scope, statement, call)
    elif name in launches.TRANSFERS:
        _transfer(scope, statement, call)
    elif item := _ITEM.fullmatch(name):
        _item(scope, statement, call, item[1])
    elif name in launches.QUIET or _NO_EFFECT.fullmatch(name):
        return True
    else:
        return _launch(scope, statement, call)
    return True


def _allocation(scope: Scope, statement: Statement, call: Call) -> None:
    """aoti_torch_empty_strided(ndim, sizes, strides, dtype, device type, device index, &handle)."""
    if len(call.arguments) != 7:
        scope.problem("an allocation with an unexpected number of arguments", statement.line, statement.text)
        return
    parts = [scope.text[a:b] for a, b in call.arguments]
    name = variable(scope.text, call.arguments[6])
    device = parts[4].removeprefix("cached_torch_device_type_")
    dtype = parts[3].removeprefix("cached_torch_dtype_")
    scope.buffers.allocate(name, statement.line, scope.array(parts[1]), scope.array(parts[2]), dtype, device)


def _pool(scope: Scope, statement: Statement, call: Call) -> None:
    """aoti_torch__alloc_from_pool(pool, offset in bytes, dtype, ndim, sizes, strides, &handle)."""
    if len(call.arguments) != 7:
        scope.problem(
            "a pool allocation with an unexpected number of arguments", statement.line, statement.text
        )
        return
    parts = [scope.text[a:b] for a, b in call.arguments]
    name = variable(scope.text, call.arguments[6])
    dtype = parts[2].removeprefix("cached_torch_dtype_")
    pool = scope.buffers.get(parts[0])
    buffer = scope.buffers.allocate(
        name,
        statement.line,
        scope.array(parts[4]),
        scope.array(parts[5]),
        dtype,
        (pool and pool.device) or "",
    )
    scope.buffers.by_name[name] = replace(buffer, kind="pool", base=parts[0])


def _as_strided(scope: Scope, statement: Statement, call: Call) -> None:
    """aoti_torch_as_strided(tensor, sizes, strides, &handle)."""
    parts = [scope.text[a:b] for a, b in call.arguments]
    if len(parts) != 4:
        scope.problem("a view with an unexpected number of arguments", statement.line, statement.text)
        return
    base, name = variable(scope.text, call.arguments[0]), read_reference(scope.text, *call.arguments[3]).name
    made = name and scope.buffers.view(
        name, base, statement.line, scope.array(parts[1]), scope.array(parts[2]), "0"
    )
    if not made:
        scope.problem(f"a view of {base}, which is not known", statement.line, statement.text)


def _shape(scope: Scope, _: Statement, call: Call) -> None:
    """assert_size_stride(tensor, {sizes}, {strides}, "op"): the shape that the compiler assumed."""
    parts = [scope.text[a:b] for a, b in call.arguments]
    if len(parts) >= 3 and parts[0] in scope.buffers:
        scope.buffers.shape(parts[0], braced(parts[1]), braced(parts[2]))


def _undefined(scope: Scope, statement: Statement, call: Call) -> None:
    """aoti_torch_new_uninitialized_tensor(&handle): a proxy executor call fills it in later."""
    if call.arguments:
        scope.buffers.add(variable(scope.text, call.arguments[0]), "declared", statement.line)


_MEMORY = {
    "aoti_torch_empty_strided": _allocation,
    "aoti_torch_empty_strided_pinned": _allocation,
    "aoti_torch__alloc_from_pool": _pool,
    "aoti_torch_as_strided": _as_strided,
    "aoti_torch_new_uninitialized_tensor": _undefined,
    "assert_size_stride": _shape,
}


def _alias(scope: Scope, statement: Statement, call: Call) -> None:
    """A second handle to the same memory. Arguments: (tensor, [dtype,] &handle)."""
    if len(call.arguments) < 2:
        scope.problem("an alias with an unexpected number of arguments", statement.line, statement.text)
        return
    base = scope.argument(0, call.arguments[0], "", "read")[0].target
    name = variable(scope.text, call.arguments[-1])
    if base in scope.buffers and base is not None:
        scope.buffers.derive(name, base, "alias", statement.line)
        if "view_dtype" in call.callee:
            start, end = call.arguments[1]
            dtype = scope.text[start:end].removeprefix("cached_torch_dtype_")
            scope.buffers.by_name[name] = replace(
                scope.buffers.by_name[name], kind="view", dtype=dtype, sizes=None, strides=None
            )
    else:
        scope.problem(f"an alias of {base}, which is not known", statement.line, statement.text)


def _transfer(scope: Scope, statement: Statement, call: Call) -> None:
    written, read = launches.TRANSFERS[call.callee]
    if len(call.arguments) <= max(written + read):
        scope.problem("a copy with an unexpected number of arguments", statement.line, statement.text)
        return
    source = scope.argument(0, call.arguments[read[0]], "", "read")[0].target if read else None
    span = call.arguments[written[0]]
    expression = scope.text[span[0] : span[1]]
    if output := re.fullmatch(r"&output_handles\[(\d+)\]", expression):
        scope.outputs[int(output[1])] = source or expression
        return
    target = variable(scope.text, span)
    if target not in scope.buffers:
        scope.buffers.add(target, "returned", statement.line)
    add_transfer(scope, statement, call.callee, target, source)


def add_transfer(scope: Scope, statement: Statement, callee: str, target: str, source: str | None) -> None:
    """Record a copy of the whole of `source` to `target`."""
    scope.notes = Notes()
    scope.transfers.append(
        Transfer(
            callee,
            target,
            source,
            statement.line,
            statement.start,
            statement.end,
            len(scope.launches),
            statement.block.path[1:],
        )
    )


def _item(scope: Scope, statement: Statement, call: Call, dtype: str) -> None:
    """aoti_torch_item_int64(tensor, &scalar): copies an element to a host scalar."""
    if len(call.arguments) != 2:
        return
    tensor = scope.argument(0, call.arguments[0], "", "read")[0].target
    name = read_reference(scope.text, *call.arguments[1]).name
    if name:
        scope.scalars.discard(name)
        scope.symbols[name] = Symbol(name, "value", f"{tensor}.item<{dtype}>()", statement.line, tensor)


def _launch(scope: Scope, statement: Statement, call: Call) -> bool:
    """Record a launch; False if the callee is neither a shim nor a kernel."""
    name = call.callee
    if name == launches.PROXY:
        return _proxy_launch(scope, statement, call)
    if name.startswith(launches.PREFIX):
        kind: LaunchKind = "extern" if name.endswith("_out") else "fallback_shim"
        _add(scope, statement, call, name, kind, _shim_arguments(scope, statement, call))
        return True
    bare = name.removeprefix("kernels.")
    kernel = scope.kernels.get(bare.removeprefix("call_") if bare.startswith("call_") else bare)
    if kernel is None and not bare.startswith(("cpp_fused", "call_", "cuda_", "cutlass_", "triton_")):
        return False
    if kernel is None:
        kernel = Kernel(
            bare.removeprefix("call_"), "triton" if bare.startswith("call_") else "cpp", bare, (), 0
        )
        scope.problem(f"the kernel {kernel.name} is launched but not declared", statement.line)
    _add(scope, statement, call, kernel.name, kernel.kind, _kernel_arguments(scope, call, kernel))
    return True


def _kernel_arguments(scope: Scope, call: Call, kernel: Kernel) -> list[Argument]:
    arguments = []
    for position, span in enumerate(call.arguments):
        if position < len(kernel.parameters):
            known = kernel.parameters[position]
            made = scope.argument(position, span, known.name, known.role, known.type)
            arguments += [replace(a, partial=True) for a in made] if known.partial else made
        else:
            arguments += scope.argument(position, span, "", "unknown")
    return arguments


def _shim_arguments(scope: Scope, statement: Statement, call: Call) -> list[Argument]:
    names = launches.parameter_names(call.callee)
    arguments: list[Argument] = []
    for position, span in enumerate(call.arguments):
        name = names[position] if position < len(names) else ""
        role = launches.tensor_role(call.callee, position)
        arguments += [
            _returned(scope, statement, argument) for argument in scope.argument(position, span, name, role)
        ]
    return arguments


def _returned(scope: Scope, statement: Statement, argument: Argument) -> Argument:
    """Treat `&buf3_handle` as a tensor that the call creates."""
    name = argument.target
    if argument.kind != "buffer" or not argument.expression.startswith("&") or name is None:
        return argument
    if name in scope.buffers and not argument.expression.endswith("_handle"):
        return argument
    scope.buffers.add(name, "returned", statement.line)
    return replace(argument, role="written", fresh=True)


def _proxy_launch(scope: Scope, statement: Statement, call: Call) -> bool:
    """aoti_torch_proxy_executor_call_function(executor, node, n_ints, ints, n_tensors, tensors)."""
    if len(call.arguments) != 6:
        return False
    start, end = call.arguments[1]
    node = scope.text[start:end]
    arguments = scope.argument(3, call.arguments[3], "int", "read") + _proxy_tensors(scope, call.arguments[5])
    name = scope.notes.kernel or f"{launches.PROXY}[{node}]"
    _add(scope, statement, call, name, "proxy_executor", arguments, whole_number(node))
    return True


def _proxy_tensors(scope: Scope, span: tuple[int, int]) -> list[Argument]:
    """The tensors of a proxy call: inputs, then outputs. A mutated input is listed a second time.

    An operator without outputs may mutate any input, and the wrapper does not say which: its tensors get the
    role `unknown`.
    """
    arguments = scope.argument(5, span, "tensor", "read")
    buffers = [scope.buffers.get(argument.target) for argument in arguments]
    fresh = [buffer is not None and buffer.kind == "declared" for buffer in buffers]
    seen: set[str | None] = set()
    result = []
    for argument, new in zip(arguments, fresh, strict=True):
        if new:
            argument = replace(argument, role="written", fresh=True)
        elif argument.target in seen:
            argument = replace(argument, role="read_write")
        elif not any(fresh):
            argument = replace(argument, role="unknown")
        seen.add(argument.target)
        result.append(argument)
    return result


def _add(
    scope: Scope,
    statement: Statement,
    call: Call,
    kernel: str,
    kind: LaunchKind,
    arguments: list[Argument],
    proxy_index: int | None = None,
) -> None:
    notes = _notes(scope, statement, kernel)
    known = scope.kernels.get(kernel)
    for argument in arguments:
        if argument.kind == "unknown":
            scope.problem(f"the argument {argument.expression} of {kernel}", statement.line, statement.text)
        if argument.fresh and argument.target in scope.buffers and argument.target:
            buffer = scope.buffers.by_name[argument.target]
            scope.buffers.by_name[argument.target] = replace(buffer, kind="returned")
    scope.launches.append(
        Launch(
            index=len(scope.launches),
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
            function=scope.function,
        )
    )


def _notes(scope: Scope, statement: Statement, kernel: str) -> Notes:
    """Take the comments since the previous launch, unless they name another kernel."""
    notes, scope.notes = scope.notes, Notes()
    if not notes.kernel or notes.kernel == kernel:
        return notes
    scope.problem(f"the note above names {notes.kernel}, the call {kernel}", statement.line)
    return Notes()
