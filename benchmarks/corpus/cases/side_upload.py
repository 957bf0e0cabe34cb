"""Uploads the next batch on a stream of its own while the last one is scored."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE = "cuda"


class Scorer(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.inp = nn.Linear(64, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        h = F.silu(self.inp(x.tanh()))
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        return self.out(h).squeeze(-1)


class Uploader:
    """Decodes on the device; a heavy decode takes some milliseconds of the upload stream."""

    def __init__(self):
        self.stream = torch.cuda.Stream()

    def start(self, host, heavy):
        with torch.cuda.stream(self.stream):
            batch = torch.zeros(host.shape, device=DEVICE)
            if heavy:
                torch.cuda._sleep(200_000_000)
            batch.copy_(host, non_blocking=True)
        return batch


def main():
    torch.manual_seed(21)
    with torch.device(DEVICE):
        model = Scorer().eval()
    package = os.path.join(tempfile.mkdtemp(), "scorer.pt2")
    with torch.no_grad():
        sample = (torch.randn(8, 64, device=DEVICE),)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: Dim("n", min=2, max=65536)},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        upload = Uploader()
        for source, count, heavy in (("plain", 4096, False), ("compressed", 4096, True)):
            host = torch.randn(count, 64).pin_memory()
            batch = upload.start(host, heavy)
            if not heavy:
                upload.stream.synchronize()
            y = runner(batch)
            torch.cuda.synchronize()
            torch.testing.assert_close(y, model(host.to(DEVICE)), atol=2e-2, rtol=2e-2)
            print(source, "scored", flush=True)


if __name__ == "__main__":
    main()
