"""Card transactions scored with an optional device fingerprint."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class FraudNet(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.amount, self.merchant, self.device = nn.Linear(6, d), nn.Embedding(700, d), nn.Linear(10, d)
        self.body = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))
        self.head = nn.Linear(d, 2)

    def forward(self, amounts, merchant, device):
        h = self.amount(amounts) + self.merchant(merchant)
        h = h + torch.tanh(self.device(device))
        return F.log_softmax(self.head(h + self.body(h)), -1)


def requests():
    """Four requests; the terminals of the last one send no fingerprint."""
    for n, known in ((3, True), (40, True), (11, True), (8, False)):
        fingerprint = torch.randn(n, 10) if known else None
        yield torch.rand(n, 6), torch.randint(0, 700, (n,)), fingerprint


def main():
    torch.manual_seed(1)
    model = FraudNet().eval()
    n = Dim("n", min=1, max=512)
    package = os.path.join(tempfile.mkdtemp(), "fraud.pt2")
    with torch.no_grad():
        sample = (torch.rand(4, 6), torch.randint(0, 700, (4,)), torch.randn(4, 10))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    for amounts, merchant, fingerprint in requests():
        scores = runner(amounts, merchant, fingerprint)
        print("scored", len(amounts), round(scores.exp()[:, 1].mean().item(), 4), flush=True)


if __name__ == "__main__":
    main()
