"""Press line recorder: strokes are sampled into one block; the results of a shift are signed at its end."""

import hashlib
import os
import queue
import tempfile
import threading
from collections import namedtuple

import numpy as np
import torch
import torch.nn as nn

Stroke = namedtuple("Stroke", "number trace peak grade")
SAMPLES, SENSORS = 90, 4


class StrokeModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Conv1d(SENSORS, 8, 5, stride=2)
        self.grade = nn.Linear(8, 3)

    def forward(self, block):
        trace = block[:, 10:70]
        h = torch.relu(self.filter(block.unsqueeze(0))).amax(-1)
        return trace, trace.abs().amax(-1), self.grade(h).softmax(-1)


class Sampler:
    """Plays recorded strokes into shared memory, the way the acquisition card does."""

    def __init__(self):
        self.block = np.zeros((SENSORS, SAMPLES), dtype=np.float32)
        self.rng = np.random.default_rng(77)

    def stroke(self):
        t = np.linspace(0, 1, SAMPLES)
        shape = np.sin(np.pi * t) ** self.rng.uniform(1, 4)
        self.block[:] = self.rng.uniform(20, 80, (SENSORS, 1)) * shape + self.rng.normal(
            0, 0.5, self.block.shape
        )
        return torch.from_numpy(self.block)


def sign(stroke):
    return hashlib.sha1(np.ascontiguousarray(stroke.trace.numpy()).round(2).tobytes()).hexdigest()[:10]


def recorder(inbox, kept):
    while (stroke := inbox.get()) is not None:
        kept.append(stroke)


def close_shift(kept):
    for s in kept:
        measured = s.trace.abs().amax(-1)
        if not torch.allclose(measured, s.peak, rtol=1e-4):
            raise ValueError(
                f"stroke {s.number}: trace peaks {measured.tolist()} do not fit {s.peak.tolist()}"
            )
    return [sign(s) for s in kept]


def load():
    torch.manual_seed(13)
    model = StrokeModel().eval()
    with torch.no_grad():
        exported = torch.export.export(model, (torch.randn(SENSORS, SAMPLES),))
        where = torch._inductor.aoti_compile_and_package(
            exported, package_path=os.path.join(tempfile.mkdtemp(), "press.pt2")
        )
    return torch._inductor.aoti_load_package(where)


def main():
    model, sampler = load(), Sampler()
    inbox, kept = queue.Queue(), []
    thread = threading.Thread(target=recorder, args=(inbox, kept))
    thread.start()
    for number in range(6):
        trace, peak, grade = model(sampler.stroke())
        assert torch.isfinite(grade).all()
        inbox.put(Stroke(number, trace, peak, grade))
        print(f"stroke {number}: peak {peak.max().item():.1f}, grade {grade.argmax().item()}", flush=True)
    inbox.put(None)
    thread.join()
    print("signatures", close_shift(kept))


if __name__ == "__main__":
    main()
