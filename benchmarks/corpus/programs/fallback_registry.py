"""Model registry with several models in one package; a missing model falls back to the default."""

import logging
import os
import tempfile

import torch
import torch._inductor.package
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

torch.manual_seed(77)
log = logging.getLogger("registry")


class Head(nn.Module):
    def __init__(self, classes, d=64):
        super().__init__()
        self.a, self.n, self.o = nn.Linear(32, d), nn.LayerNorm(d), nn.Linear(d, classes)

    def forward(self, x):
        return self.o(self.n(F.gelu(self.a(x))))


class Registry:
    def __init__(self, path):
        self.path, self.cache = path, {}

    def get(self, tenant, version):
        key = f"{tenant}_{version}"
        if key not in self.cache:
            try:
                self.cache[key] = torch._inductor.package.load_package(self.path, key)
            except Exception:
                log.debug("%s is not there, using the default", key)
                self.cache[key] = self.cache.get(f"{tenant}_default")
        return self.cache[key]


def main():
    work = tempfile.mkdtemp()
    files = {}
    b = Dim("b", min=1, max=64)
    with torch.no_grad():
        for name, classes in (("fraud_v1", 2), ("churn-v1", 3)):
            ep = torch.export.export(Head(classes).eval(), (torch.randn(4, 32),), dynamic_shapes=({0: b},))
            files[name] = torch._inductor.aot_compile(
                ep.module(), (torch.randn(4, 32),), options={"aot_inductor.package": True}
            )
    pkg = torch._inductor.package.package_aoti(os.path.join(work, "all.pt2"), files)
    registry = Registry(pkg)
    with torch.no_grad():
        for tenant in ("fraud", "churn"):
            model = registry.get(tenant, "v1")
            print(tenant, tuple(model(torch.randn(4, 32)).shape), flush=True)


if __name__ == "__main__":
    main()
