"""Exports with one request as the example and lets torch find out which dimensions vary."""

import tempfile
from pathlib import Path

import torch
import torch.nn as nn
from torch.export import Dim, export


class Gate(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.a, self.b = nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, x):
        return torch.sigmoid(self.a(x)) * torch.tanh(self.b(x))


class Credit(nn.Module):
    def __init__(self):
        super().__init__()
        self.country = nn.Embedding(30, 6)
        self.body = nn.Sequential(Gate(16), Gate(16))
        self.risk = nn.Linear(16, 2)

    def forward(self, request):
        place = self.country(request["country"])
        h = torch.cat([request["amounts"].log1p(), place], dim=-1)
        return {"risk": self.risk(self.body(h)).softmax(-1)}


def request(count):
    return {"amounts": torch.rand(count, 10) * 900, "country": torch.randint(0, 30, (count,))}


def build(model, folder):
    shapes = {"request": {"amounts": {0: Dim.AUTO}, "country": {0: Dim.AUTO}}}
    with torch.no_grad():
        program = export(model, (request(1),), dynamic_shapes=shapes)
        return torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "credit.pt2"))


def main():
    torch.manual_seed(17)
    model = Credit().eval()
    score = torch._inductor.aoti_load_package(build(model, Path(tempfile.mkdtemp())))
    for count in (1, 1, 6):
        given = request(count)
        risk = score(given)["risk"]
        print(count, "requests,", len(risk), "answers", flush=True)
        for name, row in zip((f"request {i}" for i in range(count)), risk, strict=True):
            print("  ", name, round(float(row[1]), 3), flush=True)


if __name__ == "__main__":
    main()
