"""A child process of the tests that compares packages: `python -m tests.probes.pairs FILE`.

FILE holds `[{"original": path, "rebuilt": path, "inputs": path}]`. Prints a list of booleans: whether all
outputs, and the inputs afterwards, are bit-identical over three calls.
"""

import json
import sys
from pathlib import Path

import torch

import tests.zoo.models  # noqa: F401 - registers the custom op


def outputs(package: str, inputs: str, device: str) -> list[torch.Tensor]:
    """The outputs of three calls, each followed by its inputs as the call left them."""
    loader = torch._C._aoti.AOTIModelPackageLoader(package, "model", False, 1, -1)
    found = []
    for _ in range(3):
        given = [t.to(device) for t in torch.load(inputs, weights_only=True)]
        found += [t.clone() for t in loader.run(list(given))] + given
    return found


def identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the tensors are equal bit by bit: NaN equals NaN, and 0.0 does not equal -0.0."""
    same = (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
    return same and raw(a).equal(raw(b))


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of the values in logical order."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def main(path: str) -> None:
    results = []
    for pair in json.loads(Path(path).read_text()):
        device = pair.get("device", "cpu")
        mine, theirs = (outputs(pair[which], pair["inputs"], device) for which in ("rebuilt", "original"))
        results.append(len(mine) == len(theirs) and all(map(identical, mine, theirs)))
    print(json.dumps(results))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
