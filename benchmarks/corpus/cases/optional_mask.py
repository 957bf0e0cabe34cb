"""Support-ticket triage encoder; short tickets come without a padding mask, long ones with it."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

torch.manual_seed(31)


class Triage(nn.Module):
    def __init__(self, vocab=900, d=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.q, self.kv = nn.Linear(d, d), nn.Linear(d, 2 * d)
        self.norm, self.out = nn.LayerNorm(d), nn.Linear(d, 6)

    def forward(self, tokens, mask=None):
        h = self.emb(tokens)
        k, v = self.kv(h).chunk(2, -1)
        s = self.q(h) @ k.transpose(1, 2) / 8.0
        if mask is not None:
            s = s.masked_fill(~mask[:, None, :], -1e9)
        h = self.norm(h + s.softmax(-1) @ v)
        if mask is not None:
            h = h * mask.unsqueeze(-1)
        return F.log_softmax(self.out(h.mean(1)), -1)


def collate(rows):
    width = max(len(r) for r in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    for i, r in enumerate(rows):
        tokens[i, : len(r)] = torch.tensor(r)
    if all(len(r) == width for r in rows):
        return tokens, None
    return tokens, tokens != 0


def main():
    model = Triage().eval()
    pkg = os.path.join(tempfile.mkdtemp(), "triage.pt2")
    b, t = Dim("b", min=2, max=64), Dim("t", min=2, max=128)
    with torch.no_grad():
        ep = torch.export.export(
            model, (torch.randint(1, 900, (4, 16)), None), dynamic_shapes=({0: b, 1: t}, None)
        )
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
    runner = torch._inductor.aoti_load_package(pkg)
    print("loaded", flush=True)
    g = torch.Generator().manual_seed(4)
    batches = [[12, 12, 12], [30, 30], [9, 21, 40, 3]]
    with torch.no_grad():
        for lengths in batches:
            rows = [torch.randint(1, 900, (n,), generator=g).tolist() for n in lengths]
            tokens, mask = collate(rows)
            got, want = runner(tokens, mask), model(tokens, mask)
            torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
            print("triaged", lengths, flush=True)


if __name__ == "__main__":
    main()
