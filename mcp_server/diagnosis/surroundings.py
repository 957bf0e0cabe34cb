"""Facts of this machine that are read from files, without a process."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from mcp_server.jobs.environment import child_environment, looks_secret

# Variables that change how a package is built or run; the rest of the environment is nobody's business.
TELLING = re.compile(
    r"(?!AOTI_DEBUG_)(TORCH|PYTORCH_|AOT_|AOTI_|INDUCTOR_|CUDA_|TRITON_|OMP_|MKL_)\w*|LD_PRELOAD|CC|CXX"
)
NVIDIA = Path("/proc/driver/nvidia")
MODEL_NAME = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)
GPU_MODEL = re.compile(r"^Model:\s*(.+)$", re.MULTILINE)


def machine_facts() -> dict[str, str]:
    """System, processor, GPUs and driver in words; what is not known is left out."""
    version = _text(NVIDIA / "version").splitlines()[:1]
    facts = {
        "system": platform.platform(),
        "processor": f"{_first(MODEL_NAME, _text(Path('/proc/cpuinfo')))}, {os.cpu_count()} cores",
        "GPU": ", ".join(_gpus()),
        "driver": version[0].removeprefix("NVRM version: ").strip() if version else "",
    }
    return {name: value for name, value in facts.items() if value}


def variables(asked: Mapping[str, str]) -> dict[str, str]:
    """The telling variables that a child gets, those that look like secrets left out."""
    found = child_environment(asked)
    return {
        name: value
        for name, value in sorted(found.items())
        if TELLING.fullmatch(name) and not looks_secret(name, value)
    }


def _gpus() -> Iterator[str]:
    for path in sorted(NVIDIA.glob("gpus/*/information")):
        name = _first(GPU_MODEL, _text(path))
        if name:
            yield name


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1].strip() if found else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
