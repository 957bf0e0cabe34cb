"""Compile zoo models with the value printer, run them, and keep what they print.

`python -m tests.package.printed DIRECTORY NAME...` writes NAME.pt2 and NAME.txt. The printer (level 2) names
each launch and each tensor argument, with its size, while the model runs: a witness for the reader, since it
shares no code with it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from tests.zoo.models import ENTRIES, export


def main(directory: str, *names: str) -> None:
    where = Path(directory)
    for name in names:
        package = where / f"{name}.pt2"
        with torch.no_grad():
            torch._inductor.aoti_compile_and_package(export(name), package_path=str(package))
        loader = torch._C._aoti.AOTIModelPackageLoader(str(package), "model", False, 1, -1)
        _printing_to(where / f"{name}.txt", partial(loader.run, [*ENTRIES[name].sample(8)]))


def _printing_to(file: Path, run: Callable[[], object]) -> None:
    """Run with the process's standard output in a file: the printer writes to C++ streams."""
    sys.stdout.flush()
    kept = os.dup(1)
    target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(target, 1)
    try:
        run()
    finally:
        os.dup2(kept, 1)
        os.close(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
