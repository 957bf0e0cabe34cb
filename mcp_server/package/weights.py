"""Where the weights of a package lie."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mcp_server.json_text import read_json
from mcp_server.package.constants import CompiledConstant
from mcp_server.package.elf import Library
from mcp_server.package.layout import ModelFiles
from mcp_server.package.members import Member

Place = Literal["no_weights", "in_library", "appended", "blob", "weight_files", "absent", "unknown"]

_INCLUDED = re.compile(r":\s*AOTInductorModelBase\([^{]*?,\s*(true|false)\)\s*\{", re.S)


@dataclass(frozen=True)
class Weights:
    """`place` and size in bytes. `absent` means that the caller must load them before the first run.

    in_library: section `.lrodata` of the .so; appended: behind its ELF image, mapped at load
    (`force_mmap_weights`); blob: `*_weights.blob`; weight_files: `data/weights/` (`pickle_weights`).
    """

    place: Place
    bytes: int = 0
    files: tuple[str, ...] = ()


def included_in_library(wrapper: str) -> bool | None:
    """The last argument of the model's base constructor; None where the wrapper does not say."""
    match = _INCLUDED.search(wrapper, max(wrapper.find("AOTInductorModelBase(") - 200, 0))
    return match[1] == "true" if match else None


def weight_files(config: str) -> tuple[str, ...]:
    """File names in a `weights_config.json`: `{fqn: [file, shape, stride, offset]}`. Raises `ValueError`."""
    raw = read_json(config)
    if not isinstance(raw, dict) or not all(isinstance(v, list) and v for v in raw.values()):
        raise ValueError("weights_config.json is not an object of lists")
    return tuple(dict.fromkeys(str(value[0]) for value in raw.values()))


def locate_weights(
    constants: Sequence[CompiledConstant] | None,
    files: ModelFiles,
    library: Library | None,
    included: bool | None,
    listed: tuple[Member, ...] | None,
) -> Weights:
    """Decide from what the package holds; `listed` are the members that a weights config names.

    `constants` is None where the package does not say whether it has any.
    """
    if constants is not None and all(constant.folded for constant in constants):
        return Weights("no_weights")
    if listed is not None:
        return Weights("weight_files", sum(m.size for m in listed), tuple(m.name for m in listed))
    if files.weights_blob is not None:
        return Weights("blob", files.weights_blob.size, (files.weights_blob.name,))
    if library is None:
        return Weights("unknown")
    if library.mapped_weights_bytes is not None:
        return Weights("appended", library.mapped_weights_bytes)
    if included is not False and library.constants_bytes:
        return Weights("in_library", library.constants_bytes)
    return Weights("absent" if constants is not None else "unknown")
