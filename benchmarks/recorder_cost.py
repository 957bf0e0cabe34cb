"""What the recorder adds to a call.

`python -m benchmarks.recorder_cost [--device cuda] [--layers N]` compiles and records a small ranker with two
inputs of integers and one of floats. One process calls the plain package, the recorded one and the plain one
again (the control) in interleaved blocks. The microseconds that the recorder and the control add to the
median of the plain calls are kept in results.json. Choose `--layers` for a call of about 0.2 ms.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks import keep, kept

BLOCKS, CALLS = 80, 50


class Ranker(torch.nn.Module):  # type: ignore[misc]
    """Two embeddings and a chain of layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.users, self.items = torch.nn.Embedding(1000, 64), torch.nn.Embedding(1000, 64)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(layers))

    def forward(self, users: torch.Tensor, items: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        hidden = (self.users(users) * self.items(items)).mean(1) * scale
        for layer in self.layers:
            hidden = layer(hidden).relu()
        return hidden


def packages(folder: Path, asked: argparse.Namespace) -> tuple[dict[str, str], list[torch.Tensor]]:
    """The plain, recorded and control packages, and the inputs."""
    torch.manual_seed(0)
    inputs = [torch.randint(1000, (64, 16)), torch.randint(1000, (64, 16)), torch.rand(64, 1)]
    inputs = [one.to(asked.device) for one in inputs]
    program = torch.export.export(Ranker(asked.layers).to(asked.device).train(mode=False), tuple(inputs))
    plain, recorded = str(folder / "plain.pt2"), str(folder / "recorded.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=plain)
    command = "from mcp_server.cli.main import main; main()"
    words = ["record", plain, "--out", recorded, "--directory", str(folder)]
    subprocess.run([sys.executable, "-c", command, *words], check=True)
    return {"plain": plain, "recorded": recorded, "control": plain}, inputs


def timed(files: dict[str, str], inputs: list[torch.Tensor]) -> dict[str, list[float]]:
    """Microseconds of every call, by package."""
    models = {
        name: torch._C._aoti.AOTIModelPackageLoader(file, "model", False, 1, -1)
        for name, file in files.items()
    }
    wait = torch.cuda.synchronize if inputs[0].is_cuda else lambda: None
    times: dict[str, list[float]] = {name: [] for name in models}
    for block in range(BLOCKS):
        for name in list(models)[:: 1 if block % 2 else -1]:
            for _ in range(CALLS):
                start = time.perf_counter()
                models[name].run(list(inputs))
                wait()
                times[name].append(1e6 * (time.perf_counter() - start))
    return {name: each[len(each) // 10 :] for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=16)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, torch.no_grad():
        medians = {
            name: statistics.median(each) for name, each in timed(*packages(Path(folder), asked)).items()
        }
    base = (medians["plain"] + medians["control"]) / 2
    added = {name: round(medians[name] - base, 1) for name in ("recorded", "control")}
    told = {
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "call_us": round(base),
        "added_us": added["recorded"],
        "noise_us": abs(added["control"]),
    }
    keep("recorder_cost", {**kept("recorder_cost"), asked.device: told})
    print(told)


if __name__ == "__main__":
    main()
