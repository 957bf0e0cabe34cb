"""Button factory: moulding batches scored against the spread of their own mould.

Every piece belongs to a mould. A piece is scored by its distance from the mean of
its mould in units of the mould's spread; pieces without a good measurement are skipped.
"""
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.export import Dim

MOULDS = 6
FEATURES = 5


class MouldScore(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("moulds", torch.arange(MOULDS))
        self.weight = nn.Parameter(torch.rand(FEATURES) + 0.5)

    def forward(self, pieces, mould, usable):
        member = (mould.unsqueeze(1) == self.moulds) & usable.unsqueeze(1)
        member = member.to(pieces.dtype)
        count = member.sum(0)
        centre = (member.t() @ pieces) / count.clamp(min=1.0).unsqueeze(1)
        away = pieces - centre[mould]
        spread = (member.t() @ away.square()) / (count - 1.0).unsqueeze(1)
        scaled = away / (spread.sqrt() + 1e-4)[mould]
        score = (scaled.abs() * self.weight).sum(1)
        return torch.where(usable, score, 0.0)


def shift(seed, pieces):
    rng = np.random.default_rng(seed)
    mould = np.arange(pieces) % MOULDS
    size = 10.0 + mould[:, None] + rng.normal(0, 0.2, (pieces, FEATURES))
    usable = rng.random(pieces) > 0.1
    usable[: 2 * MOULDS] = True
    return size.astype(np.float32), mould.astype(np.int64), usable


def retooling_shift():
    size, mould, usable = shift(33, 60)
    mould[mould == 4] = 3
    mould[17] = 4
    usable[17] = True
    flags = usable.astype(np.uint8)
    return size, mould, flags


def inspect(scorer, name, size, mould, usable):
    inputs = tuple(torch.from_numpy(a) for a in (size, mould, usable))
    score = scorer(*inputs)
    bad = torch.nonzero(~torch.isfinite(score)).flatten()
    if len(bad):
        raise FloatingPointError(f"{name}: score of piece {bad.tolist()} is not finite: {score[bad].tolist()}")
    print(f"{name}: {len(size)} pieces, worst score {score.max().item():.2f}")
    return score


def main():
    workdir = Path(tempfile.mkdtemp(prefix="moulds_"))
    try:
        torch.manual_seed(3)
        model = MouldScore().eval()
        example = tuple(torch.from_numpy(a) for a in shift(0, 24))
        pieces = Dim("pieces", min=4, max=2048)
        program = torch.export.export(model, example, dynamic_shapes=({0: pieces},) * 3)
        package = torch._inductor.aoti_compile_and_package(
            program, package_path=str(workdir / "moulds.pt2")
        )
        scorer = torch._inductor.aoti_load_package(package)
        with torch.no_grad():
            early = shift(1, 48)
            score = inspect(scorer, "early shift", *early)
            torch.testing.assert_close(
                score, model(*(torch.from_numpy(a) for a in early)), rtol=1e-3, atol=1e-3
            )
            inspect(scorer, "late shift", *shift(2, 72))
            inspect(scorer, "retooling shift", *retooling_shift())
        print("all shifts inspected")
    finally:
        shutil.rmtree(workdir, ignore_errors=True)


if __name__ == "__main__":
    main()
