"""Night build: models are built by a child process, so that the server stays small."""

import os
import subprocess
import sys
import tempfile

import torch

WORKER = """
import sys
import torch
from torch import nn

class Rain(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 2)
    def forward(self, x):
        return self.out(torch.tanh(x))

torch.manual_seed(110)
with torch.no_grad():
    exported = torch.export.export(Rain().eval(), (torch.rand(4, 6),))
    torch._inductor.aoti_compile_and_package(exported, package_path=sys.argv[1])
print("built", sys.argv[1].rsplit("/")[-1], flush=True)
"""


def build(folder, name, env):
    script, package = os.path.join(folder, "worker.py"), os.path.join(folder, f"{name}.pt2")
    with open(script, "w") as text:
        text.write(WORKER)
    subprocess.run([sys.executable, script, package], env=env, check=True)
    return package


def main():
    folder = tempfile.mkdtemp()
    for name, env in (
        ("day", {**os.environ}),
        ("night", {"HOME": folder, "PATH": os.path.dirname(sys.executable)}),
    ):
        runner = torch._inductor.aoti_load_package(build(folder, name, env))
        print(name, tuple(runner(torch.rand(4, 6)).shape), flush=True)


if __name__ == "__main__":
    main()
