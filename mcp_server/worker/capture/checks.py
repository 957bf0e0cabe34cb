"""What a failed check of the program compared: tensors in its frames, outputs, and its own modules.

Tensors that a program held when a check of its own failed: one may be what the check expected.

Those of its variables, and attributes of what is in them, where the functions that it was in name them.

Which call gave the tensors that a check of the program's own looked at.

A program may make many calls, keep what they gave, and look at it in the end: the check then fails over a
call that is not the last.

What the hook tells of the program's own modules: as they were exported, and beside a failed comparison.

A package keeps the weights and the plain attributes that its module had at export. When the program then
compares it with a module that has others, the difference between the two is the cause.
"""

from __future__ import annotations

import ast
import linecache
import weakref
from collections import deque
from types import FrameType
from typing import Any, Iterator, Optional

import torch

from ..calling import capturing, idle
from ..tensors import checksum, storage_bytes
from .journal import CaptureStore
from .memory import address_of


def innermost(frame: FrameType, line: int, kinds: Any = ast.stmt) -> Optional[ast.stmt]:
    """The last statement of these kinds to begin around that line; None where the source is not to be had."""
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    around = [node for node in ast.walk(tree) if isinstance(node, kinds) and _holds(node, line)]
    return max(around, key=lambda node: (node.lineno, node.col_offset), default=None)


def function_at(frame: FrameType, line: int) -> Optional[ast.stmt]:
    """The function that stands around that line; None at the top level of a module."""
    return innermost(frame, line, (ast.FunctionDef, ast.AsyncFunctionDef))


def variable(name: str, frame: FrameType) -> Any:
    """Of the function, else of its module; None where there is none."""
    return frame.f_locals.get(name, frame.f_globals.get(name))


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


GREATER, LESS = (ast.Gt, ast.GtE), (ast.Lt, ast.LtE)


def compared(places: "list[tuple[FrameType, int]]") -> list[str]:
    """Names of the variables and attributes that the check at the innermost of these lines is computed from.

    Empty if the check fails because a value is too small (a score threshold, for example).
    """
    for frame, line in places:
        check = innermost(frame, line, (ast.If, ast.Assert))
        if isinstance(check, (ast.If, ast.Assert)):
            function = function_at(frame, line)
            return sorted(_behind(check.test, function)) if _wants_likeness(check) else []
    return []


def _wants_likeness(check: "ast.If | ast.Assert") -> bool:
    """Whether it fails where a number is too large, or where something is not equal or close."""
    wrong = LESS if isinstance(check, ast.If) else GREATER
    tests = [each for each in ast.walk(check.test) if isinstance(each, ast.Compare)]
    return not any(isinstance(sign, wrong) for test in tests for sign in test.ops)


def _behind(test: ast.AST, function: "ast.stmt | None") -> set[str]:
    """Names in the test, and in what the function assigned to them."""
    assigned: dict[str, list[ast.AST]] = {}
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name in _names(target):
                    assigned.setdefault(name, []).append(node.value)
    found, left = set(), list(_names(test))
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += [each for value in assigned.get(name, ()) for each in _names(value)]
    return found


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
            yield "{}.{}".format(each.value.id, each.attr)


MAX_FRAME_TENSORS = 8
MAX_FRAME_BYTES = 64 << 20


def copies(frames: list[FrameType], devices: "frozenset[torch.device]") -> dict[str, torch.Tensor]:
    """Copies of tensors in variables of these frames by name, innermost first, as far as they are few and
    small, and on these devices.
    """
    found: dict[str, torch.Tensor] = {}
    left = MAX_FRAME_BYTES
    for name, value in _tensors_in(frames):
        size = value.numel() * value.element_size()
        if name not in found and value.device in devices and size <= left and len(found) < MAX_FRAME_TENSORS:
            found[name] = value.detach().clone()
            left -= size
    return found


def host() -> "frozenset[torch.device]":
    """Not a constant of this file: a device cannot be made while torch is being imported, as the hook is."""
    return frozenset({torch.device("cpu")})


def readable() -> "frozenset[torch.device]":
    """The host, and the current device if it is neither at work still nor broken."""
    if not torch.cuda.is_initialized() or capturing() or not idle():
        return host()
    return host() | {torch.device("cuda", torch.cuda.current_device())}


def _tensors_in(frames: list[FrameType]) -> Iterator[tuple[str, torch.Tensor]]:
    """Variables of all frames, then attributes, by names that have a dot."""
    found = [(name, value) for frame in frames for name, value in list(frame.f_locals.items())]
    found += [named for frame in frames for named in _attributes(frame)]
    yield from ((name, value) for name, value in found if isinstance(value, torch.Tensor) and _plain(value))


def _attributes(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Attributes of variables that the function of this frame names; properties are not asked."""
    function = function_at(frame, frame.f_lineno)
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            holder = getattr(frame.f_locals.get(node.value.id), "__dict__", {})
            if isinstance(holder, dict):
                yield "{}.{}".format(node.value.id, node.attr), holder.get(node.attr)


def _plain(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.numel() > 1


def keep(store: CaptureStore, number: int, frames: list[FrameType]) -> Optional[str]:
    """The file with those tensors; None where there are none."""
    try:
        found = copies(frames, readable())
    except RuntimeError:  # no memory for them on the device
        found = copies(frames, host())
    return store.save("held", number, found) if found else None


MAX_REMEMBERED_OUTPUTS = 4096  # outputs that are remembered


class Returned:
    """Remembers the outputs of the latest calls, as long as the program keeps them."""

    def __init__(self) -> None:
        self.outputs: deque[tuple[int, Any]] = deque(maxlen=MAX_REMEMBERED_OUTPUTS)

    def keep(self, call: int, outputs: Any) -> None:
        self.outputs.extend((call, weakref.ref(each)) for each in outputs if isinstance(each, torch.Tensor))

    def calls(self, tensors: list[torch.Tensor]) -> list[int]:
        """The calls whose outputs these are, or show a part of, each once.

        Memory that several calls gave, a constant's or an input's, names none of them.
        """
        owners: dict[int, set[int]] = {}
        for call, reference in list(self.outputs):
            output = reference()
            if output is not None:
                owners.setdefault(address_of(output), set()).add(call)
        found = [owners.get(address_of(tensor), set()) for tensor in tensors if address_of(tensor)]
        return list(dict.fromkeys(call for each in found if len(each) == 1 for call in each))


def looked_at(places: "list[tuple[FrameType, int]]") -> list[torch.Tensor]:
    """The tensors that the check at the innermost of these lines names.

    Not all that its frames hold: those may be of calls that it does not look at.
    """
    for frame, line in places:
        found = [value for node in _tested(frame, line) for value in _tensors(node, frame)]
        if found:
            return found
    return []


def _tested(frame: FrameType, line: int) -> Iterator[ast.AST]:
    """The expressions that the innermost `if` or `assert` around this line tests."""
    check = innermost(frame, line, (ast.If, ast.Assert))
    if isinstance(check, (ast.If, ast.Assert)):
        yield from ast.walk(check.test)


def _tensors(node: ast.AST, frame: FrameType) -> Iterator[torch.Tensor]:
    value = _output_value(node, frame)
    if isinstance(value, torch.Tensor):
        yield value


def _output_value(node: ast.AST, frame: FrameType) -> Any:
    """Of a variable, or of `outputs[k]`: what needs no code of the program's."""
    if isinstance(node, ast.Name):
        return variable(node.id, frame)
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Subscript):
        holder, key = _output_value(node.value, frame), _output_value(node.slice, frame)
        fits = type(holder) in (list, tuple) and type(key) is int and -len(holder) <= key < len(holder)
        known = type(holder) is dict and type(key) in (int, str)
        return holder[key] if fits else holder.get(key) if known else None
    return None


PLAIN = (bool, int, float, str)
MOST_MODULES = 8  # near one comparison
MOST_ATTRIBUTES = 400


def attributes(module: torch.nn.Module) -> dict[str, str]:
    """Plain attributes of a module and its children, by dotted name, as text; `training` is one of them."""
    found: dict[str, str] = {}
    for path, child in module.named_modules():
        for name, value in vars(child).items():
            if isinstance(value, PLAIN) and not name.startswith("_") and len(found) < MOST_ATTRIBUTES:
                found["{}.{}".format(path, name).lstrip(".")] = repr(value)[:200]
    return found


def digests(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """A digest of the values of each tensor that has some; none at all where they cannot be looked at.

    A device may have no memory left for it, or an error of an earlier kernel, after which all calls fail; a
    fake tensor has none.
    """
    try:
        return {name: checksum(value.detach()) for name, value in tensors.items() if _has_values(value)}
    except Exception:
        return {}


def tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, tied ones under each of their names."""
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return dict(named)


def modules_near(frames: list[FrameType]) -> Iterator[tuple[str, torch.nn.Module]]:
    """Modules in the variables of these frames, or in their attributes, innermost first."""
    seen: set[int] = set()
    for name, value in _model_variables(frames):
        for label, found in ((name, value), *_own_attributes(name, value)):
            if isinstance(found, torch.nn.Module) and id(found) not in seen and len(seen) < MOST_MODULES:
                seen.add(id(found))
                yield label, found


def named_modules(frame: FrameType) -> set[int]:
    """Identities of the modules that the statement at which the frame stands names."""
    statement = innermost(frame, frame.f_lineno)
    values = [_model_value(node, frame) for node in ast.walk(statement)] if statement is not None else []
    return {id(value) for value in values if isinstance(value, torch.nn.Module)}


def _model_value(node: ast.AST, frame: FrameType) -> Any:
    """What a name, or an attribute of one, is in the frame; properties are not asked."""
    if isinstance(node, ast.Name):
        return variable(node.id, frame)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return getattr(_model_value(node.value, frame), "__dict__", {}).get(node.attr)
    return None


class Models:
    """Remembers the digests of compiled programs, to recognise their modules."""

    def __init__(self, store: CaptureStore) -> None:
        self.store = store
        self.compiled: list[dict[str, str]] = []

    def compiling(self, state: dict[str, torch.Tensor]) -> dict[str, str]:
        """Digests of the parameters and buffers of a program that is compiled now."""
        self.compiled.append(digests(state))
        return self.compiled[-1]

    def near(self, number: int, frames: list[FrameType]) -> list[dict[str, Any]]:
        """Facts of each module in these frames that has the constants of a compiled program, by name.

        None on a device that is still at work: the exception may be about what it does not finish.
        """
        found: list[dict[str, Any]] = []
        if capturing() or not idle():
            return found
        named = named_modules(frames[0]) if frames else set()
        for label, module in modules_near(frames):
            tensors = tensors_of(module)
            known_digests = digests(tensors)
            if any(known and known.keys() <= known_digests.keys() for known in self.compiled):
                path = None if known_digests in self.compiled else self._kept(number, len(found), tensors)
                found.append(
                    {
                        "name": label,
                        "type": type(module).__name__,
                        "named": id(module) in named,
                        "digests": known_digests,
                        "attributes": attributes(module),
                        "file": path,
                    }
                )
        return found

    def _kept(self, number: int, place: int, tensors: dict[str, torch.Tensor]) -> Optional[str]:
        if storage_bytes(list(tensors.values())) > self.store.cap:
            return None
        state = {name: value.detach() for name, value in tensors.items()}
        return self.store.save("module-{}".format(place), number, state)


def _has_values(value: torch.Tensor) -> bool:
    """False for meta tensors, and for those whose memory was given back."""
    plain = value.layout is torch.strided and value.device.type != "meta" and not value.is_nested
    return plain and value.untyped_storage().nbytes() >= value.numel() * value.element_size()


def _model_variables(frames: list[FrameType]) -> Iterator[tuple[str, Any]]:
    """Variables of the frames, innermost first, then the global ones of their files."""
    for frame in frames:
        yield from list(frame.f_locals.items())
    for frame in frames:
        yield from list(frame.f_globals.items())


def _own_attributes(name: str, value: Any) -> list[tuple[str, Any]]:
    """Attributes of an object of a user's class, such as a server with a model attribute."""
    own = not isinstance(value, (torch.nn.Module, torch.Tensor, type)) and hasattr(value, "__dict__")
    if not own or type(value).__module__.partition(".")[0] in ("torch", "builtins"):
        return []
    return [("{}.{}".format(name, key), item) for key, item in list(vars(value).items())]
