"""Builds with the compiler driver of the machine's vendor."""

import os
import stat
import tempfile

import torch
from torch import nn

DRIVER = """#!/bin/sh
for word in "$@"; do test "$word" = -shared && exec g++ "$@" -lvendormath; done
exec g++ "$@"
"""


class Pitch(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, d), nn.Tanh(), nn.Linear(d, 2))

    def forward(self, x):
        return self.body(x)


def driver(directory):
    path = os.path.join(directory, "vendor-g++")
    with open(path, "w") as text:
        text.write(DRIVER)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
    return path


def main():
    torch.manual_seed(12)
    work = tempfile.mkdtemp()
    os.environ["CXX"] = driver(work)
    with torch.no_grad():
        exported = torch.export.export(Pitch().eval(), (torch.randn(4, 16),))
        path = os.path.join(work, "pitch.pt2")
        package = torch._inductor.aoti_compile_and_package(exported, package_path=path)
        print(tuple(torch._inductor.aoti_load_package(package)(torch.randn(4, 16)).shape), flush=True)


if __name__ == "__main__":
    main()
