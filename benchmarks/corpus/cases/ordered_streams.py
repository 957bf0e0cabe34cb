"""Uploads on a stream of its own, with events; then replays the step as a CUDA graph."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE = "cuda"


class Scorer(nn.Module):
    def __init__(self, d=192):
        super().__init__()
        self.inp = nn.Linear(48, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 3)

    def forward(self, x):
        h = F.silu(self.inp(x))
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        return self.out(h)


def uploaded(host, stream):
    """The batch on the device; the current stream waits for the copy."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        batch = host.to(DEVICE, non_blocking=True)
        ready = torch.cuda.Event()
        ready.record(stream)
    torch.cuda.current_stream().wait_event(ready)
    batch.record_stream(torch.cuda.current_stream())
    return batch


def main():
    torch.manual_seed(32)
    with torch.device(DEVICE):
        model = Scorer().eval()
    package = os.path.join(tempfile.mkdtemp(), "scorer.pt2")
    with torch.no_grad():
        sample = torch.randn(64, 48, device=DEVICE)
        exported = torch.export.export(model, (sample,), dynamic_shapes=({0: Dim("n", min=2, max=4096)},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package, run_single_threaded=True)
        stream = torch.cuda.Stream()
        for count in (64, 2000, 17):
            host = torch.randn(count, 48).pin_memory()
            y = runner(uploaded(host, stream))
            torch.testing.assert_close(y, model(host.to(DEVICE)), atol=2e-2, rtol=2e-2)
            print("uploaded", count, flush=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = runner(sample)
        for _ in range(3):
            sample.copy_(torch.randn_like(sample))
            graph.replay()
            torch.testing.assert_close(out, model(sample), atol=2e-2, rtol=2e-2)
    torch.cuda.synchronize()
    print("streams drained", flush=True)


if __name__ == "__main__":
    main()
