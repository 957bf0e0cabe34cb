"""Looks up operator schemas for `decompile`, and compares a package with the program written from it.

The outputs of both are compared, and each launch with the program's expression for it, on the inputs of the
launch. `Meaning` allows for rounding: it also runs the program in float64, with and without inputs moved by
one float32 rounding.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Hashable
from functools import partial
from types import ModuleType
from typing import Any, Callable, ContextManager, Iterable, Iterator

import torch
from torch.jit._pickle import restore_type_tag
from torch.overrides import TorchFunctionMode

from . import events
from .compare import ROUNDINGS, SUMMED_EPS, Expected, measure
from .events import LaunchVerified, Verified
from .inputs import apply, flatten, load_file, read
from .launch_nodes import changing
from .loading import load
from .probes import AFTER, ROLES, Event, arguments, mapped_files, strided, subscribed
from .process import capturing
from .protocol import (
    CapturedLaunch,
    CapturesRequest,
    EditedProgram,
    LaunchAlone,
    SchemasRequest,
    VerifyRequest,
)
from .report import Refused, Report, TensorFacts
from .run import call
from .tensors import cut_out, describe, first_non_finite, furthest, only_tensors, span, unequal

Tensors = dict[tuple[str, int], torch.Tensor]
"""The tensors of a launch by variable and turn, as `Place` counts them."""
Prepared = Callable[[torch.Tensor], torch.Tensor]
Copied = Callable[[Prepared], Tensors]
"""Makes new tensors at each call, and applies the argument to each of them."""


class LaunchByLaunch:
    """Reports `launch_verified` for each launch that probes show.

    `known` has what expressions use besides tensors: sizes and `self`.
    """

    def __init__(
        self, launches: list[LaunchAlone], module: ModuleType, known: dict[str, Any], report: Report
    ) -> None:
        self.launches = {each["launch"]: each for each in launches}
        self.names = {**vars(module), **known}
        self.report = report
        self.given: dict[tuple[int, int], tuple[Copied, list[torch.Tensor]]] = {}

    def take(self, event: Event) -> bool:
        launch = self.launches.get(int(event.launch))
        if launch is None or capturing():
            return False
        key = (int(event.run), int(event.sequence))
        if event.phase != AFTER:
            wanted = {tuple(place) for place in launch["takes"].values()}
            found, _ = tensors_of(event)
            read = self.as_read(launch, {place: found[place] for place in found if place in wanted})
            self.given[key] = copied(read), random_states()
        elif key in self.given:
            given, drawing_from = self.given.pop(key)
            before = random_states()

            def made(prepared: Prepared) -> Tensors:
                set_random_states(drawing_from)
                return self.made_alone(launch, given, prepared)

            self.finished(launch["launch"], made, event)
            set_random_states(before)
        return False

    def finished(self, number: int, made: Callable[[Prepared], Tensors], event: Event) -> None:
        """Compare the tensors after a launch with `made`, the program's results for the same launch."""
        self.report.event(self._verified(number, made, event))

    def _verified(self, number: int, made: Callable[[Prepared], Tensors], event: Event) -> LaunchVerified:
        try:
            meaning = Meaning(made)
        except Exception as error:  # the program may raise anything
            return LaunchVerified("not_run", why=in_short(error), launch=number)
        after, written = tensors_of(event)
        after = self.as_read(self.launches[number], after)
        return verified(number, meaning, {place: after[place] for place in written if place in after})

    def as_read(self, launch: LaunchAlone, tensors: Tensors) -> Tensors:
        """The tensors in the layouts in which the kernel reads their memory."""
        known = {}
        for place, text in launch["assumed"]:
            with contextlib.suppress(NameError):  # the program has no such size: keep the tensor's layout
                known[tuple(place)] = eval(f"({text})", self.names)
        return {
            place: as_read(each, *known[place]) if place in known else each for place, each in tensors.items()
        }

    def made_alone(self, launch: LaunchAlone, given: Copied, prepared: Prepared) -> Tensors:
        """Evaluate the launch. Return its new tensors, and the inputs that it changed.

        In-place writes that nothing reads later are missing, because the program omits them.
        """
        ready = given(prepared)
        missing = [place[0] for place in launch["takes"].values() if tuple(place) not in ready]
        if missing:
            raise LookupError(f"the probes did not show {missing[0]}")
        names = {name: ready[place[0], place[1]] for name, place in launch["takes"].items()}
        before = {place: each._version for place, each in ready.items()}
        with torch.no_grad():
            result = eval(launch["expression"], {**self.names, **names})
        changed = {place: each for place, each in ready.items() if each._version != before[place]}
        if any(len(places) > 1 for places in overlapping(ready)):  # such tensors share a version count
            same = given(prepared)
            changed = {place: each for place, each in changed.items() if unequal(each, same[place]).any()}
        results = result if isinstance(result, (tuple, list)) else [result]
        made = {(name, 0): each for name, each in zip(launch["gives"], results) if each is not None}
        return {**changed, **made}


def copied(tensors: Tensors) -> Copied:
    """Copy tensors. Return a function that makes new ones, which overlap in memory like the originals."""
    pieces: list[tuple[torch.Tensor, dict[tuple[str, int], int]]] = []
    for places in overlapping(tensors):
        low = min(tensors[place].storage_offset() for place in places)
        high = max(tensors[place].storage_offset() + extent(tensors[place]) for place in places)
        memory = cut_out(tensors[places[0]].as_strided((high - low,), (1,), low))
        pieces.append((memory, {place: tensors[place].storage_offset() - low for place in places}))
    layouts = {place: (each.shape, each.stride()) for place, each in tensors.items()}

    def again(prepared: Prepared) -> Tensors:
        made = [(prepared(memory), starts) for memory, starts in pieces]
        return {
            place: memory.as_strided(*layouts[place], memory.storage_offset() + start)
            for memory, starts in made
            for place, start in starts.items()
        }

    return again


def overlapping(tensors: Tensors) -> list[list[tuple[str, int]]]:
    """Group the places of tensors of one dtype whose ranges of memory overlap."""

    def start(place: tuple[str, int]) -> tuple[int, str, int]:
        tensor = tensors[place]
        return tensor.untyped_storage().data_ptr(), str(tensor.dtype), tensor.storage_offset()

    groups: list[list[tuple[str, int]]] = []
    end = (0, "", 0)
    for place in sorted(tensors, key=start):
        here = start(place)
        stop = (*here[:2], here[2] + extent(tensors[place]))
        if groups and here < end and here[:2] == end[:2]:
            groups[-1].append(place)
            end = max(end, stop)
        else:
            groups.append([place])
            end = stop
    return groups


def extent(tensor: torch.Tensor) -> int:
    return span(tensor.shape, tensor.stride())


def as_read(tensor: torch.Tensor, sizes: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor's memory from its first element on with the given sizes, strides and dtype."""
    if tensor.dtype is dtype and tensor.stride() == strides and tensor.shape == sizes:
        return tensor
    size = tensor.element_size()
    count = tensor.untyped_storage().nbytes() // size - tensor.storage_offset()
    return tensor.as_strided((count,), (1,)).view(dtype).as_strided(sizes, strides)


def in_short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def verified(number: int, meaning: Meaning, after: Tensors) -> LaunchVerified:
    """Compare the tensors after a launch with the program's. Return the worst comparison."""
    found = [
        (meaning.agreement(place, each), place[0]) for place, each in after.items() if place in meaning.own
    ]
    if not found:
        return LaunchVerified("not_run", why="nothing that it wrote is in the program", launch=number)
    worst, name = max(found, key=lambda each: rank(each[0]))
    return LaunchVerified(**vars(worst), launch=number, tensor=name)


class DoneByProgram(LaunchByLaunch):
    """Replaces the results of launches with the program's. `done` has the replaced launches."""

    def __init__(
        self, launches: list[LaunchAlone], module: ModuleType, known: dict[str, Any], report: Report
    ) -> None:
        super().__init__(launches, module, known, report)
        self.done: set[int] = set()

    def finished(self, number: int, made: Callable[[Prepared], Tensors], event: Event) -> None:
        found, (after, written) = made(cut_out), tensors_of(event)
        for place in written:
            if place in found and place in after:
                after[place].copy_(found[place].reshape(after[place].shape))
                self.done.add(number)


RANKS = ("equal", "rounding", "different")


def rank(found: Verified) -> tuple[int, float]:
    return RANKS.index(found.agreement), found.largest_difference or 0.0


MOVES, MORE = 2, 18  # runs with inputs moved by a rounding: at first, and in all if a difference remains
FAR = 36  # runs for whole numbers and truth values: a comparison may flip after several roundings


class Meaning:
    """The results of a computation: `own` as written, and in float64 without and with moved inputs."""

    def __init__(self, run: Callable[[Prepared], Any]) -> None:
        self.run = run
        self.own: dict[Any, torch.Tensor] = run(cut_out)
        self._wide: list[dict[Any, torch.Tensor]] = []

    def agreement(self, place: Hashable, got: torch.Tensor) -> Verified:
        """Compare a tensor of the package with this computation, up to rounding (see `compare.py`)."""
        own = self.own[place].to(got.device)
        if own.numel() != got.numel():
            return Verified("different", why=f"shape {list(own.shape)}, not {list(got.shape)}")
        own = own.reshape(got.shape)  # the program may give the same elements other dimensions
        if own.dtype != got.dtype:
            return Verified("different", why=f"{own.dtype}, not {got.dtype}")
        if not bool(unequal(got, own).any()):
            return Verified("equal", 0.0)
        tries = (MOVES, MORE) if own.is_floating_point() or own.is_complex() else (MOVES, MORE, FAR)
        runs = (self._runs(moves) for moves in tries)
        wanted = (Expected("", own, tuple(each[place] for each in wide)) for wide in runs)
        within = any(measure(got, each).within for each in wanted)
        return Verified("rounding" if within else "different", furthest(got, own))

    def _runs(self, moves: int) -> list[dict[Any, torch.Tensor]]:
        """Return the float64 runs. If the first fails, because an operator lacks float64, return `own`."""
        try:
            while len(self._wide) <= moves:
                with InFloat64():
                    self._wide.append(self.run(moved_by(len(self._wide))))
        except Exception:  # an operator may raise anything
            self._wide = self._wide or [self.own]
        return self._wide[: moves + 1]


def moved_by(number: int) -> Prepared:
    """A conversion to float64. Unless `number` is 0, it moves each element by a float32 rounding.

    Above `MORE`, it moves them by `ROUNDINGS`. Each tensor moves differently: if all moved alike, differences
    and comparisons of them would not change.
    """
    draws: dict[torch.device, torch.Generator] = {}  # leaves the global generators alone

    def prepared(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return cut_out(tensor)
        length = span(tensor.shape, tensor.stride())
        wide = tensor.as_strided((length,), (1,)).double()
        if number:
            if tensor.device not in draws:
                draws[tensor.device] = torch.Generator(tensor.device).manual_seed(number)
            up = torch.randint(0, 2, wide.shape, generator=draws[tensor.device], device=tensor.device)
            wide *= 1 + SUMMED_EPS / 2 * (ROUNDINGS if number > MORE else 1.0) * (2.0 * up - 1)
        return wide.as_strided(tensor.shape, tensor.stride())

    return prepared


class InFloat64(TorchFunctionMode):
    """Replaces narrower floating-point dtypes of casts and new tensors with float64."""

    NARROW = (torch.float32, torch.float16, torch.bfloat16)
    CASTS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)

    def __enter__(self) -> InFloat64:
        self.default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        torch.set_default_dtype(self.default)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wide(value: Any) -> Any:
            # `view` does not convert: it reads bits, such as weights in a file, as this dtype.
            return torch.float64 if value in self.NARROW and function is not torch.Tensor.view else value

        args = [wide(each) if isinstance(each, torch.dtype) else each for each in args]
        given = {name: wide(each) if name == "dtype" else each for name, each in (kwargs or {}).items()}
        return (torch.Tensor.double if function in self.CASTS else function)(*args, **given)


def random_states() -> list[torch.Tensor]:
    """The states of the random generators of the CPU and of each GPU in use."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]


def set_random_states(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    if states[1:]:
        torch.cuda.set_rng_state_all(states[1:])


def tensors_of(event: Event) -> tuple[Tensors, list[tuple[str, int]]]:
    """The tensors of a launch, and the places of those that it writes."""
    found: Tensors = {}
    written = []
    turns: dict[str, int] = {}
    for argument in arguments(event):
        if argument.kind != 1:
            continue
        name = argument.name.decode()
        place = (name, turns.get(name, 0))
        turns[name] = place[1] + 1
        if ROLES.get(argument.role) != "read":
            written.append(place)
        tensor = strided(argument)
        if tensor is not None:
            found[place] = tensor
    return found, written


ATEN = torch.ops.aten
SEED = 0  # makes program and package draw the same random numbers


def operate_schemas(request: SchemasRequest, report: Report) -> None:
    """Event `schema` for each shim (`addmm_out`) whose operator this torch has."""
    for shim in request["shims"]:
        found = overload_of(shim)
        if found is not None:
            report.event(schema_of(shim, *found))


def overload_of(shim: str) -> tuple[str, str] | None:
    """Split a shim into operator and overload at one of its underscores. None if there is none."""
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
    # `torch.mm(a, b)` is simpler than `aten.mm.out`, with the same meaning.
    plain = overload == "out" and hasattr(torch, name) and sum(each.is_out for each in arguments) == 1
    dotted = "" if overload == "default" else f".{overload}"
    return events.Schema(shim, f"torch.{name}" if plain else f"torch.ops.aten.{name}{dotted}", arguments)


def operate_verify(request: VerifyRequest, report: Report) -> None:
    """Run the program, then the package, which may end this process, and compare both.

    Events: `program_ran`; `launch_verified` for each of `launches`; `output_verified` for each output of the
    package, if the program returned as many.
    """
    report.phase("running_program")
    program = Program(request)
    # The program takes the tensors in the order of the exported call.
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
            report.event(events.OutputVerified(**vars(found), output=place, shape=list(output.shape)))


@contextlib.contextmanager
def launches_by(edit: EditedProgram, flat: list[Any], report: Report) -> Iterator[None]:
    """During the body, replace the results of `launches` with the program's. May raise `Refused`."""
    program = Program(edit)
    program.run(flat)  # to learn the sizes of the call
    names = {**program.sizes, "self": program.model}
    maker = DoneByProgram(edit["launches"], program.module, names, report)
    with changing(maker.take, report):
        yield
    missed = sorted(maker.launches.keys() - maker.done)
    if missed:
        raise Refused("the call does not reach these launches", missed)


def operate_judge_captures(request: CapturesRequest, report: Report) -> None:
    """Run captured launches on the arguments in their files. Report `capture_judged` for each."""
    program = Program(request)
    known: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # the weights may be missing, but few launches need them
        known["self"] = program.module.Model(*program.weights)
    for each in request["captures"]:
        try:
            found = judge_capture(each, LaunchByLaunch([], program.module, known, report))
        except Exception as error:  # the file may be of any kind, and the program may raise anything
            found = events.CaptureJudged(why=in_short(error))
        found.launch, found.file = each["launch"]["launch"], each["file"]
        report.event(found)


def captured_arguments(path: str) -> tuple[list[torch.Tensor | None], list[Any]]:
    """The tensors (None: undefined) and numbers of a kernel capture. May raise `Refused`."""
    loaded = load_file(path, "kernel capture", "cpu", [restore_type_tag])
    arguments = loaded.get("args") if isinstance(loaded, dict) else None
    if not isinstance(arguments, list):
        raise Refused("this is not a kernel capture", path, "a dict with kernel, tag and args")
    numbers = [each for each in arguments if isinstance(each, (int, float))]
    return [each for each in arguments if each is None or isinstance(each, torch.Tensor)], numbers


def judge_capture(capture: CapturedLaunch, judge: LaunchByLaunch) -> events.CaptureJudged:
    """Run the source of a launch on its captured tensors, and compare the results with later captures."""
    launch, (tensors, numbers) = capture["launch"], captured_arguments(capture["file"])
    if len(tensors) != len(capture["tensors"]):
        raise Refused(
            "the launch takes another number of tensors", len(tensors), str(len(capture["tensors"]))
        )
    given = defined(zip(map(tuple, capture["tensors"]), tensors))
    judge.names.update(zip(capture["numbers"], numbers))
    for symbol, (at, dim) in capture["sizes"].items():
        tensor = tensors[at]
        judge.names[symbol] = tensor.shape[dim] if tensor is not None else None
    takes = [(name, turn) for name, turn in launch["takes"].values() if (name, turn) in given]
    values = [in_words(name, describe(given[name, turn])) for name, turn in takes]
    try:
        meaning = Meaning(partial(judge.made_alone, launch, copied(given)))
    except IndexError as error:
        return events.CaptureJudged(why=in_short(error), fault="out_of_bounds", values=values)
    after = defined(
        ((name, turn), captured_arguments(file)[0][at]) for (name, turn), file, at in capture["later"]
    )
    found = events.CaptureJudged(why="no later capture has what it wrote")
    if after:
        found = events.CaptureJudged(**vars(verified(launch["launch"], meaning, after)))
    finite = not any(first_non_finite(given[place]) for place in takes)
    if finite and any(map(first_non_finite, meaning.own.values())):
        found.fault = "non_finite"
    made = [in_words(f"{name} becomes", describe(each)) for (name, _), each in meaning.own.items()]
    found.values = [*values, *made]
    return found


def defined(found: Iterable[tuple[Any, torch.Tensor | None]]) -> Tensors:
    return {place: each for place, each in found if each is not None}


def in_words(name: str, facts: TensorFacts) -> str:
    values = f", {facts.min:.6g} to {facts.max:.6g}" if facts.min is not None else ""
    return f"{name} {facts.dtype}{facts.shape}{values}{f', {facts.nan} NaN' if facts.nan else ''}"


class Program:
    """A `model.py`. `sizes` are the numbers that its `forward` computes, `error` is what it raised."""

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

    def run(self, flat: list[Any]) -> Meaning | None:
        """Run the program. Return its outputs, by number. None if it raises (`error`)."""
        try:
            return Meaning(lambda prepared: self._outputs(flat, prepared))
        except Exception as raised:  # the program may fail like the package
            place = traceback.extract_tb(raised.__traceback__)[-1]
            where = f", {os.path.basename(place.filename)}:{place.lineno}" if place else ""
            self.error = f"{type(raised).__name__}: {raised}{where}"
            return None

    def _outputs(self, flat: list[Any], prepared: Prepared) -> dict[int, torch.Tensor]:
        """The outputs of a new model, because a call may change the buffers of a model."""
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
        """Take the numbers from the local variables of `forward`, when it returns or raises."""
        if event == "return" and frame.f_locals.get("self") is self.model:
            numbers = {name: each for name, each in frame.f_locals.items() if isinstance(each, (int, float))}
            self.sizes.update(numbers)
