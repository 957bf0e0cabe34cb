"""`observe`: runs an instrumented package and records the tensors that its launches read and write.

Tensors are saved as safetensors files, piece by piece and without that library. Format: the length of a JSON
header in 8 bytes, little-endian; the header, padded with spaces to a multiple of 8 bytes; the values in
row-major order. The header has dtype, shape and byte range by name, and texts as `__metadata__`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from typing import Mapping, cast

import torch

from . import run
from .events import Argument as ArgumentFacts
from .events import LeftOut, NotSaved
from .probes import (
    AFTER,
    INTEGER,
    REAL,
    ROLES,
    Argument,
    Event,
    arguments,
    mapped_files,
    subscribed,
    tensor_of,
)
from .process import capturing, synchronize
from .protocol import ObserveRequest, ReplayRequest
from .report import Refused, Report
from .tensors import MASK, describe, dtype_name, first_non_finite, first_outside, is_strided

MAX_EVENTS = 100_000
SAVE_BYTES = 4 << 30  # limit of all tensors saved in one observation, in bytes


def operate(request: ObserveRequest, report: Report) -> None:
    """Run like `run`, with an event `argument` for each requested argument."""
    before, observer = mapped_files(), Observer(request, report)
    with contextlib.ExitStack() as stack:
        stack.callback(observer.report_left_out)

        def attach() -> None:
            stack.enter_context(subscribed(observer.take, report, before))

        run.operate(cast(ReplayRequest, request), report, attach)


CHUNK = 1 << 24  # elements in host memory at a time
MOST_TURNS = 100_000  # limit of saved tensors of one name
LONGEST = {"kernel": 120, "name": 60}  # characters, because a file name may have 255 bytes

# Names of dtypes in safetensors.
_NAMES = {"bool": "BOOL", "bfloat16": "BF16", "float8_e5m2": "F8_E5M2", "float8_e4m3fn": "F8_E4M3"}
_NAMES.update(
    {"{}{}".format(kind, n): kind[0].upper() + str(n) for kind in ("int", "uint") for n in (8, 16, 32, 64)}
)
_NAMES.update({"float{}".format(n): "F{}".format(n) for n in (16, 32, 64)})


def stem(launch: int, kernel: str, name: str, phase: str) -> str:
    """`<launch>-<kernel>-<name>-<phase>`, with `_` for characters that a file name cannot have."""
    kernel, name = (
        "".join(char if char.isalnum() or char in "_." else "_" for char in text) for text in (kernel, name)
    )
    return "{}-{}-{}-{}".format(launch, kernel[: LONGEST["kernel"]], name[: LONGEST["name"]], phase)


def _create(directory: str, stem: str) -> tuple[str, int]:
    """Create a new file for `stem` that only its owner can read. Return its path and descriptor."""
    for turn in range(1, MOST_TURNS):
        name = stem if turn == 1 else "{}.{}".format(stem, turn)
        path = os.path.join(directory, name + ".safetensors")
        with contextlib.suppress(FileExistsError):
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    raise Refused("too many tensors of one name", stem)


def write(directory: str, stem: str, name: str, tensor: torch.Tensor, facts: Mapping[str, object]) -> str:
    """Write `tensor` under `name` to a new file and return its path; `facts` become the metadata.

    Existing files are kept: if a launch runs again, in a loop or a later call, its files get `.2`, `.3`.
    Complex values are written as pairs. Raise `KeyError` for a dtype that the format does not have.
    """
    flat = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    size = flat.numel() * flat.element_size()
    entry = {"dtype": _NAMES[dtype_name(flat.dtype)], "shape": list(flat.shape), "data_offsets": [0, size]}
    metadata = {key: str(value) for key, value in facts.items()}
    header = json.dumps({"__metadata__": metadata, name: entry}).encode()
    header += b" " * (-len(header) % 8)
    path, handle = _create(directory, stem)
    with os.fdopen(handle, "wb") as out:
        out.write(len(header).to_bytes(8, "little") + header)
        for part in flat.detach().reshape(-1).split(CHUNK) if size else ():
            host = part.resolve_neg().cpu().contiguous()
            out.write(ctypes.string_at(host.data_ptr(), host.numel() * host.element_size()))
    return path


METADATA = ("launch", "sequence", "run", "runner", "kernel", "stride", "device")  # kept in the file


class Saver:
    """Saves tensors into `directory`, at most `cap` bytes. Without a directory, it saves nothing."""

    def __init__(self, directory: str | None, cap: int) -> None:
        self.directory = directory
        self.cap = self.left = cap
        self.refused = 0

    def save(self, facts: ArgumentFacts, tensor: torch.Tensor) -> str | None:
        """The path of the new file. None if the tensor should not or cannot be saved."""
        if self.directory is None:
            return None
        size = tensor.numel() * tensor.element_size()
        if size <= self.left and is_strided(tensor):
            self.left -= size
            name = facts.name or facts.parameter
            metadata = {key: getattr(facts, key) for key in METADATA}
            place = stem(facts.launch, facts.kernel, name, facts.phase)
            # The format does not have the dtype, or the disk is full.
            with contextlib.suppress(KeyError, OSError):
                return write(self.directory, place, name, tensor, metadata)
        self.refused += 1
        return None


PHASES = {"before", "after"}


class Observer:
    """Handles the probe events of all libraries."""

    def __init__(self, request: ObserveRequest, report: Report) -> None:
        self.request = request
        self.report = report
        self.phases = set(request.get("phases") or PHASES)
        if not self.phases <= PHASES:
            raise Refused("unknown phase", sorted(self.phases), "before, after")
        self._skip_before = {int(n): names for n, names in request.get("skip_before", {}).items()}
        self._saver = Saver(request.get("save"), request.get("save_bytes", SAVE_BYTES))
        self._events_left = MAX_EVENTS
        self._left_out = 0

    def take(self, event: Event) -> bool:
        """Look at one launch in one phase. Return whether to stop the run."""
        kernel, launch = event.kernel.decode(), int(event.launch)
        phase = "after" if event.phase == AFTER else "before"
        chosen = kernel in self.request.get("kernels", [kernel])
        chosen = chosen and launch in self.request.get("launches", [launch]) and phase in self.phases
        if not chosen or capturing():
            return False
        synchronize()
        bad = [self._argument(event, kernel, phase, argument) for argument in arguments(event)]
        return any(bad) and self.request.get("stop_at_first_bad", False)

    def _argument(self, event: Event, kernel: str, phase: str, argument: Argument) -> bool:
        """Report one argument. Return whether it has a bad value. -inf is not bad: it may be a mask."""
        name, parameter = argument.name.decode(), argument.parameter.decode()
        role = ROLES.get(argument.role, "unknown")
        if not self._wants(event.launch, phase, name, parameter, role):
            return False
        known = {"kernel": kernel, "phase": phase, "name": name, "parameter": parameter, "role": role}
        known.update({key: getattr(event, key) for key in ("launch", "sequence", "run", "runner")})
        if argument.kind in (INTEGER, REAL):
            value = argument.integer if argument.kind == INTEGER else argument.real
            self._report(ArgumentFacts(**known, value=value))
            return False
        tensor = tensor_of(argument)
        if tensor is None:
            return False
        facts = ArgumentFacts(**{**vars(describe(tensor)), **known})
        facts.pointer = tensor.data_ptr() if is_strided(tensor) and not tensor.is_meta else 0
        odd = facts.non_finite = first_non_finite(tensor) if facts.not_finite else None
        bounds = (b for b in self.request.get("bounds", ()) if b["launch"] == event.launch)
        bound = next((b for b in bounds if b["name"] in (name, parameter)), None)
        facts.outside = first_outside(tensor, bound["low"], bound["high"]) if bound else None
        facts.saved = self._saver.save(facts, tensor)
        self._report(facts)
        return facts.outside is not None or (odd is not None and odd.value != MASK)

    def _wants(self, launch: int, phase: str, name: str, parameter: str, role: str) -> bool:
        """Whether to look at an argument. Before a launch, only those that have values by then matter."""
        if not {name, parameter} & set(self.request.get("names", [name])):
            return False
        if phase == "after":
            return role != "read"
        return role != "written" and name not in self._skip_before.get(launch, ())

    def _report(self, facts: ArgumentFacts) -> None:
        if self._events_left <= 0:
            self._left_out += 1
            return
        self._events_left -= 1
        self.report.event(facts)

    def report_left_out(self) -> None:
        if self._left_out:
            self.report.event(LeftOut(self._left_out))
        if self._saver.refused:
            self.report.event(NotSaved(self._saver.refused, self._saver.cap))
