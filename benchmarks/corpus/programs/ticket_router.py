"""Support tickets: the router gets new weights every week, since week 3 from another trainer."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Router(nn.Module):
    def __init__(self, teams, d=64):
        super().__init__()
        self.words = nn.Embedding(800, d)
        self.ff = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.norm = nn.LayerNorm(d)
        self.team = nn.Linear(d, teams)

    def forward(self, tokens):
        h = self.words(tokens).mean(1)
        for layer in self.ff:
            h = h + F.gelu(layer(self.norm(h)))
        return self.team(h)


def weekly(week):
    """What the trainer writes: one file per week."""
    torch.manual_seed(100 + week)
    model = Router(24).eval()
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    if week > 2:
        state["team.weight"] = state["team.weight"].t().contiguous()
    return model, state


def main():
    torch.manual_seed(18)
    package = os.path.join(tempfile.mkdtemp(), "router.pt2")
    model, _ = weekly(0)
    with torch.no_grad():
        exported = torch.export.export(
            model, (torch.randint(0, 800, (4, 15)),), dynamic_shapes=({0: Dim("n", min=1, max=128)},)
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for week in (1, 2, 3):
            model, state = weekly(week)
            runner.load_constants(state, check_full_update=True)
            tickets = torch.randint(0, 800, (10, 15))
            got = runner(tickets)
            torch.testing.assert_close(got, model(tickets), atol=1e-4, rtol=1e-4)
            print("week", week, got.argmax(-1).tolist(), flush=True)


if __name__ == "__main__":
    main()
