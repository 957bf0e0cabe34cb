"""The guides: where they lie, and which family of errors each is for."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
INSTALLED = Path(sys.prefix) / "share" / "aoti-debug"


@dataclass(frozen=True)
class Guide:
    """One guide. `prompt` is the name of the MCP prompt that starts its procedure."""

    file: str
    title: str
    prompt: str

    @property
    def path(self) -> Path:
        """Beside the package in a checkout or skill folder, in the shared data of an installed wheel."""
        beside = ROOT / self.file
        return beside if beside.is_file() else INSTALLED / self.file

    @property
    def uri(self) -> str:
        return f"aoti-debug://guides/{self.file}"


GUIDES = (
    Guide("SKILL.md", "Debug any AOTInductor failure", "debug_aoti_failure"),
    Guide("triton-index-out-of-bounds.md", "Trace an index out of bounds", "debug_index_out_of_bounds"),
    Guide("cuda-illegal-memory-access.md", "Locate an illegal memory access", "debug_illegal_memory_access"),
    Guide("nan-and-wrong-output.md", "Find the origin of NaN or wrong output", "debug_nan_or_wrong_output"),
    Guide(
        "dynamic-shapes-and-custom-ops.md",
        "Check inputs, dynamic shapes and custom ops",
        "debug_shapes_and_ops",
    ),
)


def available() -> list[Guide]:
    """The guides that are really there."""
    return [guide for guide in GUIDES if guide.path.is_file()]
