"""A package that was read as PyTorch: the schemas that its operators need, and whether the program agrees."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from functools import partial
from typing import Any, Optional

import torch

from . import events
from .compare import compare_all
from .inputs import apply, flatten, read
from .launch_by_launch import LaunchByLaunch
from .loading import load
from .probes import find_libraries, mapped_files
from .protocol import SchemasRequest, VerifyRequest
from .report import Report
from .run import call
from .tensors import only_tensors

ATEN = torch.ops.aten


def operate_schemas(request: SchemasRequest, report: Report) -> None:
    """Event `schema` for each shim (`addmm_out`) whose operator this torch has."""
    for shim in request["shims"]:
        found = overload_of(shim)
        if found is not None:
            report.event(schema_of(shim, *found))


def overload_of(shim: str) -> Optional[tuple[str, str]]:
    """Operator and overload: a shim joins them by an underscore, as names of operators have, too."""
    places = [at for at, letter in enumerate(shim) if letter == "_"]
    for at in [len(shim), *reversed(places)]:
        name, overload = shim[:at], shim[at + 1 :] or "default"
        packet = getattr(ATEN, name, None) if name else None
        if packet is not None and overload in packet.overloads():
            return name, overload
    return None


def schema_of(shim: str, name: str, overload: str) -> events.Schema:
    schema = getattr(getattr(ATEN, name), overload)._schema
    arguments = [
        events.SchemaArgument(
            name=each.name,
            type=str(each.type),
            is_out=each.is_out,
            keyword=each.kwarg_only,
            default=repr(each.default_value) if each.has_default_value() else None,
        )
        for each in schema.arguments
    ]
    # `torch.mm(a, b)` makes what `aten.mm.out` writes.
    plain = overload == "out" and hasattr(torch, name) and sum(each.is_out for each in arguments) == 1
    dotted = "" if overload == "default" else f".{overload}"
    return events.Schema(shim, f"torch.{name}" if plain else f"torch.ops.aten.{name}{dotted}", arguments)


def operate_verify(request: VerifyRequest, report: Report) -> None:
    """The program first, since a package that fails may end this process; then both compared.

    Event `program_ran` with the program's error, if any; `launch_verified` for each of `launches`; `compared`
    of the package's outputs with the program's.
    """
    report.phase("running_program")
    program = Program(request)
    # Inputs are flat, in the order of the exported call: the program's parameters.
    mine = program.run(flatten(read(request["inputs"]), None))
    report.event(events.ProgramRan(program.error, len(mine)))
    before = mapped_files()
    loader = load(request, report)
    libraries = find_libraries(before) if program.model is not None else []
    names = {**program.sizes, "self": program.model}
    for library in libraries if request.get("launches") else ():
        judge = LaunchByLaunch(request["launches"], program.module, names, report)
        library.subscribe(judge.take)
    flat = apply(flatten(read(request["inputs"]), loader.get_call_spec()[0]), ())
    try:
        outputs = only_tensors(call(partial(loader.run, flat), 0, report))
    finally:
        for library in libraries:
            library.unsubscribe(report)
    if not program.error:
        on_device = [a.to(b.device) if a.shape == b.shape else a for a, b in zip(mine, outputs)]
        report.event(compare_all(outputs, [*on_device, *mine[len(on_device) :]]))
        bits = [a.shape == b.shape and bool(torch.equal(a, b)) for a, b in zip(on_device, outputs)]
        report.event(events.SameBits(bits))


class Program:
    """A `model.py`. `sizes` are the numbers that its `forward` worked out, `error` what it raised."""

    def __init__(self, request: VerifyRequest) -> None:
        spec = importlib.util.spec_from_file_location("decompiled_model", request["program"])
        assert spec is not None and spec.loader is not None
        self.module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)
        self.weights = [request["weights"]] if request.get("weights") else []
        self.model: Any = None
        self.sizes: dict[str, Any] = {}
        self.error = ""

    def run(self, flat: list[Any]) -> list[torch.Tensor]:
        """The outputs; none where it raises an error."""
        try:
            with torch.no_grad():
                self.model = self.module.Model(*self.weights)
                sys.setprofile(self._look)
                return only_tensors(self.model(*flat))
        except Exception as raised:  # of a program that fails as the package does
            place = traceback.extract_tb(raised.__traceback__)[-1]
            where = f", {os.path.basename(place.filename)}:{place.lineno}" if place else ""
            self.error = f"{type(raised).__name__}: {raised}{where}"
            return []
        finally:
            sys.setprofile(None)

    def _look(self, frame: Any, event: str, _: Any) -> None:
        """Keep the numbers of `forward` when it returns or raises."""
        if event == "return" and frame.f_locals.get("self") is self.model and self.model is not None:
            numbers = {name: each for name, each in frame.f_locals.items() if isinstance(each, (int, float))}
            self.sizes.update(numbers)
