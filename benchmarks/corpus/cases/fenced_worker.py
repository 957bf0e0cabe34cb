"""Plate scorer: the parent prepares a package, workers score plates and must not fill the disk or the CPU."""

import json
import os
import resource
import subprocess
import sys
import tempfile
from typing import NamedTuple

import torch

MB = 1 << 20


class Fence(NamedTuple):
    cpu_s: int
    file_mb: int
    open_files: int

    def apply(self):
        resource.setrlimit(resource.RLIMIT_CPU, (self.cpu_s, self.cpu_s + 5))
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_mb * MB, self.file_mb * MB))
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.open_files, self.open_files))


FENCES = {"small": Fence(60, 4, 128), "large": Fence(120, 4, 128)}


class PlateNet(torch.nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(96, hidden),
            torch.nn.ReLU(),
            torch.nn.Linear(hidden, hidden),
            torch.nn.ReLU(),
            torch.nn.Linear(hidden, 1),
        )

    def forward(self, wells):
        return self.layers(torch.log1p(wells)).squeeze(-1)


def work(package, plates):
    """Runs in the fenced process."""
    torch.manual_seed(plates)
    scorer = torch._inductor.aoti_load_package(package)
    y = scorer(torch.rand(plates, 96))
    print(json.dumps({"plates": plates, "best": round(y.max().item(), 4)}))


def prepare(kind, hidden, folder):
    torch.manual_seed(1)
    plates = torch.export.Dim("plates", min=2, max=384)
    with torch.no_grad():
        ep = torch.export.export(PlateNet(hidden).eval(), (torch.rand(4, 96),), dynamic_shapes=({0: plates},))
        return torch._inductor.aoti_compile_and_package(ep, package_path=os.path.join(folder, kind + ".pt2"))


def delegate(kind, package, plates):
    child = subprocess.run(
        [sys.executable, os.path.abspath(__file__), "--work", package, str(plates)],
        preexec_fn=FENCES[kind].apply,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if child.returncode:
        print(child.stderr[-3000:], file=sys.stderr)
        raise ChildProcessError(f"worker for {kind} plates ended with {child.returncode}")
    answer = json.loads(child.stdout.strip().splitlines()[-1])
    print(f"{kind}: {answer['plates']} plates, best {answer['best']}", flush=True)


def main():
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], int(sys.argv[3]))
        return
    with tempfile.TemporaryDirectory() as folder:
        for kind, hidden in (("small", 128), ("large", 1024)):
            package = prepare(kind, hidden, folder)
            print(f"{kind}: package of {os.path.getsize(package) / MB:.1f} MB", flush=True)
            delegate(kind, package, 24)


if __name__ == "__main__":
    main()
