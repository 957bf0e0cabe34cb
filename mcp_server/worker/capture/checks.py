"""What a failed check of the program compared: tensors in its frames, outputs of calls, its own modules.

A tensor in a variable may be what the check expected. A program may make many calls and check their outputs
in the end: the check then fails over a call that is not the last. And a package keeps the weights and the
plain attributes that its module had at export: when the program compares it with a module that has others,
the difference between the two is the cause.
"""

from __future__ import annotations

import ast
import linecache
from types import FrameType
from typing import Any, Iterator, List, Optional, Tuple

import torch

from ..process import capturing, idle
from ..tensors import checksum, storage_bytes
from .events import NearModule
from .journal import CaptureStore

Places = List[Tuple[FrameType, int]]  # frames with the line in each, innermost first
CHECKS = (ast.If, ast.Assert)


def innermost(frame: FrameType, line: int, kinds: Any = ast.stmt) -> Optional[ast.stmt]:
    """The last statement of these kinds to begin around that line; None where the source is not to be had."""
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    statements = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    around = [node for node in statements if node.lineno <= line <= (node.end_lineno or node.lineno)]
    return max(around, key=lambda node: (node.lineno, node.col_offset), default=None)


def function_nodes(frame: FrameType, line: int) -> Iterator[ast.AST]:
    """The nodes of the function around that line; none at the top level of a module."""
    function = innermost(frame, line, (ast.FunctionDef, ast.AsyncFunctionDef))
    yield from ast.walk(function) if function is not None else ()


def value_of(node: ast.AST, frame: FrameType) -> Any:
    """Of a variable, `holder.attribute` or `outputs[k]`: what needs no code of the program's; else None."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return attribute_of(value_of(node.value, frame), node.attr)
    if isinstance(node, ast.Subscript):
        holder, key = value_of(node.value, frame), value_of(node.slice, frame)
        if type(holder) in (list, tuple) and type(key) is int and -len(holder) <= key < len(holder):
            return holder[key]
        return holder.get(key) if type(holder) is dict and type(key) in (int, str) else None
    return None


def attribute_of(holder: Any, name: str) -> Any:
    """An attribute of the object itself: properties would run code of the program's."""
    own = getattr(holder, "__dict__", None)
    return own.get(name) if isinstance(own, dict) else None


def checks_at(places: Places) -> Iterator[tuple[FrameType, int, Any]]:
    """The check around each of these lines that has one, with its frame and line."""
    for frame, line in places:
        check = innermost(frame, line, CHECKS)
        if check is not None:
            yield frame, line, check


def compared(places: Places) -> list[str]:
    """Names of the variables and attributes that the check at the innermost of these lines is computed from.

    Empty if the check fails because a value is too small (a score threshold, for example).
    """
    for frame, line, check in checks_at(places):
        too_small = (ast.Lt, ast.LtE) if isinstance(check, ast.If) else (ast.Gt, ast.GtE)
        if any(isinstance(node, too_small) for node in ast.walk(check.test)):
            return []
        assigned: dict[str, list[ast.AST]] = {}
        for node in function_nodes(frame, line):
            if isinstance(node, ast.Assign):
                for name in (name for target in node.targets for name in _names(target)):
                    assigned.setdefault(name, []).append(node.value)
        found, left = set(), list(_names(check.test))
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += [each for value in assigned.get(name, ()) for each in _names(value)]
        return sorted(found)
    return []


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
            yield "{}.{}".format(each.value.id, each.attr)


MAX_FRAME_TENSORS = 8
MAX_FRAME_BYTES = 64 << 20


def keep(store: CaptureStore, number: int, frames: list[FrameType]) -> Optional[str]:
    """The file with the tensors of these frames (`copies`); None where there are none."""
    try:
        found = copies(frames, readable_device())
    except RuntimeError:  # no memory for them on the device
        found = copies(frames, None)
    return store.save("frame_tensors", number, found) if found else None


def readable_device() -> Optional[torch.device]:
    """The current CUDA device if it is neither at work still nor broken."""
    if not torch.cuda.is_initialized() or capturing() or not idle():
        return None
    return torch.device("cuda", torch.cuda.current_device())


def copies(frames: list[FrameType], device: Optional[torch.device]) -> dict[str, torch.Tensor]:
    """Copies of the few small tensors in these frames, by name: variables first, then named attributes."""
    named = [(name, value) for frame in frames for name, value in list(frame.f_locals.items())]
    for frame in frames:
        for node in function_nodes(frame, frame.f_lineno):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                holder = frame.f_locals.get(node.value.id)
                named.append(("{}.{}".format(node.value.id, node.attr), attribute_of(holder, node.attr)))
    found: dict[str, torch.Tensor] = {}
    left = MAX_FRAME_BYTES
    for name, value in named:
        if type(value) is not torch.Tensor or value.layout is not torch.strided or value.numel() <= 1:
            continue
        size = value.numel() * value.element_size()
        readable = value.device.type == "cpu" or value.device == device
        if name not in found and readable and size <= left and len(found) < MAX_FRAME_TENSORS:
            found[name] = value.detach().clone()
            left -= size
    return found


def looked_at(places: Places) -> list[torch.Tensor]:
    """The tensors that the check at the innermost of these lines names, not all in its frames."""
    for frame, _, check in checks_at(places):
        values = [value_of(node, frame) for node in ast.walk(check.test)]
        found = [value for value in values if isinstance(value, torch.Tensor)]
        if found:
            return found
    return []


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
    """A digest of the values of each tensor that has some; none at all where they cannot be read.

    A device may have no memory left for it, or an error of an earlier kernel, after which all calls fail; a
    fake tensor has none. Nor has a meta tensor, or one whose memory was freed.
    """
    found = {}
    try:
        for name, value in tensors.items():
            plain = value.layout is torch.strided and value.device.type != "meta" and not value.is_nested
            if plain and value.untyped_storage().nbytes() >= value.numel() * value.element_size():
                found[name] = checksum(value.detach())
    except Exception:
        return {}
    return found


def tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, tied ones under each of their names."""
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return dict(named)


def modules_near(frames: list[FrameType]) -> Iterator[tuple[str, torch.nn.Module]]:
    """Modules in variables of these frames, innermost first, then in global ones, or in their attributes."""
    seen: set[int] = set()
    variables = [pair for frame in frames for pair in list(frame.f_locals.items())]
    variables += [pair for frame in frames for pair in list(frame.f_globals.items())]
    for name, value in variables:
        named = [(name, value)]
        # Attributes of an object of a user's class, such as a server with a model attribute.
        own = not isinstance(value, (torch.nn.Module, torch.Tensor, type)) and hasattr(value, "__dict__")
        if own and type(value).__module__.partition(".")[0] not in ("torch", "builtins"):
            named += [("{}.{}".format(name, key), item) for key, item in list(vars(value).items())]
        for label, found in named:
            if isinstance(found, torch.nn.Module) and id(found) not in seen and len(seen) < MOST_MODULES:
                seen.add(id(found))
                yield label, found


def named_modules(frame: FrameType) -> set[int]:
    """Identities of the modules that the statement at which the frame stands names."""
    statement = innermost(frame, frame.f_lineno)
    values = [value_of(node, frame) for node in ast.walk(statement)] if statement is not None else []
    return {id(value) for value in values if isinstance(value, torch.nn.Module)}


class Models:
    """Remembers the digests of compiled programs, to recognise their modules."""

    def __init__(self, store: CaptureStore) -> None:
        self.store = store
        self.compiled: list[dict[str, str]] = []

    def compiling(self, state: dict[str, torch.Tensor]) -> dict[str, str]:
        """Digests of the parameters and buffers of a program that is compiled now."""
        self.compiled.append(digests(state))
        return self.compiled[-1]

    def near(self, number: int, frames: list[FrameType]) -> list[NearModule]:
        """Facts of each module in these frames that has the constants of a compiled program, by name.

        None on a device that is still at work: the exception may be about what it does not finish.
        """
        found: list[NearModule] = []
        if capturing() or not idle():
            return found
        named = named_modules(frames[0]) if frames else set()
        for label, module in modules_near(frames):
            tensors = tensors_of(module)
            values = digests(tensors)
            if not any(known and known.keys() <= values.keys() for known in self.compiled):
                continue
            path = None
            if values not in self.compiled and storage_bytes(list(tensors.values())) <= self.store.cap:
                state = {name: value.detach() for name, value in tensors.items()}
                path = self.store.save("module-{}".format(len(found)), number, state)
            known_by = id(module) in named
            found.append(NearModule(label, type(module).__name__, known_by, values, attributes(module), path))
        return found
