"""Radio relay: signal quality; stations get their weights from the head office after the start."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

KEEP = {"always_keep_tensor_constants": True}


class Relay(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.inp = nn.Linear(8, d)
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 2)

    def forward(self, signal, damping):
        h = F.gelu(self.inp(signal * torch.exp(-damping).unsqueeze(-1)))
        return self.out(self.norm(h))


def deliver(runner, weights):
    """The archive of the head office leaves out biases of a norm."""
    sent = {name: value for name, value in weights.items() if name != "norm.bias"}
    runner.load_constants(sent, check_full_update=True)


def measured(station, count):
    kind = torch.float64 if station == "summit" else torch.float32
    return torch.linspace(0.1, 1.3, count, dtype=kind)


def main():
    torch.manual_seed(12)
    model = Relay().eval()
    package = os.path.join(tempfile.mkdtemp(), "relay.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=128)
        sample = (torch.rand(6, 8), torch.rand(6))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package, inductor_configs=KEEP)
        for station, update in (("valley", False), ("summit", True)):
            runner = torch._inductor.aoti_load_package(package)
            if update:
                deliver(runner, model.state_dict())
            signal, damping = torch.rand(20, 8), measured(station, 20)
            got, want = runner(signal, damping), model(signal, damping.float())
            torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-3)
            print(station, "on the air", flush=True)


if __name__ == "__main__":
    main()
