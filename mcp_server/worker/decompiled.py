"""A package that was read as PyTorch: the schemas that its operators need, and whether the program agrees."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import traceback
from functools import partial
from typing import Any, ContextManager, Iterator, Optional

import torch

from . import events
from .inputs import apply, flatten, read
from .launch_by_launch import DoneByProgram, LaunchByLaunch, Meaning, Prepared
from .launch_nodes import changing
from .loading import load
from .probes import mapped_files, subscribed
from .protocol import EditedProgram, SchemasRequest, VerifyRequest
from .report import Refused, Report
from .run import call
from .tensors import only_tensors

ATEN = torch.ops.aten
SEED = 0  # for random numbers: program and package draw the same


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

    Event `program_ran` with the program's error, if any; `launch_verified` for each of `launches`;
    `output_verified` for each output of the package, where the program came back with as many.
    """
    report.phase("running_program")
    program = Program(request)
    # Inputs are flat, in the order of the exported call: the program's parameters.
    meaning = program.run(flatten(read(request["inputs"]), None))
    mine = len(meaning.own) if meaning is not None else 0
    report.event(events.ProgramRan(program.error, mine))
    if meaning is not None and request.get("save"):
        torch.save([each.cpu() for each in meaning.own.values()], request["save"])
    before = mapped_files()
    loader = load(request, report)
    watched: ContextManager[object] = contextlib.nullcontext()
    if request.get("launches") and program.model is not None:
        names = {**program.sizes, "self": program.model}
        judge = LaunchByLaunch(request["launches"], program.module, names, report)
        watched = subscribed(judge.take, report, before)
    flat = apply(flatten(read(request["inputs"]), loader.get_call_spec()[0]), ())
    torch.manual_seed(SEED)
    with watched:
        outputs = only_tensors(call(partial(loader.run, flat), 0, report))
    if meaning is not None and len(outputs) == mine:
        for place, output in enumerate(outputs):
            found = meaning.agreement(place, output)
            report.event(
                events.OutputVerified(found.rank, found.largest, found.why, place, list(output.shape))
            )


@contextlib.contextmanager
def launches_by(edit: EditedProgram, flat: list[Any], report: Report) -> Iterator[None]:
    """A call of a package with probes whose `launches` are made by a program. Raises `Refused`."""
    program = Program(edit)
    program.run(flat)  # for the sizes of the call
    names = {**program.sizes, "self": program.model}
    maker = DoneByProgram(edit["launches"], program.module, names, report)
    with changing(maker.take, report):
        yield
    missed = sorted(maker.launches.keys() - maker.done)
    if missed:
        raise Refused("the call does not reach these launches", missed)


class Program:
    """A `model.py`. `sizes` are the numbers that its `forward` worked out, `error` what it raised."""

    def __init__(self, request: EditedProgram) -> None:
        spec = importlib.util.spec_from_file_location("decompiled_model", request["program"])
        assert spec is not None and spec.loader is not None
        self.module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)
        self.weights = [request["weights"]] if request.get("weights") else []
        self.model: Any = None
        self.sizes: dict[str, Any] = {}
        self.error = ""

    def call(self, flat: list[Any]) -> list[torch.Tensor]:
        with torch.no_grad():
            return only_tensors(self.module.Model(*self.weights)(*flat))

    def run(self, flat: list[Any]) -> Optional[Meaning]:
        """What its outputs mean, by their number; None where it raises an error."""
        try:
            return Meaning(lambda prepared: self._outputs(flat, prepared))
        except Exception as raised:  # of a program that fails as the package does
            place = traceback.extract_tb(raised.__traceback__)[-1]
            where = f", {os.path.basename(place.filename)}:{place.lineno}" if place else ""
            self.error = f"{type(raised).__name__}: {raised}{where}"
            return None

    def _outputs(self, flat: list[Any], prepared: Prepared) -> dict[int, torch.Tensor]:
        """Of a new model, since a call may change its buffers."""
        first = self.model is None
        torch.manual_seed(SEED)
        with torch.no_grad():
            model = self.module.Model(*self.weights)
            for name, each in [] if first else list(vars(model).items()):
                if isinstance(each, torch.Tensor):
                    setattr(model, name, prepared(each))
            given = [prepared(each) if isinstance(each, torch.Tensor) else each for each in flat]
            if not first:
                return dict(enumerate(only_tensors(model(*given))))
            self.model = model
            sys.setprofile(self._look)
            try:
                return dict(enumerate(only_tensors(model(*given))))
            finally:
                sys.setprofile(None)

    def _look(self, frame: Any, event: str, _: Any) -> None:
        """Keep the numbers of `forward` when it returns or raises."""
        if event == "return" and frame.f_locals.get("self") is self.model:
            numbers = {name: each for name, each in frame.f_locals.items() if isinstance(each, (int, float))}
            self.sizes.update(numbers)
