"""Lantern parade: brightness of lanterns; the first upload of the evening only warms the card up."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim

DEV = "cuda"


class Lanterns(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.inp, self.out = nn.Linear(12, d), nn.Linear(d, 4)

    def forward(self, light, shade):
        return self.out(torch.tanh(self.inp(torch.relu(light) - shade.unsqueeze(-1))))


def main():
    torch.manual_seed(45)
    with torch.device(DEV):
        model = Lanterns().eval()
        sample = (torch.rand(6, 12), torch.zeros(6))
    package = os.path.join(tempfile.mkdtemp(), "lanterns.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=4096)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        light, shade = torch.zeros(2000, 12, device=DEV), torch.zeros(2000, device=DEV)
        upload = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(upload):
            torch.cuda._sleep(20_000_000)
            light.copy_(torch.rand(2000, 12).pin_memory(), non_blocking=True)
        runner(light, shade)
        torch.cuda.synchronize()
        for street in ("bridge", "market", "temple"):
            light = torch.rand(300, 12, device=DEV)
            shade = torch.zeros(300, dtype=torch.float64, device=DEV)
            torch.testing.assert_close(
                runner(light, shade), model(light, shade.float()), atol=1e-2, rtol=1e-2
            )
            print(street, "agrees", flush=True)
    print("parade over", flush=True)


if __name__ == "__main__":
    main()
