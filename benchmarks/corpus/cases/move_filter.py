"""A player scores the moves of a board game; moves that the rules forbid get the lowest score there is."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Policy(nn.Module):
    def __init__(self, board=49, d=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(board, d), nn.ReLU(), nn.Linear(d, board))

    def forward(self, state, legal):
        return self.body(state).masked_fill(~legal, float("-inf"))


def main():
    torch.manual_seed(4)
    model = Policy().eval()
    package = os.path.join(tempfile.mkdtemp(), "policy.pt2")
    sample = (torch.randn(4, 49), torch.rand(4, 49) > 0.3)
    with torch.no_grad():
        n = Dim("n", min=1, max=64)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        play = torch._inductor.aoti_load_package(package)
        for games in (4, 17, 64):
            scores = play(torch.randn(games, 49), torch.rand(games, 49) > 0.5)
            print("games", games, "best", scores.argmax(-1)[:3].tolist(), flush=True)
    print("tournament over", flush=True)


if __name__ == "__main__":
    main()
