"""One compiled scorer, many tenants: each brings its own weights, packed into an arena for fast start."""

import os
import tempfile

import torch
import torch.nn as nn


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(24, 96)
        self.a = nn.Linear(96, 96)
        self.b = nn.Linear(96, 96)
        self.leave = nn.Linear(96, 12)

    def forward(self, x):
        h = torch.relu(self.enter(x))
        h = h + torch.tanh(self.a(h))
        h = h + torch.tanh(self.b(h))
        return self.leave(h).log_softmax(-1)


class Arena:
    """A flat block from which weights are carved in 64-byte steps."""

    STEP = 16

    def __init__(self, floats):
        self.block = torch.zeros(floats)
        self.top = 0

    def reset(self):
        self.top = 0

    def place(self, t):
        n = t.numel()
        if self.top + n > self.block.numel():
            raise MemoryError("arena is full")
        view = self.block[self.top : self.top + n].view(t.shape)
        view.copy_(t)
        self.top += -(-n // self.STEP) * self.STEP
        return view


class Tenant:
    def __init__(self, name, seed):
        self.name = name
        torch.manual_seed(seed)
        self.reference = Scorer().eval()
        self.probe = torch.randn(5, 24)
        with torch.no_grad():
            self.golden = self.reference(self.probe)
        self.live = None


class Host:
    def __init__(self, package):
        self.package, self.arena, self.tenants = package, Arena(64_000), {}

    def admit(self, tenant):
        self.arena.reset()
        weights = {k: self.arena.place(v.detach()) for k, v in tenant.reference.state_dict().items()}
        tenant.live = torch._inductor.aoti_load_package(self.package)
        tenant.live.load_constants(weights, check_full_update=True, user_managed=True)
        self.tenants[tenant.name] = tenant
        self.probe(tenant.name)

    def probe(self, name):
        t = self.tenants[name]
        gap = (t.live(t.probe) - t.golden).abs().max().item()
        print(f"probe {name}: gap {gap:.2e}", flush=True)
        if gap > 1e-4:
            raise RuntimeError(f"tenant {name} no longer answers like its own model (gap {gap:.3f})")

    def serve(self, name, n):
        y = self.tenants[name].live(torch.randn(n, 24))
        print(
            f"served {name}: {n} rows, class {y.argmax(-1).mode().values.item()} is most frequent", flush=True
        )


def compile_once(folder):
    rows = torch.export.Dim("rows", min=2, max=1024)
    model = Scorer().eval()
    with torch.no_grad():
        ep = torch.export.export(model, (torch.randn(4, 24),), dynamic_shapes=({0: rows},))
        return torch._inductor.aoti_compile_and_package(ep, package_path=os.path.join(folder, "scorer.pt2"))


def main():
    with tempfile.TemporaryDirectory() as folder:
        host = Host(compile_once(folder))
        host.admit(Tenant("acorn", 1))
        host.serve("acorn", 40)
        host.probe("acorn")
        host.admit(Tenant("birch", 2))
        host.serve("birch", 25)
        host.probe("birch")
        host.serve("acorn", 40)
        host.probe("acorn")


if __name__ == "__main__":
    main()
