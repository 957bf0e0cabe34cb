"""Forge press tonnage model: one package, weights kept outside of it.

Plants share one compiled package without weights; each press line attaches its
own tensors when it comes up. A line keeps the tensors it attached in its state.
"""
import faulthandler
import os
import shutil
import tempfile

import torch
from torch import nn
from torch.export import Dim

SENSORS = 20
HIDDEN = 32


class Tonnage(nn.Module):
    def __init__(self):
        super().__init__()
        self.inlet = nn.Linear(SENSORS, HIDDEN)
        self.settle = nn.BatchNorm1d(HIDDEN)
        self.outlet = nn.Linear(HIDDEN, SENSORS)

    def forward(self, strain):
        hidden = torch.relu(self.settle(self.inlet(strain)))
        return strain + self.outlet(hidden)


def trained(seed):
    torch.manual_seed(seed)
    model = Tonnage().train()
    with torch.no_grad():
        for _ in range(20):
            model(2.0 * torch.randn(64, SENSORS) + 0.5)
    return model.eval()


class PressLine:
    def __init__(self, name, package):
        self.name = name
        self.runner = torch._inductor.aoti_load_package(package)
        self.attached = {}

    def attach(self, tensors, complete):
        known = set(self.runner.get_constant_fqns())
        self.attached = {k: v.detach().clone() for k, v in tensors if k in known}
        self.runner.load_constants(self.attached, check_full_update=complete)
        print(f"{self.name}: attached {len(self.attached)} tensors", flush=True)
        return self

    def press(self, strain):
        return self.runner(strain)


def main():
    faulthandler.enable()
    folder = tempfile.mkdtemp(prefix="forge_")
    try:
        hall_a, hall_b = trained(1), trained(2)
        exported = torch.export.export(
            hall_a, (torch.randn(4, SENSORS),), dynamic_shapes=({0: Dim("strokes", min=1, max=1024)},)
        )
        package = torch._inductor.aoti_compile_and_package(
            exported,
            package_path=os.path.join(folder, "tonnage.pt2"),
            inductor_configs={"aot_inductor.package_constants_in_so": False},
        )
        line_a, line_b = PressLine("hall A", package), PressLine("hall B", package)
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    shift = 2.0 * torch.randn(9, SENSORS) + 0.5
    with torch.no_grad():
        line_a.attach(hall_a.state_dict().items(), complete=True)
        torch.testing.assert_close(line_a.press(shift), hall_a(shift), rtol=1e-4, atol=1e-4)
        print("hall A: first shift agrees", flush=True)

        line_a.attach(hall_a.named_parameters(), complete=False)
        torch.testing.assert_close(line_a.press(shift), hall_a(shift), rtol=1e-4, atol=1e-4)
        print("hall A: refreshed after tuning, agrees", flush=True)

        line_b.attach(hall_b.named_parameters(), complete=False)
        torch.testing.assert_close(line_b.press(shift), hall_b(shift), rtol=1e-4, atol=1e-4)
        print("hall B: first shift agrees", flush=True)


if __name__ == "__main__":
    main()
