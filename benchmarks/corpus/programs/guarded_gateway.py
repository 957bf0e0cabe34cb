"""A gateway that refuses bad requests and serves the next one."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Intent(nn.Module):
    def __init__(self, words=250, d=40):
        super().__init__()
        self.words = nn.Embedding(words, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 11)

    def forward(self, tokens, channel):
        h = self.words(tokens).mean(1) + channel
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        return F.log_softmax(self.out(h), -1)


def checked(runner, request):
    """The answer, or None for a request that the package does not take."""
    try:
        return runner(*request)
    except RuntimeError as error:
        print("refused:", str(error).splitlines()[0], flush=True)
        return None


def requests():
    tokens, channel = torch.randint(0, 250, (3, 9)), torch.randn(3, 40)
    yield tokens, channel
    yield (tokens,)
    yield tokens.flip(0), channel
    yield tokens, channel, torch.ones(3)
    yield tokens[:1], channel[:1]


def main():
    torch.manual_seed(44)
    model = Intent().eval()
    package = os.path.join(tempfile.mkdtemp(), "intent.pt2")
    b = Dim("b", min=1, max=64)
    with torch.no_grad():
        sample = (torch.randint(0, 250, (4, 9)), torch.randn(4, 40))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: b}, {0: b}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        served = 0
        for request in requests():
            answer = checked(runner, request)
            if answer is not None:
                torch.testing.assert_close(answer, model(*request), atol=1e-4, rtol=1e-4)
                served += 1
    print("gateway closed after", served, "answers", flush=True)


if __name__ == "__main__":
    main()
