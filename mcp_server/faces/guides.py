"""The guides and the reference pages: where they are, and which failure each is for."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
INSTALLED = Path(sys.prefix) / "share" / "aoti-debug"


@dataclass(frozen=True)
class Guide:
    """One guide. `prompt` names the MCP prompt that starts its procedure; a reference page has none."""

    file: str
    title: str
    prompt: str = ""

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
    Guide("memory-faults.md", "Locate an illegal memory access or crash", "debug_illegal_memory_access"),
    Guide("nan-and-wrong-output.md", "Find the origin of NaN or wrong output", "debug_nan_or_wrong_output"),
    Guide(
        "inputs-shapes-custom-ops.md",
        "Check inputs, dynamic shapes and custom ops",
        "debug_shapes_and_ops",
    ),
    Guide("building-and-loading.md", "Build and load a package, out of memory", "debug_building_and_loading"),
    Guide("hangs-and-concurrency.md", "Find what a call waits for", "debug_hang_or_concurrency"),
    Guide("weights-and-constants.md", "Check weights and their updates", "debug_weights"),
    Guide("cpu-packages.md", "Debug a CPU package, on one page", "debug_cpu_package"),
)
REFERENCE = (
    Guide("reference/error-texts.md", "Error texts: what each says, and what it does not"),
    Guide("reference/flags.md", "Flags that the guides use"),
    Guide("reference/interventions.md", "How a cause is proven and a fix is tried"),
    Guide("reference/silent-faults.md", "Faults without an error, and checks that are wrong"),
    Guide("reference/api.md", "Calls: current, deprecated, for debugging"),
    Guide("reference/pytorch-documents.md", "Where PyTorch's documents differ from measurements"),
)


def available(pages: Iterable[Guide] = GUIDES) -> list[Guide]:
    """The pages that are really there."""
    return [page for page in pages if page.path.is_file()]
