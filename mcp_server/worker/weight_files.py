"""Weights that a package keeps beside its library, as files of `torch.save`."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import torch

from .report import Report

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
