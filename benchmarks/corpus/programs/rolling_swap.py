"""Rolling refresh of one layer under load: partial updates, and a probe of the package."""

import os
import subprocess
import sys
import tempfile
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

torch.manual_seed(52)
PROBE = "import sys, torch; torch._inductor.aoti_load_package(sys.argv[1]); sys.exit(0)"


class Net(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.a, self.n, self.o = nn.Linear(24, d), nn.LayerNorm(d), nn.Linear(d, 30)

    def forward(self, x):
        return self.o(self.n(F.gelu(self.a(x))))


def main():
    model = Net().eval()
    work = tempfile.mkdtemp()
    pkg = os.path.join(work, "net.pt2")
    with torch.no_grad():
        ep = torch.export.export(model, (torch.randn(8, 24),), dynamic_shapes=({0: Dim("b", min=1, max=64)},))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
    bad = os.path.join(work, "half.pt2")
    with open(pkg, "rb") as src, open(bad, "wb") as dst:
        dst.write(src.read(5000))
    rc = subprocess.run([sys.executable, "-c", PROBE, bad], stderr=subprocess.DEVNULL).returncode
    assert rc != 0, "the probe has to reject half a package"
    print("probe rejects half a package", flush=True)
    runner = torch._inductor.aoti_load_package(pkg)
    lock, errors = threading.Lock(), []

    def client(i):
        for _ in range(10):
            x = torch.randn(3, 24)
            with lock, torch.no_grad():
                if not torch.allclose(runner(x), model(x), atol=1e-4):
                    errors.append(i)

    def refresher():
        for _ in range(5):
            with lock, torch.no_grad():
                new = (model.o.weight + 0.1 * torch.randn_like(model.o.weight)).to(torch.bfloat16)
                model.o.weight.copy_(new.float())
                runner.load_constants({"o.weight": new.float()}, check_full_update=False)

    pool = [threading.Thread(target=client, args=(i,)) for i in range(3)] + [
        threading.Thread(target=refresher)
    ]
    [t.start() for t in pool]
    [t.join() for t in pool]
    if errors:
        raise RuntimeError(f"clients saw mixed weights: {errors}")
    print("rolled over", flush=True)


if __name__ == "__main__":
    main()
