"""Faults of a model: a mistake in its source, or in its weights."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.plant.faults import Draft, Fault, Truth
from benchmarks.plant.models import Edit

Change = Callable[[Draft, Any], "tuple[int, ...] | None"]
VALUE, CONSTANTS = ("nan_or_inf",), ("constants",)


def show(draft: Draft, edit: Edit) -> None:
    """Make both calls show the mistake, with legitimate inputs."""
    place, value = edit.where
    tensor = draft.inputs[place]
    row = draft.chance.randrange(tensor.shape[0])
    if edit.shows == "value":
        tensor[draft.element(tensor)] = value
    elif edit.shows == "zero_row":
        tensor[row] = 0
    elif edit.shows == "low_row":
        tensor[row] = 0.01
    elif edit.shows == "high":
        tensor[:, ::2] = tensor[:, ::2] / 10 + 0.905
    elif edit.shows == "no_such":
        tensor[tensor == draft.chance.randrange(value)] = value - 1
    draft.good[place] = tensor.clone()


def mistake(_draft: Draft) -> Truth:
    """The answer is the line of the edit, which is made where packages are compiled."""
    return Truth()


def large_weight(draft: Draft) -> str | None:
    """A weight of floats with many elements, so that a package has its bytes only once."""
    names = [
        name
        for name, weight in draft.weights.items()
        if weight.numel() > 15 and weight.is_floating_point() and weight.dtype != torch.bfloat16
    ]
    return draft.chance.choice(sorted(names)) if names else None


def in_package(change: Change) -> Callable[[Draft], Truth | None]:
    """Change one weight in the package file, where its bytes are found once."""

    def plant(draft: Draft) -> Truth | None:
        name = large_weight(draft)
        if name is None:
            return None
        changed = draft.weights[name].detach().cpu().clone()
        where = change(draft, changed)
        target = draft.folder / "changed.pt2"
        if not replace_bytes(draft.package, target, bytes_of(draft.weights[name]), bytes_of(changed)):
            return None
        draft.clean_package, draft.package = draft.package, target
        return Truth(constant=name, element=where)

    return plant


def bytes_of(tensor: Any) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().numpy().tobytes())


def replace_bytes(source: Path, target: Path, old: bytes, new: bytes) -> bool:
    """Copy the package with `new` for `old`; whether exactly one member had `old`, once."""
    found = 0
    with zipfile.ZipFile(source) as given, zipfile.ZipFile(target, "w") as made:
        for info in given.infolist():
            data = given.read(info)
            found += data.count(old)
            made.writestr(info.filename, data.replace(old, new))
    return found == 1


def copied(draft: Draft) -> dict[str, Any]:
    """The right weights, on the package's device."""
    return {name: weight.detach().clone().to(draft.device) for name, weight in draft.weights.items()}


def by_update(change: Change) -> Callable[[Draft], Truth | None]:
    """The program loads a file of weights, one of them changed, into the package."""

    def plant(draft: Draft) -> Truth | None:
        weights = copied(draft)
        name = large_weight(draft)
        if name is None:
            return None
        where = change(draft, weights[name])
        torch.save(weights, draft.folder / "weights.pt")
        draft.loaded += UPDATE
        return Truth(constant=name, element=where)

    return plant


def without_one(draft: Draft) -> Truth:
    """The file of weights lacks one."""
    weights = copied(draft)
    name = draft.chance.choice(sorted(weights))
    del weights[name]
    torch.save(weights, draft.folder / "weights.pt")
    draft.loaded += UPDATE
    return Truth(constant=name)


def of_other_shape(draft: Draft) -> Truth | None:
    """One weight of the file lacks its first row."""
    weights = copied(draft)
    name = large_weight(draft)
    if name is None:
        return None
    weights[name] = weights[name][1:].contiguous()
    torch.save(weights, draft.folder / "weights.pt")
    draft.loaded += UPDATE
    return Truth(constant=name)


UPDATE = ['model.load_constants(torch.load(here / "weights.pt"), check_full_update=True)']


def one_value(value: float) -> Change:
    def change(draft: Draft, weight: Any) -> tuple[int, ...]:
        where = draft.element(weight)
        weight[where] = value
        return where

    return change


def every(factor: float) -> Change:
    def change(_draft: Draft, weight: Any) -> None:
        weight.mul_(factor)

    return change


def restored(draft: Draft) -> None:
    """Write the clean program's file of weights, if the fault is in that file."""
    if (draft.folder / "weights.pt").exists():
        clean = draft.folder / "clean"
        clean.mkdir(exist_ok=True)
        torch.save(copied(draft), clean / "weights.pt")


NAN, INFINITY = float("nan"), float("inf")
WRONG = (*CONSTANTS, "wrong_output")
SCRIPT = ("script",)
FAULTS = (
    *(
        Fault(name, categories, mistake, edits=name)
        for name, categories in (
            ("table_too_short", ("index_out_of_bounds",)),
            ("one_bucket_more", ("index_out_of_bounds",)),
            ("int32_overflow", ("index_out_of_bounds", "wrong_output")),
            ("softmax_of_nothing", VALUE),
            ("root_of_difference", VALUE),
            ("mean_of_nothing", VALUE),
        )
    ),
    Fault("weight_nan", (*CONSTANTS, *VALUE), in_package(one_value(NAN))),
    Fault("weight_infinite", (*CONSTANTS, *VALUE), in_package(one_value(INFINITY))),
    Fault("weight_zero", WRONG, in_package(every(0))),
    Fault("weight_scaled", (*WRONG, *VALUE), in_package(every(1e4))),
    Fault("update_nan", (*CONSTANTS, *VALUE), by_update(one_value(NAN)), SCRIPT),
    Fault("update_zero", WRONG, by_update(every(0)), SCRIPT),
    Fault("update_scaled", (*WRONG, *VALUE), by_update(every(1e4)), SCRIPT),
    Fault("update_lacks_one", CONSTANTS, without_one, SCRIPT),
    Fault("update_of_other_shape", CONSTANTS, of_other_shape, SCRIPT),
)
