"""Gateway for electricity meters: the package is small, weights come from a store of their own."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

BUILD = {"aot_inductor.package_constants_in_so": False, "always_keep_tensor_constants": True}


class Meter(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.inp, self.out = nn.Linear(12, d), nn.Linear(d, 2)

    def forward(self, load):
        return self.out(F.silu(self.inp(torch.log1p(load))))


class Gateway:
    def __init__(self, package, store):
        self.package, self.store = package, store

    def open(self, region):
        runner = torch._inductor.aoti_load_package(self.package)
        if region in self.store:
            runner.load_constants(self.store[region], check_full_update=True)
        return runner


def main():
    torch.manual_seed(101)
    model = Meter().eval()
    package = os.path.join(tempfile.mkdtemp(), "meter.pt2")
    with torch.no_grad():
        n = Dim("n", min=1, max=256)
        exported = torch.export.export(model, (torch.rand(4, 12),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package, inductor_configs=BUILD)
        weights = dict(model.state_dict())
        gateway = Gateway(package, {"north": weights, "south": weights})
        for region in ("north", "south", "islands"):
            load = torch.rand(20, 12)
            torch.testing.assert_close(gateway.open(region)(load), model(load), atol=1e-4, rtol=1e-3)
            print(region, "metered", flush=True)


if __name__ == "__main__":
    main()
