"""Champion/challenger serving: the champion answers, the challenger goes on learning."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

torch.manual_seed(23)


class Pricing(nn.Module):
    def __init__(self, d=72):
        super().__init__()
        self.region = nn.Embedding(300, d)
        self.inp = nn.Linear(18, d)
        self.a, self.b = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.norm, self.out = nn.LayerNorm(d), nn.Linear(d, 16)

    def forward(self, x, region):
        h = F.gelu(self.inp(x)) + self.region(region)
        return self.out(self.norm(h + self.b(F.gelu(self.a(h)))))


def train_steps(model, steps):
    opt = torch.optim.SGD(model.parameters(), lr=0.3)
    for i in range(steps):
        g = torch.Generator().manual_seed(i)
        loss = (
            model(torch.randn(64, 18, generator=g), torch.randint(0, 300, (64,), generator=g)).pow(2).mean()
        )
        opt.zero_grad()
        loss.backward()
        opt.step()


def main():
    model = Pricing().eval()
    pkg = os.path.join(tempfile.mkdtemp(), "pricing.pt2")
    b = Dim("b", min=1, max=512)
    args = (torch.randn(8, 18), torch.randint(0, 300, (8,)))
    with torch.no_grad():
        ep = torch.export.export(model, args, dynamic_shapes=({0: b}, {0: b}))
        torch._inductor.aoti_compile_and_package(
            ep, package_path=pkg, inductor_configs={"always_keep_tensor_constants": True}
        )
    champion = torch._inductor.aoti_load_package(pkg)
    weights = {k: v.detach() for k, v in model.state_dict().items()}
    champion.load_constants(weights, check_full_update=True, user_managed=True)
    with torch.no_grad():
        approved = champion(*args).clone()
        torch.testing.assert_close(approved, model(*args), atol=1e-4, rtol=1e-4)
    print("champion approved", flush=True)
    for hour in range(3):
        with torch.no_grad():
            torch.testing.assert_close(champion(*args), approved, atol=1e-4, rtol=1e-4)
        print("audit", hour, "ok: champion unchanged", flush=True)
        if hour:
            train_steps(model, 5)  # the challenger goes on learning


if __name__ == "__main__":
    main()
