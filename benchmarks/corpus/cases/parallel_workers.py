"""Four workers share a package through as many runners as there are workers."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import nn
from torch._inductor.package import load_package
from torch.export import Dim

WORKERS = 4


class Click(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.item, self.user = nn.Embedding(300, d), nn.Linear(12, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.out = nn.Linear(d, 1)

    def forward(self, items, user):
        h = self.item(items) * self.user(user).unsqueeze(1)
        for layer in self.layers:
            h = h + F.gelu(layer(h))
        return torch.sigmoid(self.out(h)).squeeze(-1)


def serve(runner, model, number):
    generator = torch.Generator().manual_seed(number)
    items = torch.randint(0, 300, (3 + number % 5, 6), generator=generator)
    user = torch.randn(len(items), 12, generator=generator)
    torch.testing.assert_close(runner(items, user), model(items, user), atol=1e-4, rtol=1e-4)
    return len(items)


def main():
    torch.manual_seed(43)
    torch.set_num_threads(1)
    model = Click().eval()
    for value in model.parameters():
        value.requires_grad_(False)
    package = os.path.join(tempfile.mkdtemp(), "click.pt2")
    b = Dim("b", min=2, max=64)
    with torch.no_grad():
        sample = (torch.randint(0, 300, (4, 6)), torch.randn(4, 12))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: b}, {0: b}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = load_package(package, num_runners=WORKERS)
    with ThreadPoolExecutor(WORKERS) as pool:
        served = sum(pool.map(lambda number: serve(runner, model, number), range(120)))
    print("all workers done", served, flush=True)


if __name__ == "__main__":
    main()
