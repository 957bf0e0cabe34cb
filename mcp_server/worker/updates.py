"""Captured updates of constants, applied to a loaded package and to the program it was compiled from."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import torch

from .inputs import load_file
from .report import Report

Step = dict[str, Any]


def update_package(
    loader: Any, step: Step, cast: dict[str, str], report: Report, copied: Sequence[str] = ()
) -> dict[str, torch.Tensor]:
    """Apply one update; the tensors that it was given, which a user-managed update needs alive.

    `cast` maps names to the dtype that they get before, `copied` are those that get memory of their own.
    With `only_known` the step leaves out what the package does not have.
    """
    constants = dict(load_file(str(step["file"])))
    if step.get("only_known"):
        known = set(loader.get_constant_fqns())
        constants = {name: value for name, value in constants.items() if name in known}
    constants.update(
        {name: constants[name].to(getattr(torch, cast[name])) for name in cast if name in constants}
    )
    constants.update({name: constants[name].clone() for name in copied if name in constants})
    arguments = list(step.get("arguments", ()))
    report.event("updating_constants", how=step["how"], names=len(constants), arguments=arguments)
    getattr(loader, str(step["how"]))(constants, *arguments)
    report.event("updated_constants")
    return constants


def update_program(module: Any, step: Step, report: Report) -> None:
    """Apply one update to an eager module; event `not_applied` for each constant that it cannot take."""
    known = constants_of(module)
    known.update({name.replace(".", "_"): tensor for name, tensor in known.items()})
    for name, value in load_file(str(step["file"])).items():
        refused = _refused(known.get(name), value)
        if refused:
            report.event("not_applied", name=name, what=refused)
            continue
        with torch.no_grad():
            known[name].copy_(value)


def constants_of(module: Any) -> dict[str, torch.Tensor]:
    """Parameters and buffers of an eager module, by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _refused(own: Optional[torch.Tensor], value: torch.Tensor) -> str:
    """Why a value cannot take the place of the program's; a package looks at neither shape nor dtype."""
    if own is None:
        return "the program has no constant of that name"
    if own.shape != value.shape or own.dtype != value.dtype:
        return "it is {} {} and the program has {} {}".format(
            _dtype(value), list(value.shape), _dtype(own), list(own.shape)
        )
    return ""


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).replace("torch.", "")
