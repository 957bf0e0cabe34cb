"""What is asked of a rebuild, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Sanitizer = Literal["address", "undefined"]
Optimization = Literal["-O0", "-O1"]


@dataclass(frozen=True)
class Options:
    """How to rebuild.

    `optimization` is for the wrapper: its header cost dominates, -O0 saves a quarter of the time. `sanitize`
    compiles the C++ kernels again with that sanitizer. `index_asserts` False takes the kernels' own bound
    checks out, so that a sanitizer sees the access itself. `compiler` names a program on PATH.
    `separate_weights` gives each weight memory of its own instead of a place in the blob of all, so that a
    checker sees an overrun of one into the next; AddressSanitizer implies it. `kernels` are C++ kernels to
    change: name, source, and the source in its place.
    """

    probes: bool = True
    optimization: Optimization = "-O0"
    sanitize: Sanitizer | None = None
    index_asserts: bool = True
    compiler: str | None = None
    separate_weights: bool = False
    kernels: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class Skipped:
    """A launch without probes, and why. `launch` is None when the reason holds for a whole model."""

    model: str
    launch: int | None
    kernel: str
    reason: str


@dataclass(frozen=True)
class Toolchain:
    """Where an interpreter's torch and CUDA headers lie. Paths exist."""

    torch_version: str
    include: tuple[str, ...]
    cuda_include: tuple[str, ...]


@dataclass(frozen=True)
class Timings:
    """Wall-clock seconds of each part of a rebuild."""

    read_s: float = 0.0
    compile_s: float = 0.0
    pack_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True)
class Instrumented:
    """A rebuilt package. `preload` goes into LD_PRELOAD of whatever loads it."""

    package: Path
    original: Path
    probed: dict[str, int]
    skipped: tuple[Skipped, ...] = ()
    preload: tuple[str, ...] = ()
    cached: bool = False
    timings: Timings = field(default_factory=Timings)
    notes: tuple[str, ...] = ()
