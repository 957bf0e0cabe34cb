"""Weights of a running package are replaced several times; thin slices of a frame are scored."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Grade(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.inp = nn.Linear(32, d)
        self.norm = nn.LayerNorm(d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.out = nn.Linear(d, 16)

    def forward(self, frame):
        h = torch.tanh(self.inp(frame))
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        return self.out(h).mean(1)


def thin(frame, row):
    """One row of a frame: a size of 1 whose stride is that of the whole frame."""
    return frame.as_strided((1, 4, 32), (7 * 32, 32, 1), row * 128)


def main():
    torch.manual_seed(42)
    model = Grade().eval()
    package = os.path.join(tempfile.mkdtemp(), "grade.pt2")
    with torch.no_grad():
        exported = torch.export.export(
            model, (torch.randn(3, 4, 32),), dynamic_shapes=({0: Dim("n", min=1, max=50)},)
        )
        torch._inductor.aoti_compile_and_package(
            exported, package_path=package, inductor_configs={"always_keep_tensor_constants": True}
        )
        runner = torch._inductor.aoti_load_package(package)
        frame = torch.randn(9, 4, 32)
        for version in range(3):
            for value in model.parameters():
                value.add_(0.1 * torch.randn_like(value))
            state = {name: value.detach().clone() for name, value in model.state_dict().items()}
            runner.load_constants(state, check_full_update=True)
            for x in (frame, thin(frame, version), frame[2:7]):
                torch.testing.assert_close(runner(x), model(x), atol=1e-4, rtol=1e-4)
            print("version", version, "serves", flush=True)
    print("rollout complete", flush=True)


if __name__ == "__main__":
    main()
