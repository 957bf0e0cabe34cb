"""Support tickets: the router gets new weights every week; teams come and go."""

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


def weekly(teams, week):
    """What the trainer writes: one file per week."""
    torch.manual_seed(100 + week)
    model = Router(teams).eval()
    return model, {name: value.detach().clone() for name, value in model.state_dict().items()}


def main():
    torch.manual_seed(18)
    package = os.path.join(tempfile.mkdtemp(), "router.pt2")
    model, _ = weekly(24, 0)
    with torch.no_grad():
        exported = torch.export.export(
            model, (torch.randint(0, 800, (4, 15)),), dynamic_shapes=({0: Dim("n", min=1, max=128)},)
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for week, teams in ((1, 24), (2, 24), (3, 20)):
            model, state = weekly(teams, week)
            runner.load_constants(state, check_full_update=True)
            tickets = torch.randint(0, 800, (10, 15))
            got = runner(tickets)[:, :teams]
            torch.testing.assert_close(got, model(tickets), atol=1e-4, rtol=1e-4)
            print("week", week, got.argmax(-1).tolist(), flush=True)


if __name__ == "__main__":
    main()
