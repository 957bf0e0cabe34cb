"""Refreshes the weights of a running package from the trainer on the same card."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE = "cuda"


class Tower(nn.Module):
    def __init__(self, d=160):
        super().__init__()
        self.inp = nn.Linear(56, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 32)

    def forward(self, x):
        h = F.silu(self.inp(x))
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        return F.normalize(self.out(h), dim=-1)


def main():
    torch.manual_seed(33)
    with torch.device(DEVICE):
        model = Tower().eval()
    x = torch.randn(64, 56, device=DEVICE)
    package = os.path.join(tempfile.mkdtemp(), "tower.pt2")
    with torch.no_grad():
        exported = torch.export.export(model, (x,), dynamic_shapes=({0: Dim("n", min=1, max=4096)},))
        torch._inductor.aoti_compile_and_package(
            exported, package_path=package, inductor_configs={"always_keep_tensor_constants": True}
        )
        runner = torch._inductor.aoti_load_package(package)
        for step in range(4):
            torch.testing.assert_close(runner(x), model(x), atol=2e-2, rtol=2e-2)
            print("step", step, "agrees", flush=True)
            for value in model.parameters():
                value.mul_(0.95).add_(0.02 * torch.randn_like(value))
            state = {name: value.detach().clone() for name, value in model.state_dict().items()}
            runner.load_constants(state, check_full_update=True)
        torch.testing.assert_close(runner(x[:1]), model(x[:1]), atol=2e-2, rtol=2e-2)
    torch.cuda.synchronize()
    print("refresh finished", flush=True)


if __name__ == "__main__":
    main()
