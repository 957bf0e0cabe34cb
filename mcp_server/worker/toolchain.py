"""Prints where this interpreter's torch and CUDA headers lie, as one JSON object.

A script of its own, since it must be quick: nothing is imported but the standard library, torch least of all.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import sysconfig
from typing import Optional

CUDA_HEADER = "cuda_runtime_api.h"


def package_directory(name: str) -> Optional[str]:
    """The directory of an installed package, found without importing it."""
    spec = importlib.util.find_spec(name)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return places[0] if places else None


def torch_version(directory: str) -> str:
    with open(os.path.join(directory, "version.py"), encoding="utf-8") as file:
        found = re.search(r"""__version__ = ['"]([^'"]+)['"]""", file.read())
    return found[1] if found else "unknown"


def existing(paths: "list[str]") -> "list[str]":
    return [path for path in dict.fromkeys(paths) if os.path.isdir(path)]


def cuda_roots() -> "list[str]":
    """Toolkits of the machine first: the pip packages often lack headers (nvidia-cuda-runtime alone does)."""
    roots = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    return [root for root in roots if root]


def cuda_includes() -> "list[str]":
    """Directories with the CUDA runtime headers: toolkit, pip packages, the copy that Triton brings along."""
    triton, nvidia = package_directory("triton"), package_directory("nvidia")
    candidates = [os.path.join(root, "include") for root in cuda_roots()]
    candidates += [os.path.join(nvidia, part, "include") for part in pip_parts(nvidia)] if nvidia else []
    candidates += [os.path.join(triton, "backends", "nvidia", "include")] if triton else []
    return existing(candidates)


def pip_parts(nvidia: str) -> "list[str]":
    """`cu13` and later hold everything; CUDA 12 is split by component."""
    return sorted(name for name in os.listdir(nvidia) if name.startswith("cu"))


def describe() -> "dict[str, object]":
    torch = package_directory("torch")
    if torch is None:
        return {"error": "torch is not installed in " + sys.executable}
    include = os.path.join(torch, "include")
    headers = [include, os.path.join(include, "torch", "csrc", "api", "include")]
    return {
        "torch_version": torch_version(torch),
        "include": existing([*headers, sysconfig.get_paths()["include"]]),
        "cuda_include": cuda_includes(),
    }


if __name__ == "__main__":
    print(json.dumps(describe()))
