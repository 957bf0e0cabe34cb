"""Faults in CUDA C++ kernels inside custom operators: a race and a barrier. Needs a GPU and NVRTC.

Adds its programs to those of `triton_programs`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton_programs  # noqa: F401 - adds its programs
from programs import BATCH, Program, Truth, add, rows_of
from torch import nn

THREADS = 128

# Thread t reads what thread t + 1 writes, without a barrier in between.
RACE = """
extern "C" __global__ void neighbour_kernel(const float* x, float* out, int n) {
    __shared__ float tile[128];
    int t = threadIdx.x, at = blockIdx.x * 128 + t;
    tile[t] = at < n ? x[at] : 0.0f;
    float next = tile[(t + 1) % 128];
    if (at < n) out[at] = next;
}
"""

# Half of a warp reaches the barrier.
BARRIER = """
extern "C" __global__ void half_warp_kernel(const float* x, float* out, int n) {
    __shared__ float tile[128];
    int t = threadIdx.x, at = blockIdx.x * 128 + t;
    tile[t] = at < n ? x[at] : 0.0f;
    if (t % 32 < 16) __syncthreads();
    if (at < n) out[at] = tile[127 - t];
}
"""


@functools.cache
def kernel(source: str, name: str) -> Any:
    """Compiled at its first call, with line numbers."""
    return torch.cuda._compile_kernel(source, name, nvcc_options=["-lineinfo"])


def launch(source: str, name: str, x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    blocks = (x.numel() + THREADS - 1) // THREADS
    kernel(source, name)(grid=(blocks, 1, 1), block=(THREADS, 1, 1), args=[x, out, x.numel()])
    return out


@torch.library.custom_op("aotifaults::neighbours", mutates_args=())
def neighbours(x: torch.Tensor) -> torch.Tensor:
    return launch(RACE, "neighbour_kernel", x)


@torch.library.custom_op("aotifaults::halfwarps", mutates_args=())
def halfwarps(x: torch.Tensor) -> torch.Tensor:
    return launch(BARRIER, "half_warp_kernel", x)


@neighbours.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@halfwarps.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Neighbours(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return neighbours(x.sin()).cos() + 1


class HalfWarps(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return halfwarps(x.sin()).cos() + 1


_ROWS = lambda: (rows_of(32),)  # noqa: E731
add(
    Program(
        "shared_race",
        "shared-memory race inside a custom operator",
        Neighbours,
        _ROWS,
        _ROWS,
        Truth("neighbour_kernel", "", ("op",)),
        ({0: BATCH},),
        tool="racecheck",
    )
)
add(
    Program(
        "half_barrier",
        "barrier that half of a warp reaches, inside a custom operator",
        HalfWarps,
        _ROWS,
        _ROWS,
        Truth("half_warp_kernel", "", ("op",)),
        ({0: BATCH},),
        tool="synccheck",
    )
)
