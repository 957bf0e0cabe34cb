"""A batch job of the cluster: scratch space is taken from the job's own directory."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Crack(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.inp = nn.Linear(64, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.out = nn.Linear(d, 2)

    def forward(self, patches):
        h = F.silu(self.inp(patches))
        for layer in self.layers:
            h = h + F.gelu(layer(h))
        return self.out(h).softmax(-1)


class Job:
    """Sets up what the scheduler would: a directory per job, removed when the previous one ends."""

    def __init__(self, number, root):
        self.scratch = os.path.join(root, f"job-{number}", "scratch")
        self.number = number

    def start(self):
        if self.number < 2:
            os.makedirs(self.scratch, exist_ok=True)
        os.environ["TMPDIR"] = self.scratch


def main():
    torch.manual_seed(32)
    root = tempfile.mkdtemp()
    package = os.path.join(root, "crack.pt2")
    with torch.no_grad():
        exported = torch.export.export(
            Crack().eval(), (torch.rand(4, 64),), dynamic_shapes=({0: Dim("n", min=1, max=1024)},)
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    for number in (1, 2):
        Job(number, root).start()
        runner = torch._inductor.aoti_load_package(package)
        print("job", number, runner(torch.rand(30, 64))[:, 1].max().item(), flush=True)


if __name__ == "__main__":
    main()
