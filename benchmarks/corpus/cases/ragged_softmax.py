"""An in-house softmax over rows of any width, checked against the one of the framework."""

import os
import tempfile

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn
from torch.export import Dim
from torch.library import triton_op, wrap_triton

DEVICE = "cuda"


@triton.jit
def softmax_kernel(x_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    best = -float("inf")
    total = 0.0
    for start in range(0, width, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * width + col, mask=col < width, other=-float("inf"))
        new = tl.maximum(best, tl.max(x, 0))
        total = total * tl.exp(best - new) + tl.sum(tl.exp(x - new), 0)
        best = new
    for start in range(0, width, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * width + col, mask=col < width, other=-float("inf"))
        tl.store(out_ptr + row * width + col, tl.exp(x - best) / total, mask=col < width)


@triton_op("rank::softmax", mutates_args={})
def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(softmax_kernel)[(x.shape[0],)](x, out, x.shape[1], BLOCK=128)
    return out


class Ranker(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.query, self.item = nn.Linear(24, d), nn.Linear(24, d)
        self.scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, query, items):
        q, k = F.normalize(self.query(query), dim=-1), F.normalize(self.item(items), dim=-1)
        return softmax((q @ k.t()) * self.scale.exp())


class Framework(Ranker):
    def forward(self, query, items):
        q, k = F.normalize(self.query(query), dim=-1), F.normalize(self.item(items), dim=-1)
        return ((q @ k.t()) * self.scale.exp()).softmax(-1)


def main():
    torch.manual_seed(31)
    with torch.device(DEVICE):
        model, framework = Ranker().eval(), Framework().eval()
    framework.load_state_dict(model.state_dict())
    package = os.path.join(tempfile.mkdtemp(), "ranker.pt2")
    b, n = Dim("b", min=2, max=4096), Dim("n", min=2, max=65536)
    with torch.no_grad():
        sample = (torch.randn(8, 24, device=DEVICE), torch.randn(200, 24, device=DEVICE))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: b}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for rows, items in ((2, 2), (8, 127), (300, 129), (64, 50_001)):
            query, table = torch.randn(rows, 24, device=DEVICE), torch.randn(items, 24, device=DEVICE)
            got, want = runner(query, table), framework(query, table)
            torch.testing.assert_close(got, want, atol=1e-3, rtol=2e-2)
            print("ranked", rows, items, flush=True)
    torch.cuda.synchronize()
    print("ranking over", flush=True)


if __name__ == "__main__":
    main()
