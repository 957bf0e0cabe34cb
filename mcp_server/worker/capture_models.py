"""What the hook tells of the program's own modules: as they were exported, and beside a failed comparison.

A package keeps the weights and the plain attributes that its module had at export. When the program then
compares it with a module that has others, the difference between the two is the cause.
"""

from __future__ import annotations

import ast
from types import FrameType
from typing import Any, Iterator, Optional

import torch

from .calling import capturing, idle
from .checksums import checksum
from .layout import storage_bytes
from .source_at import innermost, variable
from .storehouse import Storehouse

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
    """Modules that these frames hold, innermost first: in variables, or in attributes of one."""
    seen: set[int] = set()
    for name, value in _variables(frames):
        for label, found in ((name, value), *_held(name, value)):
            if isinstance(found, torch.nn.Module) and id(found) not in seen and len(seen) < MOST_MODULES:
                seen.add(id(found))
                yield label, found


def named_modules(frame: FrameType) -> set[int]:
    """Identities of the modules that the statement at which the frame stands names."""
    statement = innermost(frame, frame.f_lineno)
    values = [_value(node, frame) for node in ast.walk(statement)] if statement is not None else []
    return {id(value) for value in values if isinstance(value, torch.nn.Module)}


def _value(node: ast.AST, frame: FrameType) -> Any:
    """What a name, or an attribute of one, is in the frame; properties are not asked."""
    if isinstance(node, ast.Name):
        return variable(node.id, frame)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return getattr(_value(node.value, frame), "__dict__", {}).get(node.attr)
    return None


class Models:
    """Remembers the digests of what was compiled, to know which module was."""

    def __init__(self, store: Storehouse) -> None:
        self.store = store
        self.compiled: list[dict[str, str]] = []

    def compiling(self, state: dict[str, torch.Tensor]) -> dict[str, str]:
        """Digests of the parameters and buffers of a program that is compiled now."""
        self.compiled.append(digests(state))
        return self.compiled[-1]

    def beside(self, number: int, frames: list[FrameType]) -> list[dict[str, Any]]:
        """Facts of each module in these frames that has the constants of a compiled program, by name.

        None on a device that is still at work: the exception may be about what it does not finish.
        """
        found: list[dict[str, Any]] = []
        if capturing() or not idle():
            return found
        named = named_modules(frames[0]) if frames else set()
        for label, module in modules_near(frames):
            tensors = tensors_of(module)
            told = digests(tensors)
            if any(known and known.keys() <= told.keys() for known in self.compiled):
                path = None if told in self.compiled else self._kept(number, len(found), tensors)
                found.append(
                    {
                        "name": label,
                        "type": type(module).__name__,
                        "named": id(module) in named,
                        "digests": told,
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


def _variables(frames: list[FrameType]) -> Iterator[tuple[str, Any]]:
    """Variables of the frames, innermost first, then the global ones of their files."""
    for frame in frames:
        yield from list(frame.f_locals.items())
    for frame in frames:
        yield from list(frame.f_globals.items())


def _held(name: str, value: Any) -> list[tuple[str, Any]]:
    """Attributes of an object of the program's own, such as a server that holds its model."""
    own = not isinstance(value, (torch.nn.Module, torch.Tensor, type)) and hasattr(value, "__dict__")
    if not own or type(value).__module__.partition(".")[0] in ("torch", "builtins"):
        return []
    return [("{}.{}".format(name, key), held) for key, held in list(vars(value).items())]
