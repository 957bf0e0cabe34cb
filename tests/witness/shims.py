"""Parameters of the C shims, from the headers of the installed torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_DECLARATION = re.compile(r"AOTI_TORCH_EXPORT\s+AOTITorchError\s+(\w+)\(([^)]*)\)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a C function: `AtenTensorHandle* ret0` has type `AtenTensorHandle*`."""

    name: str
    type: str

    @property
    def base(self) -> str:
        return self.type.rstrip("*")

    @property
    def is_result(self) -> bool:
        """Whether the function writes its answer there."""
        return self.type.endswith("*") and self.name.startswith(("ret", "new_handle"))

    @property
    def is_float(self) -> bool:
        return self.type in ("double", "float")


def read_shims(include: Path) -> dict[str, tuple[Parameter, ...]]:
    """Every shim declared below torch's include directory."""
    shims = {}
    for header in sorted((include / "torch/csrc/inductor/aoti_torch").rglob("*.h")):
        text = _COMMENT.sub("", header.read_text(encoding="utf-8"))
        for name, parameters in _DECLARATION.findall(text):
            shims[name] = tuple(_parameter(part) for part in parameters.split(",") if part.strip())
    return shims


def _parameter(text: str) -> Parameter:
    type_, _, name = " ".join(text.partition("=")[0].split()).rpartition(" ")
    stars = len(name) - len(name.lstrip("*"))
    return Parameter(name[stars:], type_.removeprefix("const ") + "*" * stars)
