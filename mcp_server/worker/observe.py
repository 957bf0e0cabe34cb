"""`observe`: runs an instrumented package and records the tensors that its launches read and write.

The package may still be under construction when the worker starts: importing torch and starting the GPU take
about as long as the rebuild, so both run at once (`received`).

Tensors are saved as safetensors files, in pieces and without the library of that name. Format: 8 bytes
little-endian length of a JSON header, the header (padded with spaces to 8 bytes), the values in row-major
order. The header maps the tensor's name to dtype, shape and byte range, `__metadata__` to text.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import time
from typing import Any, Optional

import torch

from . import run
from .calling import capturing, synchronize
from .imports import import_all
from .probes import (
    AFTER,
    INTEGER,
    PHASES,
    REAL,
    ROLES,
    Argument,
    Event,
    arguments,
    find_libraries,
    mapped_files,
    tensor_of,
)
from .report import Refused, Report
from .tensors import MASK, first_non_finite, first_outside, layout, statistics

POLL_S = 0.01


def received(request: "dict[str, Any]", report: Report) -> "dict[str, Any]":
    """Wait for the file `request["handoff"]` and return the request with the package that the file names.

    `probes` is false if the rebuild failed. `extra_imports` are imported during the wait, and come back
    empty. `warm` names a device to start: "cuda" or nothing.
    """
    import_all(list(request.get("extra_imports", ())), report)
    if request.get("warm") == "cuda":
        with contextlib.suppress(RuntimeError):  # the load says it better
            torch.cuda.synchronize()
    report.event("waiting_for_package")
    handoff = _wait(str(request["handoff"]))
    report.event("package_given", **handoff)
    return {**request, **handoff, "extra_imports": ()}


def _wait(path: str) -> "dict[str, Any]":
    """Read the file once it exists. It is renamed into place; the parent enforces the time limit."""
    while not os.path.exists(path):
        time.sleep(POLL_S)
    with open(path, encoding="utf-8") as file:
        found: "dict[str, Any]" = json.load(file)
    return found


CHUNK = 1 << 24  # elements in host memory at a time
LONGEST = {"kernel": 120, "name": 60}  # characters in a file's name, which may have 255 bytes

_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


def stem(launch: int, kernel: str, name: str, phase: str) -> str:
    """`<launch>-<kernel>-<arg>-<before|after>`, with nothing in it that a file's name cannot hold."""
    return "{}-{}-{}-{}".format(
        launch, _safe(kernel)[: LONGEST["kernel"]], _safe(name)[: LONGEST["name"]], phase
    )


def _safe(text: str) -> str:
    return "".join(char if char.isalnum() or char in "_." else "_" for char in text)


def write(directory: str, stem: str, name: str, tensor: torch.Tensor, facts: "dict[str, Any]") -> str:
    """Write `tensor` under `name` to a new file and return its path; `facts` become the metadata.

    A file that is there is left alone: the same launch again, in a loop or a later call, gets `.2`, `.3`.
    Complex values are written as pairs. Raises `KeyError` for a dtype that the format does not have.
    """
    flat = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    dtype = _NAMES[str(flat.dtype).replace("torch.", "")]
    size = flat.numel() * flat.element_size()
    entry = {"dtype": dtype, "shape": list(flat.shape), "data_offsets": [0, size]}
    metadata = {key: str(value) for key, value in facts.items()}
    header = json.dumps({"__metadata__": metadata, name: entry}).encode()
    header += b" " * (-len(header) % 8)
    path, file = _new(directory, stem)
    with os.fdopen(file, "wb") as out:
        out.write(len(header).to_bytes(8, "little") + header)
        for part in flat.detach().reshape(-1).split(CHUNK) if size else ():
            host = part.resolve_neg().cpu().contiguous()
            out.write(ctypes.string_at(host.data_ptr(), host.numel() * host.element_size()))
    return path


def _new(directory: str, stem: str) -> "tuple[str, int]":
    """The first of the names that is free, opened."""
    turn = 1
    while True:
        suffix = "" if turn == 1 else ".{}".format(turn)
        path = os.path.join(directory, stem + suffix + ".safetensors")
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            turn += 1


class Saver:
    """Saves into `directory`, or nowhere when that is None; `cap` bytes in all."""

    def __init__(self, directory: "Optional[str]", cap: int) -> None:
        self.directory = directory
        self.cap = self.left = cap
        self.refused = 0

    def save(
        self, where: "dict[str, Any]", phase: str, facts: "dict[str, Any]", tensor: torch.Tensor
    ) -> "Optional[str]":
        """The path of the new file; None when nothing is to be saved, or this cannot be.

        `where` tells the launch and its kernel, `facts` name, stride and device of the tensor.
        """
        if self.directory is None:
            return None
        size = tensor.numel() * tensor.element_size()
        if size > self.left or tensor.layout is not torch.strided or tensor.is_nested:
            self.refused += 1
            return None
        self.left -= size
        name = facts["name"] or facts["parameter"]
        metadata = {**where, "stride": facts.get("stride"), "device": facts.get("device")}
        try:
            place = stem(where["launch"], where["kernel"], name, phase)
            return write(self.directory, place, name, tensor, metadata)
        except (KeyError, OSError):  # a dtype that the format does not have; a full disk
            self.refused += 1
            return None

    def close(self, report: Report) -> None:
        if self.refused:
            report.event("not_saved", tensors=self.refused, cap=self.cap)


BITS = {"before": 1, "after": 2}


class Selection:
    """The request's choices. What is left out is not restricted.

    `launches` are numbers, `kernels` and `names` exact names (`names` of variables or parameters), `phases`
    of before and after. `skip_before` lists arguments by launch that hold nothing yet before it;
    `unset_too` asks for those, and for what is only written, all the same: to make the launch again.
    """

    def __init__(self, request: "dict[str, Any]") -> None:
        self.launches = _optional(request, "launches", int)
        self.kernels = _optional(request, "kernels", str)
        self.names = _optional(request, "names", str)
        self.phases = set(request.get("phases") or PHASES)
        if not self.phases <= set(PHASES):
            raise Refused("unknown phase", sorted(self.phases), "before, after")
        self.unset_too = bool(request.get("unset_too"))
        skipped = dict(request.get("skip_before") or {})
        self.skip_before = {int(launch): frozenset(names) for launch, names in skipped.items()}

    def mask(self) -> "Optional[bytes]":
        """What the C++ side lets through; None when every launch is asked for in both phases."""
        bits = sum(BITS[phase] for phase in self.phases)
        if self.launches is None:
            return None if bits == sum(BITS.values()) else bytes([bits]) * 65536
        return bytes(bits if n in self.launches else 0 for n in range(max(self.launches, default=0) + 1))

    def takes_kernel(self, kernel: str) -> bool:
        return self.kernels is None or kernel in self.kernels

    def takes(self, launch: int, phase: str, name: str, parameter: str, role: str) -> bool:
        """Whether an argument is to be looked at; before a launch only what holds values then."""
        if self.names is not None and name not in self.names and parameter not in self.names:
            return False
        if phase == "before":
            if self.unset_too:
                return True
            return role != "written" and name not in self.skip_before.get(launch, ())
        return role != "read"


def _optional(request: "dict[str, Any]", key: str, kind: Any) -> "Optional[frozenset[Any]]":
    values = request.get(key)
    return None if values is None else frozenset(kind(value) for value in values)


MAX_EVENTS = 100_000
SAVE_BYTES = 4 << 30  # of all tensors saved in one observation


def operate(request: "dict[str, Any]", report: Report) -> None:
    """Like `run`, with an event `argument` for each argument asked for, and `non_finite` where values go bad.

    Request: what `run` takes, the choices of `Selection`, and
    - `statistics` (default true): counts of nan, inf and zero, min, max, mean, checksum;
    - `bounds`: `[{"name": variable or parameter, "launch": n?, "low": 0, "high": 32}]` for index tensors;
    - `save`: a directory for the tensors as safetensors files, `save_bytes` the cap of all of them;
    - `stop_at_first_bad`: end the run at the first bad value but minus infinity; `max_events`;
    - `handoff`: a file that will name the package (see `handoff`); one without probes is only run.
    """
    if request.get("handoff"):
        request = received(request, report)
        if not request["probes"]:
            run.operate_run(request, report)
            return
    before = mapped_files()
    observer = Observer(request, report)

    def attach() -> None:
        libraries = find_libraries(before)
        if not libraries:
            raise Refused(
                "the package is not instrumented", request["package"], "a package with launch probes"
            )
        for library in libraries:
            library.subscribe(observer.take, observer.selection.mask())
        observer.libraries = libraries
        report.event("attached", libraries=len(libraries))

    try:
        run.operate_run(request, report, attach)
    finally:
        observer.close()


class Observer:
    """Receives the events of all libraries of one observation."""

    def __init__(self, request: "dict[str, Any]", report: Report) -> None:
        self.selection = Selection(request)
        self.report = report
        self.libraries: "list[Any]" = []
        self._statistics = bool(request.get("statistics", True))
        self._bounds = list(request.get("bounds") or ())
        self._saver = Saver(request.get("save"), int(request.get("save_bytes", SAVE_BYTES)))
        self._stop = bool(request.get("stop_at_first_bad", False))
        self._events_left = int(request.get("max_events", MAX_EVENTS))
        self._bad_inputs: "dict[tuple[int, int, int], list[str]]" = {}
        self._left_out = 0

    def take(self, event: Event) -> bool:
        """Look at one launch in one phase; true stops the run."""
        kernel = event.kernel.decode()
        if not self.selection.takes_kernel(kernel) or capturing():
            return False
        phase = "after" if event.phase == AFTER else "before"
        if phase not in self.selection.phases:
            return False
        bad = False
        synchronize()
        for argument in arguments(event):
            bad = self._argument(event, kernel, phase, argument) or bad
        return bad and self._stop

    def _argument(self, event: Event, kernel: str, phase: str, argument: Argument) -> bool:
        """Report one argument. Returns whether its values are bad; minus infinity may be a mask."""
        name, parameter = argument.name.decode(), argument.parameter.decode()
        role = ROLES.get(argument.role, "unknown")
        if not self.selection.takes(event.launch, phase, name, parameter, role):
            return False
        facts = {"name": name, "parameter": parameter, "role": role}
        if argument.kind in (INTEGER, REAL):
            value = argument.integer if argument.kind == INTEGER else argument.real
            self._report_argument(event, kernel, phase, {**facts, "value": value})
            return False
        tensor = tensor_of(argument)
        if tensor is None:
            return False
        return self._tensor(event, kernel, phase, facts, tensor)

    def _tensor(
        self, event: Event, kernel: str, phase: str, facts: "dict[str, Any]", tensor: torch.Tensor
    ) -> bool:
        found = {**facts, **layout(tensor), "pointer": _pointer(tensor)}
        if self._statistics:
            found.update(statistics(tensor))
            any_bad = found.get("nan") or found.get("inf")
            found["non_finite"] = first_non_finite(tensor) if any_bad else None
        found["outside"] = self._outside(event.launch, facts, tensor)
        found["saved"] = self._saver.save(_where(event, kernel), phase, found, tensor)
        self._report_argument(event, kernel, phase, found)
        if found.get("non_finite"):
            self._report_non_finite(event, kernel, phase, found)
        bad = found.get("non_finite")
        return bool(found["outside"]) or (bad is not None and bad["value"] != MASK)

    def _report_non_finite(self, event: Event, kernel: str, phase: str, found: "dict[str, Any]") -> None:
        """Remember non-finite inputs; report a non-finite output with the non-finite inputs of its launch."""
        key = (event.runner or 0, event.run, event.sequence)
        if phase == "before":
            self._bad_inputs.setdefault(key, []).append(found["name"])
            return
        self.report.event(
            "non_finite",
            **_where(event, kernel),
            name=found["name"],
            first=found["non_finite"],
            inputs_looked_at="before" in self.selection.phases,
            bad_inputs=self._bad_inputs.get(key, []),
        )

    def _outside(self, launch: int, facts: "dict[str, Any]", tensor: torch.Tensor) -> Any:
        """The first element beyond a bound that the request knows for this argument."""
        for bound in self._bounds:
            named = bound["name"] in (facts["name"], facts["parameter"])
            if named and bound.get("launch", launch) == launch:
                return first_outside(tensor, int(bound["low"]), int(bound["high"]))
        return None

    def _report_argument(self, event: Event, kernel: str, phase: str, facts: "dict[str, Any]") -> None:
        if self._events_left <= 0:
            self._left_out += 1
            return
        self._events_left -= 1
        self.report.event("argument", phase=phase, **_where(event, kernel), **facts)

    def close(self) -> None:
        """Detach, and tell what went wrong here and not in the workload."""
        for library in self.libraries:
            library.unsubscribe()
            if library.failure:
                self.report.event("observer_failed", text=library.failure[-4000:])
        if self._left_out:
            self.report.event("left_out", arguments=self._left_out)
        self._saver.close(self.report)


def _where(event: Event, kernel: str) -> "dict[str, Any]":
    return {
        "launch": event.launch,
        "sequence": event.sequence,
        "run": event.run,
        "kernel": kernel,
        "runner": event.runner,
    }


def _pointer(tensor: torch.Tensor) -> int:
    has_memory = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_meta
    return tensor.data_ptr() if has_memory else 0
