"""Makes a call with chosen launches in eager mode: values of the exported program replace their outputs.

These are computed from what the launch itself reads, as far as that is known to hold a node; the rest is
computed from the inputs of the call.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, Callable, Iterator, Mapping, Sequence, cast

import torch

from .events import LaunchJudged
from .launch_nodes import Known, ProgramGraph, overwrite, reshaped
from .loading import constants_of, load_exported, update_program
from .probes import AFTER, Event, arguments, find_libraries, strided
from .protocol import EagerPlan, ExportedRequest
from .report import Refused, Report
from .tensors import laid_out


@contextlib.contextmanager
def changing(take: Callable[[Event], bool], report: Report) -> Iterator[None]:
    """A call in which a subscriber changes what launches wrote. Raises `Refused` if it fails."""
    libraries = find_libraries(set())
    if not libraries:
        raise Refused("the package is not instrumented")
    for library in libraries:
        library.subscribe(take)
    try:
        yield
    finally:
        for library in libraries:
            library.unsubscribe(report)
    failure = next((library.failure for library in libraries if library.failure), None)
    if failure:
        raise Refused("a launch cannot be done so: " + failure.strip().splitlines()[-1])


HIDDEN = "launch {} reads no value of the program: eager mode would replace the wrong launches {}, too"


class Replacement:
    """The program of a plan, read once; `during` makes a call with chosen launches replaced."""

    def __init__(self, file: str, report: Report) -> None:
        self.file, self.report = file, report
        with open(file, encoding="utf-8") as stream:
            plan = json.load(stream)
        for held in plan["stored"].values():
            held.update({name: LaunchJudged(**facts) for name, facts in held.items()})
        self.plan: EagerPlan = plan
        self.program = load_exported(cast(ExportedRequest, self.plan), report)
        module = self.program.module()
        for step in self.plan.get("steps", ()):
            update_program(module, step, report)
        nodes = {int(launch): names for launch, names in self.plan["nodes"].items()}
        self.graph = ProgramGraph(module, nodes)
        self.own = constants_of(module)
        self.attributes: dict[str, list[str]] = {}
        for node in module.graph.nodes:
            if node.op == "get_attr":
                self.attributes.setdefault(str(node.target), []).append(node.name)
        self.launches: Sequence[int] = ()
        self.leaves: Sequence[Any] = ()
        self.known: dict[Known, torch.Tensor] = {}
        self.replaced: set[int] = set()

    @contextlib.contextmanager
    def during(self, launches: Sequence[int], leaves: Sequence[Any]) -> Iterator[None]:
        """Raises `Refused` if a launch was not replaced: the call then says nothing."""
        self.launches, self.replaced = launches, set()
        self.leaves = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        with changing(self.take, self.report):
            yield
        missed = sorted(set(launches) - self.replaced)
        if missed:
            raise Refused("the call does not reach these launches", missed)

    def take(self, event: Event) -> bool:
        launch = int(event.launch)
        if launch not in self.launches:
            return False
        seen = {one.name.decode(): strided(one) for one in arguments(event)}
        tensors = {name: tensor for name, tensor in seen.items() if tensor is not None}
        if event.phase != AFTER:
            self.known = self._known(launch, tensors)
            return False
        wanted = {name: held for name, held in self.computed(launch).items() if name in tensors}
        places = [(one.node, one.place, one.product) for one in wanted.values()]
        hidden = self.wrong_before(launch, [place[0] for place in places])
        if hidden:
            raise Refused(HIDDEN.format(launch, hidden))
        with torch.no_grad():
            values = self.graph.values(places, self.known, self.leaves, self.report)
        for name, value in zip(wanted, values):
            overwrite(tensors[name], value)
        if wanted:
            self.replaced.add(launch)
        return False

    def wrong_before(self, launch: int, wanted: Sequence[str]) -> list[int]:
        """The wrong launches whose nodes would be evaluated too, from the inputs of the call."""
        own = self.plan["nodes"].get(str(launch), ())
        needed = {node.name for node in self.graph.needed(wanted, self.known)}.difference(own)
        return [
            int(other)
            for other, held in self.plan["stored"].items()
            if int(other) not in (launch, *self.launches)
            and any(one.status == "wrong" for one in held.values())
            and needed.intersection(self.plan["nodes"].get(other, ()))
        ]

    def computed(self, launch: int) -> dict[str, LaunchJudged]:
        """What a launch stores of nodes, without copies of inputs and constants."""
        stored = self.plan["stored"].get(str(launch), {})
        return {name: held for name, held in stored.items() if held.node in self.graph.carried}

    def _known(self, launch: int, tensors: Mapping[str, torch.Tensor]) -> dict[Known, torch.Tensor]:
        """Copies of what the launch is about to read, by node and place: tensors of launches, and constants.

        A launch may read a view; the memory is taken as the writer, or the program, lays it out.
        """
        found: dict[Known, torch.Tensor] = {}
        for name, (writer, written) in self.plan["sources"].get(str(launch), {}).items():
            held = self.plan["stored"].get(str(writer), {}).get(written)
            if name not in tensors or held is None or held.node not in self.graph.carried:
                continue
            value = laid_out(tensors[name], held.sizes, held.strides, held.offset)
            if value is not None:
                value = reshaped(value.clone(), held.shape, getattr(torch, held.dtype))
                found[held.node, held.place, held.product] = value
        for name in tensors.keys() & self.plan.get("constants", {}).keys():
            fqn = self.plan["constants"][name]
            own = self.own.get(fqn)
            if own is None or own.dtype != tensors[name].dtype:
                continue
            value = laid_out(tensors[name], own.shape, own.stride(), 0)
            if value is not None:
                value = value.clone()
                found.update({(node, 0, False): value for node in self.attributes.get(fqn, ())})
        return found
