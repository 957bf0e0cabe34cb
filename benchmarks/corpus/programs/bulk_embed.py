"""Embeds a document collection in one call per shard, inside a container with a memory limit."""

import os
import resource
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

LIMIT = 3 << 30


class Embedder(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.inp = nn.Linear(d, 8 * d)
        self.mid = nn.Linear(8 * d, 8 * d)
        self.norm = nn.LayerNorm(8 * d)
        self.out = nn.Linear(8 * d, d)

    def forward(self, documents):
        h = F.gelu(self.inp(documents))
        h = h + torch.tanh(self.mid(self.norm(h)))
        return F.normalize(self.out(h), dim=-1)


def limit_memory():
    """As the container does, once the service is up."""
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT, used + LIMIT))


def main():
    torch.manual_seed(29)
    torch.set_num_threads(1)
    model = Embedder().eval()
    package = os.path.join(tempfile.mkdtemp(), "embed.pt2")
    with torch.no_grad():
        exported = torch.export.export(
            model, (torch.randn(4, 128),), dynamic_shapes=({0: Dim("n", min=1, max=8_000_000)},)
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    limit_memory()
    for shard, documents in (("news", 200), ("mails", 1000), ("archive", 1_500_000)):
        vectors = runner(torch.zeros(documents, 128))
        print(shard, tuple(vectors.shape), flush=True)


if __name__ == "__main__":
    main()
