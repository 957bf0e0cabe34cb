"""Child of benchmarks.instrument: `probe_overhead.py ORIGINAL REBUILT INPUTS WORKER_DIRECTORY` prints JSON.

Best seconds of a call of the original, of the rebuilt package, and with a subscriber that makes a tensor of
each argument; and how many tensors the subscriber saw in one call. Runs where only torch is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import time
from typing import Any

import torch


def import_probes(directory: str) -> Any:
    """The worker's module of probes, out of a directory that is no package of this interpreter."""
    spec = importlib.util.spec_from_file_location(
        "worker_files", f"{directory}/__init__.py", submodule_search_locations=[directory]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["worker_files"] = package
    spec.loader.exec_module(package)
    return importlib.import_module("worker_files.probes")


def load(package: str) -> Any:
    return torch._C._aoti.AOTIModelPackageLoader(package, "model", False, 1, -1)


def on_gpu(tensors: list[torch.Tensor]) -> bool:
    return any(tensor.is_cuda for tensor in tensors)


def seconds(model: Any, inputs: list[torch.Tensor], calls: int) -> float:
    """Of the best of seven rounds; on the CPU of this process alone, since the machine may be busy."""
    best = float("inf")
    clock = time.perf_counter if on_gpu(inputs) else time.process_time
    for _ in range(7):
        start = clock()
        for _ in range(calls):
            model.run(list(inputs))
        if on_gpu(inputs):
            torch.cuda.synchronize()
        best = min(best, (clock() - start) / calls)
    return best


def main(original: str, rebuilt: str, given: str, directory: str) -> None:
    probes = import_probes(directory)
    inputs = torch.load(given, weights_only=True)
    plain = load(original)
    before = probes.mapped_files()
    probed = load(rebuilt)
    library = probes.find_libraries(before)[0]
    facts = {"plain": seconds(plain, inputs, 300), "probed": seconds(probed, inputs, 300)}
    seen = [0]

    def look(event: Any) -> bool:
        seen[0] += sum(probes.tensor_of(argument) is not None for argument in probes.arguments(event))
        return False

    library.subscribe(look)
    probed.run(list(inputs))
    facts["tensors"] = seen[0]
    facts["subscribed"] = seconds(probed, inputs, 100)
    print(json.dumps(facts))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
