"""Text generator head with a temperature that the caller may choose."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Head(nn.Module):
    def __init__(self, vocabulary=300, d=48):
        super().__init__()
        self.words = nn.Embedding(vocabulary, d)
        self.mix = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.norm = nn.LayerNorm(d)

    def forward(self, tokens, temperature):
        h = self.words(tokens)
        for layer in self.mix:
            h = h + F.gelu(layer(self.norm(h)))
        logits = h[:, -1] @ self.words.weight.t()
        return (logits / temperature).softmax(-1)


def sharpness(p):
    return p.amax(-1).mean().item()


def main():
    torch.manual_seed(35)
    model = Head().eval()
    package = os.path.join(tempfile.mkdtemp(), "head.pt2")
    tokens = torch.randint(0, 300, (3, 12))
    with torch.no_grad():
        exported = torch.export.export(
            model, (tokens, 1.0), dynamic_shapes=({0: Dim("b", min=1, max=64)}, None)
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for user, temperature in (("default", 1.0), ("editor", 1.0), ("poet", 2.5)):
            p = runner(tokens, temperature)
            torch.testing.assert_close(p, model(tokens, temperature), atol=1e-4, rtol=1e-3)
            print(user, temperature, round(sharpness(p), 4), flush=True)


if __name__ == "__main__":
    main()
