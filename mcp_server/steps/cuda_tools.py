"""Where NVIDIA's tools lie: PATH, the toolkit, the pip package inside the workload's interpreter."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

_TOOLKITS = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT")
_DEFAULT = Path("/usr/local")


def find_tool(name: str, python: Path, env: Mapping[str, str]) -> Path | None:
    """The executable `name` (`compute-sanitizer`, `cuda-gdb`); None when there is none."""
    environment = {**os.environ, **env}
    on_path = shutil.which(name, path=environment.get("PATH"))
    if on_path:
        return Path(on_path)
    return next((path for path in _places(name, python, environment) if _runs(path)), None)


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _places(name: str, python: Path, env: Mapping[str, str]) -> Iterator[Path]:
    roots = [Path(env[key]) for key in _TOOLKITS if env.get(key)]
    roots += [_DEFAULT / "cuda", *sorted(_DEFAULT.glob("cuda-*"), reverse=True)]
    for root in roots:
        yield from (root / "bin" / name, root / name / name, root / "extras" / name / name)
    yield from _in_site_packages(name, python)


def _in_site_packages(name: str, python: Path) -> Iterator[Path]:
    """`nvidia-cuda-sanitizer-api` installs below `site-packages/nvidia`, in a folder that moved between
    releases."""
    for folder in sorted(python.parent.parent.glob("lib/python3*/site-packages/nvidia")):
        yield from sorted(folder.glob(f"*/bin/{name}"))
        yield from sorted(folder.glob(f"**/{name}"))
