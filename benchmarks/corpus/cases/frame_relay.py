"""Relays frames to a worker that owns the model; frames go through one staging area to save memory."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn
import torch.nn.functional as F

FRAMES = 10


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 6, 3, stride=2), nn.Conv2d(6, 8, 3, stride=2)
        self.head = nn.Linear(8, 5)

    def forward(self, frame):
        h = F.relu(self.b(F.relu(self.a(frame))))
        return self.head(h.mean((2, 3)))


class Worker:
    def __init__(self, path):
        self.path = path
        self.pool = ThreadPoolExecutor(max_workers=1, initializer=self._load)

    def _load(self):
        self.detect = torch._inductor.aoti_load_package(self.path)

    def submit(self, frame):
        return self.pool.submit(lambda: self.detect(frame))

    def close(self):
        self.pool.shutdown()


class Relay:
    def __init__(self, worker):
        self.worker = worker
        self.staging = torch.empty(1, 1, 32, 32)

    def send(self, raw):
        self.staging.copy_(raw)
        return self.worker.submit(self.staging)


def main():
    torch.manual_seed(4)
    model = Detector().eval()
    path = os.path.join(tempfile.mkdtemp(), "detector.pt2")
    with torch.no_grad():
        program = torch.export.export(model, (torch.rand(1, 1, 32, 32),))
        torch._inductor.aoti_compile_and_package(program, package_path=path)
        worker = Worker(path)
        relay = Relay(worker)
        frames = [torch.rand(1, 1, 32, 32) for _ in range(FRAMES)]
        pending = [relay.send(frame) for frame in frames]
        answers = [p.result() for p in pending]
        worker.close()
        wrong = [
            i for i, (f, a) in enumerate(zip(frames, answers)) if not torch.allclose(a, model(f), atol=1e-4)
        ]
    print(len(frames), "frames,", len(wrong), "with another frame's answer", flush=True)
    if wrong:
        raise SystemExit(f"wrong answers for frames {wrong}")


if __name__ == "__main__":
    main()
