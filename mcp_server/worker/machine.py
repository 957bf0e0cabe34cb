"""What this interpreter and this machine provide.

`probe` reports versions and GPUs. As a script, this file prints the directories of the headers of torch and
CUDA as a JSON object. To be quick, the script imports only the standard library.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import platform
import re
import sys
import sysconfig
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .protocol import Request
    from .report import Report


def operate(_request: Request, report: Report) -> None:
    """Report events `python`, `cuda`, and `gpu` for each device.

    Each event is reported before the next fact is read, so that a driver crash loses no earlier event.
    """
    import torch

    from .events import Cuda, Gpu, Python  # a script has no relative imports

    report.event(Python(platform.python_version(), _triton_version()))
    why, driver = "this torch is built without CUDA", None
    if torch.version.cuda is not None:
        why, driver = _initialise_cuda()
    report.event(Cuda(not why, why, driver))
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        try:
            properties = torch.cuda.get_device_properties(index)
            capability = "{}{}".format(properties.major, properties.minor)
            report.event(Gpu(index, properties.name, capability))
        except Exception as error:
            report.event(Gpu(index, error="{}: {}".format(type(error).__name__, error)))


def _triton_version() -> str | None:
    from importlib import metadata

    for distribution in ("triton", "pytorch-triton"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "unknown" if importlib.util.find_spec("triton") else None


def _initialise_cuda() -> tuple[str, int | None]:
    """Why CUDA is not available ("" if it is), and the version of its driver, if known."""
    import torch

    driver = ctypes.c_int()
    try:
        torch.cuda.init()
    except Exception as error:
        return str(error) or type(error).__name__, None
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(driver))
    except OSError:
        return "", None
    return "", driver.value


def headers() -> dict[str, object]:
    """Torch's version and the existing directories of headers, in search order; or an error."""
    torch, triton, nvidia = (_package_directory(name) for name in ("torch", "triton", "nvidia"))
    if torch is None:
        return {"error": "torch is not installed in " + sys.executable}
    with open(os.path.join(torch, "version.py"), encoding="utf-8") as file:
        version = re.search(r"""__version__ = ['"]([^'"]+)['"]""", file.read())
    include = os.path.join(torch, "include")
    api = os.path.join(include, "torch", "csrc", "api", "include")
    own = [include, api, sysconfig.get_paths()["include"]]
    # Toolkits of the machine come first, because pip packages (nvidia-cuda-runtime) often lack headers. The
    # packages of CUDA 13 share the folder `cu13`; those of CUDA 12 have one each. Triton has some headers.
    roots = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    cuda = [os.path.join(root, "include") for root in roots if root]
    parts = sorted(name for name in os.listdir(nvidia) if name.startswith("cu")) if nvidia else []
    cuda += [os.path.join(nvidia or "", part, "include") for part in parts]
    cuda += [os.path.join(triton, "backends", "nvidia", "include")] if triton else []
    return {
        "torch_version": version[1] if version else "unknown",
        "include": [path for path in dict.fromkeys(own) if os.path.isdir(path)],
        "cuda_include": [path for path in dict.fromkeys(cuda) if os.path.isdir(path)],
    }


def _package_directory(name: str) -> str | None:
    """The directory of an installed package without importing it."""
    spec = importlib.util.find_spec(name)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return places[0] if places else None


if __name__ == "__main__":
    print(json.dumps(headers()))
