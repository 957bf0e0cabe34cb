"""Reading-time model: attention over the last pages that somebody turned."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

DEV, D = "cuda", 48


class ReadingTime(nn.Module):
    def __init__(self):
        super().__init__()
        self.page = nn.Linear(6, D)
        self.ls = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        self.ns = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))
        self.w = nn.Linear(D, 1)
        self.out = nn.Linear(D, 9)

    def encode(self, pages):
        h = torch.tanh(self.page(pages))
        for layer, n in zip(self.ls, self.ns):
            h = h + F.gelu(layer(n(h)))
        return h

    def attend(self, h):
        a = torch.softmax(self.w(h).squeeze(-1) * 3.0, -1)
        return (h * a.unsqueeze(-1)).sum(1)

    def forward(self, pages):
        return self.out(self.attend(self.encode(pages)))


def session(readers, pages):
    return torch.randn(readers, pages, 6, device=DEV).cumsum(1) * 0.2


def main():
    torch.manual_seed(0)
    with torch.device(DEV):
        model = ReadingTime().eval()
    b, t = Dim("b", min=2, max=2048), Dim("t", min=2, max=64)
    pkg = os.path.join(tempfile.mkdtemp(), "reading.pt2")
    with torch.no_grad():
        ep = torch.export.export(model, (session(8, 40),), dynamic_shapes=({0: b, 1: t},))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
        runner = torch._inductor.aoti_load_package(pkg)
        for title, readers, pages in (
            ("novel", 100, 64),
            ("poems", 31, 12),
            ("comic", 200, 33),
            ("saga", 100, 110),
        ):
            x = session(readers, pages)
            y = runner(x)
            torch.testing.assert_close(y, model(x), atol=5e-3, rtol=5e-3)
            print(title, readers, pages, round(y.std().item(), 4), flush=True)


if __name__ == "__main__":
    main()
