"""Loading a package, its weights from files, and captured updates of its constants."""

from __future__ import annotations

import io
import json
import os
import time
import zipfile
from typing import Any, Optional, Sequence

import torch

from .inputs import load_file
from .lease import for_cuda, take
from .report import Refused, Report

# A runner refers to weights that it was given and does not copy them: they live as long as this process.
_alive: list[dict[str, torch.Tensor]] = []


def load_weight_files(loader: Any, package: str, model: str, report: Report) -> None:
    """Give `loader` the weights of `package`, if it has any outside its library.

    As `load_pt2(..., load_weights_from_disk=True)` does (torch/export/pt2_archive/_package.py, 2.9-2.15, for
    packages made with `package_constants_on_disk_format="pickle_weights"`).
    """
    weights = read_weight_files(package, model)
    if not weights:
        return
    report.event("loading_weight_files", names=len(weights))
    _alive.append(weights)
    use_inactive, check_full_update, user_managed = False, True, True
    loader.load_constants(weights, use_inactive, check_full_update, user_managed)


def read_weight_files(package: str, model: str) -> dict[str, torch.Tensor]:
    """By name; empty when the package keeps none, or is no archive."""
    if not zipfile.is_zipfile(package):
        return {}
    with zipfile.ZipFile(package) as archive:
        members = {name.partition("/")[2]: name for name in archive.namelist()}
        config = members.get("data/aotinductor/{}/weights_config.json".format(model))
        places = json.loads(archive.read(config)) if config else {}
        files = {place[0] for place in places.values()}
        loaded = {file: _read(archive, members["data/weights/" + file]) for file in files}
    return {
        name: loaded[file].as_strided(shape, stride, offset)
        for name, (file, shape, stride, offset) in places.items()
    }


def _read(archive: zipfile.ZipFile, member: str) -> torch.Tensor:
    tensor: torch.Tensor = torch.load(io.BytesIO(archive.read(member)), weights_only=True)
    return tensor


def load(request: dict[str, Any], report: Report, *, weights: bool = True) -> Any:
    """The `AOTIModelPackageLoader` of `request["package"]`.

    The raw loader neither probes the CPU's ISA (tens of seconds on some machines) nor hides the first error
    behind a second attempt, as `load_package` does (torch/_inductor/package/package.py, 2.8-2.15). Neither
    brings in weights that the package keeps beside its .so, and calling such a model is a segmentation fault:
    with `weights` they are loaded here.
    """
    package = str(request["package"])
    if not os.path.exists(package):
        raise Refused("no such package", package)
    if for_cuda(package):
        take()
    start = time.monotonic()
    loader = _either(request, report)
    report.event("loaded", seconds=time.monotonic() - start, constants=len(loader.get_constant_fqns()))
    if weights:
        load_weight_files(loader, package, str(request.get("model_name", "model")), report)
    return loader


def _either(request: dict[str, Any], report: Report) -> Any:
    try:
        return _raw(request, report)
    except RuntimeError as error:
        report.event("load_failed", text=str(error)[:4000], type=type(error).__name__)
        return _public(request, report)


def _raw(request: dict[str, Any], report: Report) -> Any:
    report.event("loading", package=request["package"], loader="AOTIModelPackageLoader")
    return torch._C._aoti.AOTIModelPackageLoader(
        str(request["package"]),
        str(request.get("model_name", "model")),
        bool(request.get("run_single_threaded", False)),
        int(request.get("num_runners", 1)),
        int(request.get("device_index", -1)),
    )


def _public(request: dict[str, Any], report: Report) -> Any:
    from torch._inductor.package import load_package

    report.event("loading", package=request["package"], loader="load_package")
    return load_package(
        str(request["package"]),
        model_name=str(request.get("model_name", "model")),
        run_single_threaded=bool(request.get("run_single_threaded", False)),
        num_runners=int(request.get("num_runners", 1)),
        device_index=int(request.get("device_index", -1)),
    ).loader


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
