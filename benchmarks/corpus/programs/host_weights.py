"""Loads fresh weights from the parameter server, which keeps them in host memory."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE = "cuda"


class Bidder(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.inp = nn.Linear(40, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 16)

    def forward(self, x):
        h = F.silu(self.inp(x))
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        return self.out(h)


class ParameterServer:
    """Keeps the last snapshot; small ones stay on the device, offloaded ones do not."""

    def __init__(self, model):
        self.state = {name: value.detach() for name, value in model.state_dict().items()}

    def snapshot(self, offloaded):
        place = "cpu" if offloaded else DEVICE
        return {name: (value * 1.01).to(place) for name, value in self.state.items()}


def main():
    torch.manual_seed(23)
    with torch.device(DEVICE):
        model = Bidder().eval()
    x = torch.randn(32, 40, device=DEVICE)
    package = os.path.join(tempfile.mkdtemp(), "bidder.pt2")
    with torch.no_grad():
        exported = torch.export.export(model, (x,), dynamic_shapes=({0: Dim("n", min=2, max=4096)},))
        torch._inductor.aoti_compile_and_package(
            exported, package_path=package, inductor_configs={"always_keep_tensor_constants": True}
        )
    runner = torch._inductor.aoti_load_package(package)
    server = ParameterServer(model)
    for hour, offloaded in enumerate((False, False, True)):
        runner.load_constants(server.snapshot(offloaded), check_full_update=True)
        y = runner(x)
        torch.cuda.synchronize()
        print("hour", hour, round(y.abs().mean().item(), 4), flush=True)


if __name__ == "__main__":
    main()
