"""Requests go through a queue to a worker thread that scores them."""

import os
import queue
import tempfile
import threading

import torch
from torch import nn
from torch.export import Dim


class Score(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, d), nn.ReLU(), nn.Linear(d, 1))

    def forward(self, x):
        return self.body(x).squeeze(-1)


def serve(runner, requests, answers):
    while True:
        x = requests.get()
        if x is None:
            return
        answers.put(runner(x))


def main():
    torch.manual_seed(61)
    package = os.path.join(tempfile.mkdtemp(), "score.pt2")
    with torch.no_grad():
        n = Dim("n", min=1, max=64)
        exported = torch.export.export(Score().eval(), (torch.randn(4, 8),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        requests, answers = queue.Queue(), queue.Queue()
        worker = threading.Thread(target=serve, args=(runner, requests, answers), name="scorer", daemon=True)
        worker.start()
        for rows in (3, 5):
            requests.put(torch.randn(rows, 8))
        for _ in range(3):
            print("answer", tuple(answers.get().shape), flush=True)
        requests.put(None)


if __name__ == "__main__":
    main()
