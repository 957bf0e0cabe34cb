"""Request gate in front of a packaged ranker: bad requests are answered with 422, good ones are scored."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

torch.manual_seed(8)
ROWS = 400


class Ranker(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.item, self.dense = nn.Embedding(ROWS, d), nn.Linear(9, d)
        self.n, self.o = nn.LayerNorm(d), nn.Linear(d, 2)

    def forward(self, ids, dense):
        return self.o(self.n(self.item(ids) + F.gelu(self.dense(dense))))


def gate(ids, dense):
    if ids.dtype != torch.int64:
        raise TypeError(f"expected int64 ids, got {ids.dtype}")
    if int(ids.max()) >= ROWS or int(ids.min()) < 0:
        raise IndexError(f"index out of bounds: 0 <= {int(ids.max())} < {ROWS}")
    if not torch.isfinite(dense).all():
        raise ValueError("nan in dense features")


def main():
    model = Ranker().eval()
    pkg = os.path.join(tempfile.mkdtemp(), "ranker.pt2")
    b = Dim("b", min=2, max=64)
    with torch.no_grad():
        ep = torch.export.export(model, (torch.arange(4), torch.randn(4, 9)), dynamic_shapes=({0: b}, {0: b}))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
    runner = torch._inductor.aoti_load_package(pkg)
    nan = torch.randn(4, 9)
    nan[1, 2] = float("nan")
    requests = [
        (torch.randint(0, ROWS, (5,)), torch.randn(5, 9)),
        (torch.tensor([3, 999, 4]), torch.randn(3, 9)),
        (torch.arange(4, dtype=torch.int32), torch.randn(4, 9)),
        (torch.arange(4), nan),
        (torch.randint(0, ROWS, (9,)), torch.randn(9, 9)),
    ]
    answered = 0
    with torch.no_grad():
        for ids, dense in requests:
            try:
                gate(ids, dense)
            except (TypeError, IndexError, ValueError) as err:
                print("422", type(err).__name__, err, flush=True)
                continue
            torch.testing.assert_close(runner(ids, dense), model(ids, dense), atol=1e-4, rtol=1e-4)
            answered += 1
    print("gate finished,", answered, "answered", flush=True)


if __name__ == "__main__":
    main()
