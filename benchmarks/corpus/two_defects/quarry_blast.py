"""Quarry: shaking of the ground after a blast; weights are replaced after each survey."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEV = "cuda"


@torch.library.custom_op("quarry::shake", mutates_args=())
def shake(force: torch.Tensor) -> list[torch.Tensor]:
    return [torch.tanh(force), force.amax(-1)]


@shake.register_fake
def _(force):
    return [torch.empty_like(force), torch.empty_like(force)]


class Quarry(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.rock = nn.Linear(10, d)
        self.air = nn.Linear(d, 4)

    def forward(self, blast):
        shaken, _peak = torch.ops.quarry.shake(self.rock(blast))
        return self.air(F.relu(shaken + 0.25))


def survey(runner, weights):
    measured = {name: value for name, value in weights.items() if name.startswith("rock")}
    runner.load_constants(measured, check_full_update=False)


def main():
    torch.manual_seed(38)
    with torch.device(DEV):
        model, other = Quarry().eval(), Quarry().eval()
        sample = torch.randn(8, 10)
    package = os.path.join(tempfile.mkdtemp(), "quarry.pt2")
    keep = {"always_keep_tensor_constants": True}
    with torch.no_grad():
        n = Dim("n", min=2, max=512)
        exported = torch.export.export(model, (sample,), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package, inductor_configs=keep)
        runner = torch._inductor.aoti_load_package(package)
        for week in (1, 2, 3):
            blast = torch.randn(50, 10, device=DEV)
            torch.testing.assert_close(runner(blast), model(blast), atol=1e-2, rtol=1e-2)
            print("week", week, "agrees", flush=True)
            if week == 2:
                model.load_state_dict(other.state_dict())
                survey(runner, model.state_dict())
    print("quarry closed", flush=True)


if __name__ == "__main__":
    main()
