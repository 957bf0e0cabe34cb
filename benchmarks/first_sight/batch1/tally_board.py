"""Tally board: votes are added up by candidate on a board that is taken from the shelf."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Tally(nn.Module):
    def __init__(self, candidates=3000):
        super().__init__()
        self.candidates = candidates
        self.weight = nn.Parameter(torch.rand(4) + 0.5)

    def forward(self, ballots, choice):
        board = ballots.new_empty(self.candidates)
        board.index_add_(0, choice, (ballots * self.weight).sum(-1))
        return board


def other_work():
    """The rest of the service uses memory, too."""
    scratch = [torch.full((3000,), 7.0e3) for _ in range(16)]
    return sum(float(one[0]) for one in scratch)


def main():
    torch.manual_seed(109)
    model = Tally().eval()
    package = os.path.join(tempfile.mkdtemp(), "tally.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=4096)
        sample = (torch.rand(6, 4), torch.arange(6))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for ward in range(3):
            ballots, choice = torch.rand(500, 4), torch.randint(0, 3000, (500,))
            wanted = torch.zeros(3000).index_add_(0, choice, (ballots * model.weight).sum(-1))
            other_work()
            torch.testing.assert_close(runner(ballots, choice), wanted, atol=1e-3, rtol=1e-3)
            print("ward", ward, "counted", flush=True)


if __name__ == "__main__":
    main()
