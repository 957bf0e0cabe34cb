"""Compile one model of the zoo: `python -m tests.zoo.build NAME DIRECTORY [DEVICE]`.

Writes NAME.pt2 (the package), NAME.exported.pt2 (the exported program), NAME.inputs.pt (good inputs) and
NAME.bad-KIND.pt for each kind of bad input.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tests.zoo.models import ENTRIES, export


def main(name: str, directory: str, device: str = "cpu") -> None:
    if device == "cuda":
        import tests.zoo.triton_models  # noqa: F401 - adds the entries that need triton
    where = Path(directory)
    entry = ENTRIES[name]
    exported = export(name, device)
    torch.export.save(exported, where / f"{name}.exported.pt2")
    torch.save([t.to(device) for t in entry.sample(8)], where / f"{name}.inputs.pt")
    for kind, make in entry.bad.items():
        torch.save([t.to(device) for t in make()], where / f"{name}.bad-{kind}.pt")
    partial = where / f"{name}.partial.pt2"
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(exported, package_path=str(partial))
    partial.rename(where / f"{name}.pt2")


if __name__ == "__main__":
    main(*sys.argv[1:])
