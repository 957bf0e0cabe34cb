"""Playlists in two stages: recall over the catalogue, then a re-ranker; editors may pin songs."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

DEV, SONGS, D = "cuda", 6000, 64


class Recall(nn.Module):
    def __init__(self):
        super().__init__()
        self.song = nn.Embedding(SONGS, D)
        self.mix = nn.Sequential(nn.Linear(D, D), nn.LayerNorm(D), nn.GELU(), nn.Linear(D, D))

    def forward(self, history):
        user = self.mix(self.song(history).mean(1))
        return user, user @ self.song.weight.t()


class Rerank(nn.Module):
    def __init__(self):
        super().__init__()
        self.song = nn.Embedding(SONGS, D)
        self.ls = nn.ModuleList(nn.Linear(2 * D, 2 * D) for _ in range(3))
        self.ns = nn.ModuleList(nn.LayerNorm(2 * D) for _ in range(3))
        self.out = nn.Linear(2 * D, 1)

    def pair(self, user, songs):
        s = torch.tanh(self.song(songs))
        return torch.cat([user.unsqueeze(1).expand_as(s), s], -1)

    def forward(self, user, songs):
        h = self.pair(user, songs)
        for layer, n in zip(self.ls, self.ns):
            h = h + F.gelu(layer(n(h)))
        return self.out(h).squeeze(-1)


def pin(songs, chosen):
    """Puts the editors' songs in front and drops as many from the end."""
    rows = [list(chosen) + [s for s in row if s not in chosen] for row in songs.tolist()]
    return torch.tensor([row[: songs.shape[1]] for row in rows])


def build(model, sample, dynamic, name, folder):
    path = os.path.join(folder, name + ".pt2")
    ep = torch.export.export(model, sample, dynamic_shapes=dynamic)
    torch._inductor.aoti_compile_and_package(ep, package_path=path)
    return torch._inductor.aoti_load_package(path)


def main():
    torch.manual_seed(0)
    folder = tempfile.mkdtemp()
    with torch.device(DEV):
        recall, rerank = Recall().eval(), Rerank().eval()
        history, user = torch.randint(0, SONGS, (8, 30)), torch.randn(8, D)
        songs = torch.randint(0, SONGS, (8, 20))
    b = Dim("b", min=2, max=2048)
    with torch.no_grad():
        first = build(recall, (history,), ({0: b},), "recall", folder)
        second = build(rerank, (user, songs), ({0: b}, {0: b}), "rerank", folder)
    for hour, chosen in (("morning", ()), ("noon", ()), ("evening", (11, 42, 305))):
        user, scores = first(torch.randint(0, SONGS, (256, 30), device=DEV))
        songs = scores.topk(20).indices
        if chosen:
            songs = pin(songs, chosen)
        order = second(user, songs).argsort(-1, descending=True)
        torch.cuda.synchronize()
        print(hour, tuple(order.shape), order[0, :5].tolist(), flush=True)


if __name__ == "__main__":
    main()
