"""What eager makes of every node and output, and how far its rounding goes."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch.utils import _pytree

from .calling import take_if_used
from .checksums import checksum
from .closeness import Expected
from .eager_noise import NoisyRecorder, spread
from .eager_values import ExactRecorder, Recorder, tensors, widened
from .report import Report


def expectations(
    module: Any, leaves: list[Any], wanted: Optional[frozenset[str]], cap: int, report: Report
) -> tuple[dict[str, list[Expected]], list[Expected]]:
    """What eager computed, by node and for each output; without a reference where float64 failed.

    Event `eager_again` tells whether a second eager run gave the same outputs.
    """
    take_if_used()
    report.event("running_eager")
    eager = Recorder(module, wanted, cap, report)
    result = _run(eager, leaves)
    again = _run(Recorder(module, frozenset(), 0, report), leaves)
    report.event("eager_again", same=_marks(result) == _marks(again))
    report.event("running_float64", nodes=len(eager.kept), left_out=eager.left_out)
    exact = ExactRecorder(module, wanted, cap, report)
    precise = _tried(exact, leaves, report)
    noisy = NoisyRecorder(module, exact)
    moved = _tried(noisy, leaves, report) if precise is not None else None
    return _joined(eager.kept, exact.kept, noisy.noise), _outputs(eager, result, precise, moved)


def _outputs(eager: Recorder, result: Any, precise: Any, moved: Any) -> list[Expected]:
    """The outputs of the whole program, each with the longest sum behind it."""
    wanted, exact, noisy = tensors(result), tensors(precise), tensors(moved)
    fits, known = len(exact) == len(wanted), len(noisy) == len(wanted)
    return [
        Expected(
            "output {}".format(place),
            tensor,
            exact[place] if fits else None,
            eager.ends[place] if len(eager.ends) == len(wanted) else max(eager.ends, default=1.0),
            spread(noisy[place], exact[place]) if fits and known else 0.0,
        )
        for place, tensor in enumerate(wanted)
    ]


def _run(recorder: Recorder, leaves: list[Any]) -> Any:
    """One run on copies of the inputs; buffers that the program changes are put back."""
    buffers = [(buffer, buffer.clone()) for buffer in recorder.module.buffers()]
    with torch.no_grad():
        outputs = _copied(recorder.run(*_copied(leaves), enable_io_processing=False))
        for buffer, value in buffers:
            buffer.copy_(value)
    return outputs


def _tried(exact: ExactRecorder, leaves: list[Any], report: Report) -> Any:
    try:
        return _run(exact, [widened(leaf) for leaf in leaves])
    except Exception as error:
        report.event("no_float64", text="{}: {}".format(type(error).__name__, error)[:500])
        return None


def _marks(result: Any) -> list[str]:
    return [checksum(tensor) for tensor in tensors(result)]


def _joined(
    eager: dict[str, list[tuple[torch.Tensor, float]]],
    exact: dict[str, list[tuple[torch.Tensor, float]]],
    noise: dict[str, list[float]],
) -> dict[str, list[Expected]]:
    found: dict[str, list[Expected]] = {}
    for node, values in eager.items():
        precise = exact.get(node, [])
        fits = len(precise) == len(values)
        spreads = noise.get(node) or [0.0] * len(values)
        for place, (tensor, terms) in enumerate(values):
            wide, moved = (precise[place][0], spreads[place]) if fits else (None, 0.0)
            found.setdefault(node, []).append(Expected(node, tensor, wide, terms, moved))
    return found


def _copied(tree: Any) -> Any:
    """The same with tensors of its own."""
    return _pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, tree)
