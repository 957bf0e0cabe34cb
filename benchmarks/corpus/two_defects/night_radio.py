"""Radio telescope: cleans stretches of a recording, which arrive on a stream of their own."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim

DEV = "cuda"


class Clean(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.inp = nn.Linear(32, d)
        self.out = nn.Linear(d, 32)

    def forward(self, wave, drift):
        h = torch.tanh((wave - drift.unsqueeze(-1)) * 0.5)
        return self.out(torch.relu(self.inp(h)))


class Arrival:
    def __init__(self):
        self.stream = torch.cuda.Stream()

    def put(self, host, packed):
        wave = torch.zeros(host.shape, device=DEV)
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            if packed:
                torch.cuda._sleep(200_000_000)  # unpacking
            wave.copy_(host, non_blocking=True)
        if not packed:
            self.stream.synchronize()
        return wave


def main():
    torch.manual_seed(32)
    with torch.device(DEV):
        model = Clean().eval()
        sample = (torch.randn(8, 32), torch.zeros(8))
    package = os.path.join(tempfile.mkdtemp(), "clean.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=65536)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        arrival = Arrival()
        for night, packed in (("first", False), ("second", False), ("third", True)):
            host = torch.randn(4096, 32).pin_memory()
            drift = torch.zeros(4096, dtype=torch.float64, device=DEV)
            wave = arrival.put(host, packed)
            got = runner(wave, drift)
            torch.cuda.synchronize()
            torch.testing.assert_close(got, model(host.to(DEV), drift.float()), atol=1e-2, rtol=1e-2)
            print(night, "night cleaned", flush=True)


if __name__ == "__main__":
    main()
