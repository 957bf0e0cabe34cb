"""What this interpreter and this machine have.

`probe` reports it from a process with torch. Run as a script, this file prints where the headers of torch and
CUDA lie, as one JSON object; it must be quick, so it imports the standard library only.
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
from typing import TYPE_CHECKING, Any, Callable, Optional

if TYPE_CHECKING:
    from .protocol import Request
    from .report import Report


def operate(_request: Request, report: Report) -> None:
    """Events `python`, `torch_build`, `libraries`, `cpu`, `cuda`, `gpu` (one per device)."""
    import torch

    report.event("python", version=platform.python_version(), executable=sys.executable, prefix=sys.prefix)
    report.event(
        "torch_build",
        version=torch.__version__,
        git=getattr(torch.version, "git_version", None),
        cuda=torch.version.cuda,
        hip=getattr(torch.version, "hip", None),
        directory=os.path.dirname(torch.__file__),
        cxx11_abi=bool(torch._C._GLIBCXX_USE_CXX11_ABI),
    )
    report.event("libraries", **{name: _version(name) for name in ("triton", "numpy")})
    # Inductor would name the ISA as a package's metadata does, and takes seconds to be imported.
    capability = torch.backends.cpu.get_cpu_capability()
    report.event("cpu", machine=platform.machine(), count=os.cpu_count(), capability=capability)
    report.event("cuda", **_cuda())
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        report.event("gpu", index=index, **_attempt(lambda index=index: _gpu(index)))  # type: ignore[misc]


def _attempt(read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return read()
    except Exception as error:
        return {"error": "{}: {}".format(type(error).__name__, error)}


def _version(name: str) -> Optional[str]:
    """Version of an installed distribution, None when there is none; nothing is imported."""
    from importlib import metadata

    for distribution in (name, "pytorch-" + name):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "unknown" if importlib.util.find_spec(name) else None


def _cuda() -> dict[str, Any]:
    """Whether CUDA works in this process, and torch's own words when it does not."""
    import torch

    if torch.version.cuda is None:
        return {"available": False, "why": "this torch is built without CUDA", "devices": 0}
    facts = {"visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "arch_list": torch.cuda.get_arch_list()}
    try:
        torch.cuda.init()
    except Exception as error:
        return {"available": False, "why": str(error), "devices": 0, **facts}
    return {"available": True, "why": "", "devices": torch.cuda.device_count(), **facts, **_attempt(_driver)}


def _driver() -> dict[str, Any]:
    """`driver_cuda`: the newest CUDA that the driver runs, as 1000 * major + 10 * minor."""
    import torch

    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return {"driver_cuda": version.value, "runtime_cuda": torch._C._cuda_getCompiledVersion()}


def _gpu(index: int) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    return {
        "name": properties.name,
        "capability": "{}{}".format(properties.major, properties.minor),
        "multiprocessors": properties.multi_processor_count,
        "free_bytes": free,
        "total_bytes": total,
    }


def headers() -> dict[str, object]:
    """`include` and `cuda_include`: directories that exist, the first to be searched first."""
    torch, triton, nvidia = (_package_directory(name) for name in ("torch", "triton", "nvidia"))
    if torch is None:
        return {"error": "torch is not installed in " + sys.executable}
    with open(os.path.join(torch, "version.py"), encoding="utf-8") as file:
        version = re.search(r"""__version__ = ['"]([^'"]+)['"]""", file.read())
    include = os.path.join(torch, "include")
    api = os.path.join(include, "torch", "csrc", "api", "include")
    own = [include, api, sysconfig.get_paths()["include"]]
    # Toolkits of the machine first: the pip packages often lack headers (nvidia-cuda-runtime alone does).
    # Of these `cu13` and later hold everything; CUDA 12 is split by component. Triton brings a copy along.
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


def _package_directory(name: str) -> Optional[str]:
    """The directory of an installed package, found without importing it."""
    spec = importlib.util.find_spec(name)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return places[0] if places else None


if __name__ == "__main__":
    print(json.dumps(headers()))
