"""The C++ of launches in eager mode, in the forms that Inductor itself generates for calls of operators.

It stands in place of the launch's statement, so that the guards of stream and device above hold for it, too.
It uses only the stable C shim (torch/csrc/inductor/aoti_torch/c/shim.h) and the proxy executor, which every
loader of a package makes (model_container_runner.cpp, torch 2.8-2.15).
"""

from __future__ import annotations

from itertools import count

from mcp_server.package.launches import Argument, Launch, shifted
from mcp_server.package.statements import View
from mcp_server.package.view import PackageView
from mcp_server.worker.events import EagerCode

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
