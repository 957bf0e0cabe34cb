"""Compile one package of an unusual form: `python -m tests.zoo.forms FORM DIRECTORY`.

Writes FORM.pt2 and FORM.inputs.pt. One small model is enough, since only the form differs: constants folded
at the first call, weights mapped from behind the library, in a blob, or in files beside it, or (given a
compiler that links so) a library that hides its kernels and constants.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

FORMS: dict[str, dict[str, Any]] = {
    "folding": {"aot_inductor.use_runtime_constant_folding": True},
    "mapped": {"aot_inductor.force_mmap_weights": True},
    "blob": {"aot_inductor.package_constants_on_disk_format": "binary_blob"},
    "files": {
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.package_constants_on_disk_format": "pickle_weights",
    },
    "hidden": {},
}


class Mixed(nn.Module):
    """Its two weights make one that does not depend on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.randn(16, 16))
        self.right = nn.Parameter(torch.randn(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() @ (self.left @ self.right).relu()


def main(form: str, directory: str) -> None:
    torch.manual_seed(0)
    sample = (torch.randn(4, 16),)
    exported = torch.export.export(Mixed(), sample)
    target = Path(directory) / f"{form}.pt2"
    partial = target.with_suffix(".partial.pt2")
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(
            exported, package_path=str(partial), inductor_configs=FORMS[form]
        )
    torch.save(list(sample), target.with_suffix(".inputs.pt"))
    partial.rename(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
