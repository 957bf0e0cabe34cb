"""Demand forecaster: looks back by lags that each product's calendar asks for."""

import os
import tempfile

import torch
import torch.nn as nn
from torch.export import Dim

LAGS = 5


class Forecaster(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(LAGS + 2, hidden), nn.Tanh(), nn.Linear(hidden, hidden))
        self.out = nn.Linear(hidden, 3)

    def forward(self, batch):
        history, lags = batch["history"], batch["lags"]
        newest = history.shape[1] - 1
        seen = history[:, newest - lags]
        level = history.mean(1, keepdim=True)
        trend = history[:, -1:] - history[:, :1]
        return self.out(self.mix(torch.cat([seen, level, trend], dim=1)))


class Calendar:
    WEEKLY = (0, 1, 2, 7, 14)
    DAILY = (0, 1, 2, 3, 4)

    def lags(self, kind):
        return torch.tensor(self.WEEKLY if kind == "weekly" else self.DAILY)


def package(model, folder):
    weeks = Dim("weeks", min=3, max=400)
    batch = {"history": torch.rand(16, 30), "lags": torch.arange(LAGS)}
    shapes = ({"history": {1: weeks}, "lags": None},)
    program = torch.export.export(model, (batch,), dynamic_shapes=shapes)
    return torch._inductor.aoti_compile_and_package(
        program, package_path=os.path.join(folder, "forecaster.pt2")
    )


def main():
    torch.manual_seed(5)
    model, calendar = Forecaster().eval(), Calendar()
    products = [
        ("flour", 120, "weekly"),
        ("salt", 30, "daily"),
        ("umbrella", 52, "weekly"),
        ("tomato", 6, "weekly"),
    ]
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        forecast = torch._inductor.aoti_load_package(package(model, folder))
        for name, weeks, kind in products:
            history = torch.rand(16, weeks)
            answer = forecast({"history": history, "lags": calendar.lags(kind)})
            print(f"{name}: next three weeks {answer.mean(0).tolist()}", flush=True)


if __name__ == "__main__":
    main()
