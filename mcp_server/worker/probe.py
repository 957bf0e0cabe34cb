"""`probe`: what this interpreter and this machine have."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import sys
from typing import Any, Callable

import torch

from .report import Report


def operate(_request: dict[str, Any], report: Report) -> None:
    """Events `python`, `cpu`, `libraries`, `cuda`, `gpu` (one per device), in the order of risk."""
    report.event("python", version=platform.python_version(), executable=sys.executable, prefix=sys.prefix)
    report.event("torch_build", **_build())
    report.event("libraries", **_libraries())
    report.event("cpu", **_cpu())
    report.event("cuda", **_cuda())
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        report.event("gpu", index=index, **_attempt(lambda index=index: _gpu(index)))  # type: ignore[misc]


def _attempt(read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return read()
    except Exception as error:
        return {"error": "{}: {}".format(type(error).__name__, error)}


def _build() -> dict[str, Any]:
    return {
        "version": torch.__version__,
        "git": getattr(torch.version, "git_version", None),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "directory": os.path.dirname(torch.__file__),
        "cxx11_abi": bool(torch._C._GLIBCXX_USE_CXX11_ABI),
    }


def _libraries() -> dict[str, Any]:
    return {name: _version(name) for name in ("triton", "numpy")}


def _version(name: str) -> Any:
    """Version of an installed distribution, None when there is none; nothing is imported."""
    from importlib import metadata

    for distribution in (name, "pytorch-" + name):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "unknown" if importlib.util.find_spec(name) else None


def _cpu() -> dict[str, Any]:
    """Inductor would name the ISA as a package's metadata does, and takes seconds to be imported."""
    capability = torch.backends.cpu.get_cpu_capability()
    return {"machine": platform.machine(), "count": os.cpu_count(), "capability": capability}


def _cuda() -> dict[str, Any]:
    """Whether CUDA works in this process, and torch's own words when it does not."""
    if torch.version.cuda is None:
        return {"available": False, "why": "this torch is built without CUDA", "devices": 0}
    facts = {"visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "arch_list": torch.cuda.get_arch_list()}
    try:
        torch.cuda.init()
    except Exception as error:
        return {"available": False, "why": str(error), "devices": 0, **facts}
    return {"available": True, "why": "", "devices": torch.cuda.device_count(), **facts, **_attempt(_driver)}


def _driver() -> dict[str, Any]:
    return {
        "driver_cuda": _driver_version(),
        "runtime_cuda": torch._C._cuda_getCompiledVersion(),
    }


def _gpu(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    return {
        "name": properties.name,
        "capability": "{}{}".format(properties.major, properties.minor),
        "multiprocessors": properties.multi_processor_count,
        "free_bytes": free,
        "total_bytes": total,
    }


def _driver_version() -> int:
    """The newest CUDA that the driver runs, as 1000 * major + 10 * minor, from the driver itself."""
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value
