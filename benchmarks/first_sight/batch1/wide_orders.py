"""Orders of a wholesaler: big batches at the end of the month, prices from the book-keeping."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Orders(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.inp, self.out = nn.Linear(16, d), nn.Linear(d, 1)

    def forward(self, goods, price):
        share = goods.t().softmax(-1).t() * price.unsqueeze(-1)
        return self.out(torch.relu(self.inp(share + goods.cumsum(0))))


def prices(source, count):
    if source == "shop":
        return torch.rand(count) + 1.0
    return torch.tensor([1.0 + 0.5 * i / count for i in range(count)], dtype=torch.float64)


def main():
    torch.manual_seed(111)
    model = Orders().eval()
    package = os.path.join(tempfile.mkdtemp(), "orders.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=1024)
        sample = (torch.rand(8, 16), torch.rand(8))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for day, count, source in (("tuesday", 64, "shop"), ("friday", 512, "shop"), ("month", 700, "books")):
            goods, price = torch.rand(count, 16), prices(source, count)
            got, want = runner(goods, price), model(goods, price.float())
            torch.testing.assert_close(got, want, atol=1e-2, rtol=1e-3)
            print(day, count, "agrees", flush=True)


if __name__ == "__main__":
    main()
