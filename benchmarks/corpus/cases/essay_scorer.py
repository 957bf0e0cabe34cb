"""Essay scoring with spot audits: every fourth essay is scored a second time with a plain numpy model."""

import logging
import math
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
from torch.export import Dim

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
WIDTH, LIMIT, VOCAB = 64, 512, 900


def positions(count, width=WIDTH):
    rate = np.exp(np.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angle = np.arange(count)[:, None] * rate
    return np.stack([np.sin(angle), np.cos(angle)], -1).reshape(count, width).astype(np.float32)


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCAB, WIDTH)
        self.register_buffer("place", torch.from_numpy(positions(LIMIT)), persistent=True)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.grade = nn.Linear(WIDTH, 1)

    def forward(self, tokens):
        h = self.token(tokens) * 0.1 + self.place[: tokens.shape[0]]
        h = torch.tanh(self.proj(h))
        return torch.sigmoid(self.grade(h.mean(0)))


class Auditor:
    def __init__(self, model, every=4):
        self.weights = {k: v.detach().numpy().astype(np.float64) for k, v in model.state_dict().items()}
        self.every, self.audited = every, 0

    def plain(self, tokens):
        w = self.weights
        h = w["token.weight"][tokens] * 0.1 + positions(len(tokens))
        h = np.tanh(h @ w["proj.weight"].T + w["proj.bias"])
        return 1 / (1 + np.exp(-(h.mean(0) @ w["grade.weight"][0] + w["grade.bias"][0])))

    def check(self, number, tokens, score):
        if number % self.every:
            return
        self.audited += 1
        plain = self.plain(tokens)
        if abs(plain - score) > 2e-4:
            raise AssertionError(f"essay {number}: served {score:.6f}, audited {plain:.6f}")


def essays():
    rng = np.random.default_rng(21)
    for words in (120, 333, 80, 211, 505, 410, 95, 700, 640):
        paragraphs = np.array_split(rng.integers(0, VOCAB, words), 5)
        yield np.concatenate(paragraphs)


def main():
    torch.manual_seed(6)
    model = Scorer().eval()
    with torch.no_grad():
        ep = torch.export.export(
            model,
            (torch.randint(0, VOCAB, (200,)),),
            dynamic_shapes={"tokens": {0: Dim("length", min=2, max=LIMIT)}},
        )
        target = os.path.join(tempfile.mkdtemp(), "essay.pt2")
        runner = torch._inductor.aoti_load_package(
            torch._inductor.aoti_compile_and_package(ep, package_path=target)
        )
    auditor = Auditor(model)
    for number, tokens in enumerate(essays()):
        score = runner(torch.from_numpy(tokens)).item()
        logging.info("essay %d, %d tokens: %.4f", number, len(tokens), score)
        auditor.check(number, tokens, score)
    logging.info("%d audits passed", auditor.audited)


if __name__ == "__main__":
    main()
