"""`graph_replay.py PACKAGE GOOD BAD`: a CUDA graph of a call, replayed with inputs that make it fault.

The call is recorded with good inputs; the bad ones are copied into the same memory before the replay, which
no hook on calls can see.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import triton_programs  # noqa: F401 - registers the operators


def main(package: str, good: str, bad: str) -> None:
    """Record, replay well, replay badly."""
    model = torch._inductor.aoti_load_package(package, run_single_threaded=True)
    held = torch.load(good)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model(*held)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(*held)
    graph.replay()
    torch.cuda.synchronize()
    print("good replay", out.float().abs().sum().item(), flush=True)
    for mine, theirs in zip(held, torch.load(bad), strict=True):
        mine.copy_(theirs)
    graph.replay()
    torch.cuda.synchronize()
    print("bad replay", out.float().abs().sum().item(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
