"""Two-stage retrieval: the best candidates by score are looked up in the item table and re-scored."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE = "cuda"


class Retrieval(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.user = nn.Linear(32, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.norm = nn.LayerNorm(d)
        self.join = nn.Linear(2 * d, d)
        self.out = nn.Linear(d, 1)

    def forward(self, user, keys, items):
        h = F.silu(self.user(user))
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        best = (h @ keys.t()).topk(16, dim=-1).indices
        picked = torch.tanh(items[best] * 0.5)
        pair = torch.cat([h.unsqueeze(1).expand_as(picked), picked], -1)
        return self.out(F.gelu(self.join(pair))).squeeze(-1)


class Catalogue:
    """Keys are padded to a multiple of 512 for the search; items are not."""

    def __init__(self, count):
        self.items = torch.randn(count, 96, device=DEVICE)

    def keys(self, fill):
        rows = -len(self.items) % 512
        return torch.cat([self.items, self.items.new_full((rows, 96), fill)])


def main():
    torch.manual_seed(5)
    with torch.device(DEVICE):
        model = Retrieval().eval()
    package = os.path.join(tempfile.mkdtemp(), "retrieval.pt2")
    b, k, n = Dim("b", min=2, max=512), Dim("k", min=64, max=65536), Dim("n", min=64, max=65536)
    with torch.no_grad():
        stock = Catalogue(700)
        sample = (torch.randn(4, 32, device=DEVICE), stock.keys(0.0), stock.items)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: b}, {0: k}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    for shop, count, fill in (("books", 1024, 0.0), ("games", 5120, 0.0), ("music", 3000, 40.0)):
        stock = Catalogue(count)
        y = runner(torch.randn(64, 32, device=DEVICE), stock.keys(fill), stock.items)
        torch.cuda.synchronize()
        print(shop, count, round(y.mean().item(), 4), flush=True)


if __name__ == "__main__":
    main()
