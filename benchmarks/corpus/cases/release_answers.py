"""Releases of a model that is still being trained; their answers are kept on file."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

DEV = "cuda"


class Ranker(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.emb = nn.Embedding(2000, d)
        self.ls = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.ns = nn.ModuleList(nn.LayerNorm(d) for _ in range(3))
        self.out = nn.Linear(d, 24)

    def forward(self, ids):
        h = self.emb(ids).mean(1)
        for layer, n in zip(self.ls, self.ns):
            h = h + F.gelu(layer(n(h)))
        return self.out(h)


class Trainer:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), lr=0.5)

    def step(self):
        ids = torch.randint(0, 2000, (256, 20), device=DEV)
        loss = F.cross_entropy(self.model(ids), ids[:, 0] % 24)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


class Release:
    """The served package with the weights of one moment of the training."""

    def __init__(self, path, model):
        self.runner = torch._inductor.aoti_load_package(path)
        self.weights = {name: value.detach() for name, value in model.state_dict().items()}
        self.runner.load_constants(self.weights, check_full_update=True, user_managed=True)

    def answer(self, ids):
        with torch.no_grad():
            return self.runner(ids)


def main():
    torch.manual_seed(0)
    with torch.device(DEV):
        model = Ranker()
        probe = torch.randint(0, 2000, (64, 20))
    path = os.path.join(tempfile.mkdtemp(), "ranker.pt2")
    with torch.no_grad():
        ep = torch.export.export(model.eval(), (probe,), dynamic_shapes=({0: Dim("b", min=2, max=4096)},))
        torch._inductor.aoti_compile_and_package(ep, package_path=path)
    trainer = Trainer(model)
    for _ in range(5):
        trainer.step()
    release = Release(path, model)
    with torch.no_grad():
        filed = model(probe)
    for audit, steps in enumerate((0, 0, 20)):
        losses = [trainer.step() for _ in range(steps)]
        torch.testing.assert_close(release.answer(probe), filed, atol=1e-3, rtol=1e-3)
        print("audit", audit, "answers as filed; loss", [round(x, 3) for x in losses[-1:]], flush=True)


if __name__ == "__main__":
    main()
