"""`python build.py NAME DIRECTORY DEVICE`: writes NAME.pt2, NAME.good.pt and NAME.bad.pt."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from programs import PROGRAMS, bad_inputs, export


def main(name: str, directory: str, device: str) -> None:
    """Compile one program."""
    if device == "cuda":
        import cuda_programs  # noqa: F401 - adds its programs and triton's
    program, where = PROGRAMS[name], Path(directory)
    torch.save([tensor.to(device) for tensor in program.good()], where / f"{name}.good.pt")
    torch.save(bad_inputs(program, device), where / f"{name}.bad.pt")
    partial = where / f"{name}.partial.pt2"
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(
            export(program, device), package_path=str(partial), inductor_configs=dict(program.configs)
        )
    partial.rename(where / f"{name}.pt2")


if __name__ == "__main__":
    main(*sys.argv[1:4])
