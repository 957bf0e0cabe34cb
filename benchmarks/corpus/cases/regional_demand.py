"""Power demand: one package with a model per region, checked against the trained networks before release."""

import os
import tempfile
from collections import OrderedDict

import torch
import torch.nn as nn
from torch._inductor.package import load_package, package_aoti

HOURS = 48


def demand_net(width=64):
    return nn.Sequential(
        OrderedDict(
            day=nn.Linear(HOURS, width),
            act1=nn.GELU(),
            mid=nn.Linear(width, width),
            act2=nn.GELU(),
            out=nn.Linear(width, 24),
        )
    )


def train(seed, level):
    """A few steps are enough to tell the regions apart."""
    torch.manual_seed(seed)
    net = demand_net()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(60):
        x = torch.randn(64, HOURS)
        loss = nn.functional.mse_loss(net(x), level + 0.5 * x[:, -24:])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return net.eval()


def lower(net):
    days = torch.export.Dim("days", min=2, max=366)
    with torch.no_grad():
        ep = torch.export.export(net, (torch.randn(7, HOURS),), dynamic_shapes=({0: days},))
        return torch._inductor.aot_compile(
            ep.module(), (torch.randn(7, HOURS),), options={"aot_inductor.package": True}
        )


class Release:
    def __init__(self, path, nets):
        self.path, self.nets, self.report = path, nets, {}

    def assemble(self):
        files = {region: lower(net) for region, net in self.nets.items()}
        package_aoti(self.path, files)
        print(f"assembled {os.path.basename(self.path)} with {', '.join(files)}", flush=True)

    def compare(self, region, x):
        model = load_package(self.path, region)
        got = model(x)
        with torch.no_grad():
            want = self.nets[region](x)
        self.report[region] = (got - want).abs().mean().item() / want.abs().mean().item()
        print(f"{region}: mean demand {got.mean():.3f}, relative error {self.report[region]:.1e}", flush=True)

    def sign(self, limit=0.01):
        over = [r for r, e in self.report.items() if e > limit]
        if over:
            raise RuntimeError(f"not released, regions off by more than {limit:.0%}: {over}")
        print("released")


def main():
    nets = OrderedDict(coast=train(1, 4.0), valley=train(2, 2.5), plateau=train(3, 7.0))
    with tempfile.TemporaryDirectory() as folder:
        release = Release(os.path.join(folder, "demand.pt2"), nets)
        release.assemble()
        week = torch.randn(7, HOURS)
        for region in reversed(nets):
            release.compare(region, week)
        release.sign()


if __name__ == "__main__":
    main()
