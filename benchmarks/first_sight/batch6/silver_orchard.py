"""Orchard frost map: compiled smoothing in the dispatcher, then in a worker process.

The dispatcher warms the package up and hands the large tiles to a worker process,
so that a long tile never blocks the radio loop.
"""
import multiprocessing as mp
import shutil
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.export import Dim

ROWS = 512
WAIT_S = 12


class FrostMap(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("slope", torch.linspace(-1.5, 1.5, ROWS).unsqueeze(1))

    def forward(self, temperature, humidity):
        dew = temperature - (100.0 - humidity) / 5.0
        risk = torch.sigmoid(-(temperature + self.slope)) * torch.exp(-dew.abs() / 8.0)
        return risk * torch.cos(humidity / 90.0)


def tile(seed, columns):
    gen = torch.Generator().manual_seed(seed)
    temperature = 3.0 * torch.randn(ROWS, columns, generator=gen)
    humidity = 60.0 + 30.0 * torch.rand(ROWS, columns, generator=gen)
    return temperature, humidity


def work(runner, seed, columns, answers):
    with torch.no_grad():
        risk = runner(*tile(seed, columns))
    answers.put((seed, float(risk.mean()), float(risk.max())))


class Dispatcher:
    def __init__(self, package, model):
        self.runner = torch._inductor.aoti_load_package(package)
        self.model = model
        self.context = mp.get_context("fork")

    def here(self, seed, columns):
        with torch.no_grad():
            inputs = tile(seed, columns)
            risk = self.runner(*inputs)
            torch.testing.assert_close(risk, self.model(*inputs), rtol=1e-4, atol=1e-5)
        return float(risk.mean())

    def elsewhere(self, seed, columns):
        answers = self.context.Queue()
        worker = self.context.Process(
            target=work, args=(self.runner, seed, columns, answers), daemon=True
        )
        worker.start()
        worker.join(WAIT_S)
        if worker.is_alive():
            worker.kill()
            worker.join()
            raise TimeoutError(f"tile {seed} ({columns} columns): no answer from the worker after {WAIT_S} s")
        if worker.exitcode:
            raise RuntimeError(f"tile {seed}: worker ended with code {worker.exitcode}")
        return answers.get(timeout=WAIT_S)[1]


def main():
    torch.set_num_threads(2)
    workdir = tempfile.mkdtemp(prefix="orchard_")
    try:
        model = FrostMap().eval()
        columns = Dim("columns", min=8, max=8192)
        program = torch.export.export(
            model, tile(0, 256), dynamic_shapes=({1: columns}, {1: columns})
        )
        package = torch._inductor.aoti_compile_and_package(
            program, package_path=str(Path(workdir) / "frost.pt2")
        )
        dispatcher = Dispatcher(package, model)

        print(f"dispatcher, tile 1: mean risk {dispatcher.here(1, 300):.4f}", flush=True)
        print(f"dispatcher, tile 2: mean risk {dispatcher.here(2, 700):.4f}", flush=True)

        for seed, width in ((3, 900), (4, 1200)):
            print(f"worker, tile {seed}: mean risk {dispatcher.elsewhere(seed, width):.4f}", flush=True)
        print("frost map complete")
    finally:
        shutil.rmtree(workdir, ignore_errors=True)


if __name__ == "__main__":
    main()
