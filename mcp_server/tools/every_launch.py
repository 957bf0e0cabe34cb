"""`every_launch`: judges every launch of a call alone, on correct inputs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pydantic import Field
from pydantic_core import to_jsonable_python

from mcp_server.model import Artifact, ModelLocation, Record
from mcp_server.package.dataflow import Step
from mcp_server.package.exported import read_provenance
from mcp_server.package.launches import Launch
from mcp_server.package.view import PackageView
from mcp_server.plurals import counted, is_
from mcp_server.runtime.context import Context, WorkerRun
from mcp_server.worker.events import Closeness, ConstantDiffers, JudgedOutputs, LaunchJudged
from mcp_server.worker.protocol import LaunchFlow

RETURNED, ELSEWHERE = -1, -2  # special readers of a tensor: the caller; a step that is not a launch
SHOWN = 24
NAMED = 3  # launches named in a summary
NO_PROBES = "No launch was judged alone: the package cannot be rebuilt with probes"
NO_NODES = (
    "No launch was judged alone: the package does not say which nodes its launches come from (compile "
    "with INDUCTOR_PROVENANCE=1, torch >= 2.9)"
)


class WrongLaunch(Record):
    """A launch that stored wrong values from correct inputs: `difference` is about `argument`.

    `suspects` are earlier unjudged launches whose values it reads, and which may be at fault instead.
    `constant`: a constant that it reads and that differs from the program's. `tf32`: TF32 explains the
    difference.
    """

    launch: int
    kernel: str
    argument: str
    difference: Closeness
    suspects: list[int] = Field(default_factory=list)
    constant: str = ""
    tf32: bool = False
    locations: list[ModelLocation] = Field(default_factory=list)
    summary: str


class LeftLaunch(Record):
    """A launch that could not be read or judged, and the reason."""

    launch: int
    kernel: str
    why: str


class EveryLaunch(Record):
    """Each launch judged alone: after every launch, its results were replaced by those of the program.

    `outputs_right`: whether the outputs are correct with the wrong launches corrected. `plan`: how to repeat
    the call with some launches in eager mode; `eager_outputs`: what eager mode returns.
    """

    summary: str
    judged: int = 0
    wrong: list[WrongLaunch] = Field(default_factory=list)
    unjudged: list[LeftLaunch] = Field(default_factory=list)
    unjudged_count: int = 0
    outputs_right: bool | None = None
    plan: Artifact | None = None
    eager_outputs: Artifact | None = None


@dataclass(frozen=True)
class LaunchFlows:
    """The readers of each launch's results, for launches that run once: outside branches and loops."""

    model: PackageView

    @cached_property
    def nodes(self) -> dict[int, list[str]]:
        """The program's nodes that each launch carries out, before Inductor's own passes.

        Empty without INDUCTOR_PROVENANCE.
        """
        information = self.model.package.kernel_information
        found = {
            launch.index: list(read_provenance(launch, information).pre_grad)
            for launch in self.model.wrapper.launches
        }
        return {launch: names for launch, names in found.items() if names}

    @cached_property
    def straight(self) -> dict[int, Step]:
        return {n: step for n, step in self.model.flow.launch_steps if not step.path}

    @cached_property
    def edges(self) -> list[tuple[Step, Step, str]]:
        return list(self.model.flow.edges())

    @cached_property
    def of(self) -> dict[int, LaunchFlow]:
        """The flow of each launch outside branches and loops, by its number."""
        found = {n: self._flow(step) for n, step in self.straight.items()}
        several: set[tuple[int, str]] = set()  # (launch, name) of values that several launches wrote
        for writer, step, name in self.edges:
            reader, number, storage = step.launch, writer.launch, self._storage(name)
            if reader is None or reader not in found:
                continue
            # The name under which the writer knows the tensor.
            names = [use.name for use in writer.writes if use.storage == storage]
            sources = found[reader]["sources"]
            if number is None or number not in found or len(names) != 1 or name in sources:
                several.add((reader, name))
            else:
                sources[name] = (number, names[0])
        for reader, name in several:
            found[reader]["sources"].pop(name, None)
        return found

    def _flow(self, step: Step) -> LaunchFlow:
        """The readers of a launch's results. Those in `maybe` may only overwrite the memory."""
        readers: dict[int, set[int]] = {}
        maybe: dict[int, set[int]] = {}
        own = {use.name for use in step.writes}
        for reader, name in self._read_from.get(step.order, ()):
            pure = name in own or any(use.pure for use in reader.reads if use.name == name)
            number = ELSEWHERE if reader.launch is None else reader.launch
            (readers if pure else maybe).setdefault(self._storage(name), set()).add(number)
        for name in self.model.flow.body.outputs.values():
            if any(writer is step for writer in self.model.flow.last_writers(name)):
                readers.setdefault(self._storage(name), set()).add(RETURNED)
        by_name = [
            {use.name: sorted(group.get(use.storage, ())) for use in step.writes}
            for group in (readers, maybe)
        ]
        library = not (isinstance(step.node, Launch) and step.node.kind in ("cpp", "triton"))
        return LaunchFlow(readers=by_name[0], maybe=by_name[1], library=library, sources={})

    @cached_property
    def _read_from(self) -> dict[int, list[tuple[Step, str]]]:
        """The readers of what a step writes, with the name they use, by number of that step."""
        found: dict[int, list[tuple[Step, str]]] = {}
        for writer, reader, name in self.edges:
            found.setdefault(writer.order, []).append((reader, name))
        return found

    def _storage(self, name: str) -> int:
        return self.model.flow.body.buffers[name].storage

    def behind(self, launch: int) -> set[int]:
        steps = (writer for writer, reader, _ in self.edges if reader.launch == launch)
        return {step.launch for step in steps if step.launch is not None}


@dataclass(frozen=True)
class Judgement:
    """The launches of one call, judged from the worker's findings about the tensors that they stored."""

    flows: LaunchFlows
    constants: Sequence[ConstantDiffers]
    tensors: Sequence[LaunchJudged]

    @property
    def model(self) -> PackageView:
        return self.flows.model

    @cached_property
    def by_launch(self) -> dict[int, list[LaunchJudged]]:
        found: dict[int, list[LaunchJudged]] = {}
        for each in self.tensors:
            found.setdefault(each.launch, []).append(each)
        return found

    @cached_property
    def unjudged(self) -> list[LeftLaunch]:
        """Launches with an unjudged result, unless another of their results is wrong."""
        found = []
        for launch in self.model.wrapper.launches:
            tensors = self.by_launch.get(launch.index, [])
            whys = [one.why for one in tensors if one.status == "unjudged"]
            if launch.index not in self.flows.straight:
                whys = ["it is in a branch or a loop"]
            elif not tensors:
                whys = ["nothing that it wrote was seen"]
            if whys and not any(one.status == "wrong" for one in tensors):
                found.append(LeftLaunch(launch=launch.index, kernel=launch.kernel, why=whys[0]))
        return found

    @cached_property
    def wrong(self) -> list[WrongLaunch]:
        """The wrong launches, each with the tensor that has the most elements beyond its tolerance."""
        found = []
        for tensors in self.by_launch.values():
            wrong = [one for one in tensors if one.status == "wrong"]
            if wrong:
                beyond = [one.compared.beyond if one.compared else 0 for one in wrong]
                found.append(self._wrong(wrong[beyond.index(max(beyond))]))
        return found

    def _wrong(self, one: LaunchJudged) -> WrongLaunch:
        number, kernel = one.launch, one.kernel
        difference = one.compared or Closeness()
        suspects = self._suspects(number)
        known = self.model.launch(number)
        targets = {argument.target for argument in known.tensors} if known is not None else set()
        read = {constant.fqn for constant in self.model.package.constants if constant.name in targets}
        constant = next((other.name for other in self.constants if other.name in read), "")
        values = f"is {difference.example}" if difference.values else "differs"
        summary = f"launch {number}, {kernel}: {one.node} {values}, compared with eager mode (in {one.name})"
        if suspects:
            summary += f"; or launch {', '.join(map(str, suspects))}, which it reads and which was not judged"
        if one.tf32:
            summary += "; as much as TF32 products explain"
        if constant:
            summary += f"; its constant {constant} is not the program's"
        return WrongLaunch(
            launch=number,
            kernel=kernel,
            argument=one.name,
            difference=difference,
            suspects=suspects,
            constant=constant,
            tf32=one.tf32,
            locations=self.model.locations(number),
            summary=summary,
        )

    def _suspects(self, launch: int) -> list[int]:
        """Unjudged launches whose values reach this one without a judged launch in between."""
        open_ones = {each.launch for each in self.unjudged}
        found: set[int] = set()
        left = [launch]
        while left:
            new = self.flows.behind(left.pop()) & open_ones - found
            found |= new
            left += new
        return sorted(found)

    def summary(self, outputs_right: bool) -> str:
        """Count wrong, right and unjudged launches, and name the wrong ones."""
        total, wrong = len(self.model.wrapper.launches), len(self.wrong)
        if len(self.unjudged) == total:
            return f"No launch could be judged alone: {self.unjudged[0].why}"
        text = f"{wrong} of {counted(total, 'launch')} {is_(wrong)} wrong on correct inputs"
        if not wrong:
            text = (
                f"None of {counted(total - len(self.unjudged), 'judged launch')} is wrong on correct inputs"
            )
        right = total - wrong - len(self.unjudged)
        text += f" ({right} right, {len(self.unjudged)} not judged)"
        text += "".join(f"; {each.summary}" for each in self.wrong[:NAMED])
        if not outputs_right:
            text += "; but the outputs differ, so a launch that was not judged is wrong, too"
        return text


def every_launch(
    context: Context,
    done: WorkerRun,
    flows: LaunchFlows,
    constants: Sequence[ConstantDiffers],
    request: Mapping[str, object],
) -> EveryLaunch:
    """The judgement of each launch; `request` asked the worker for the run with correct inputs."""
    if not request["probes"]:
        return EveryLaunch(summary=NO_PROBES)
    if not flows.nodes:
        return EveryLaunch(summary=NO_NODES)
    ended = done.last(JudgedOutputs)
    if ended is None:
        return EveryLaunch(summary="No launch was judged alone: the call did not return")
    judgement = Judgement(flows, constants, done.all(LaunchJudged))
    right, unjudged = ended.right, judgement.unjudged
    # An `EagerPlan` of worker/protocol.py.
    stored: dict[str, dict[str, LaunchJudged]] = {}
    for one in judgement.tensors:
        if one.status != "unjudged":
            stored.setdefault(str(one.launch), {})[one.name] = replace(one, compared=None)
    file = done.directory / "plan.json"
    file.write_text(json.dumps({**request, "stored": stored}, default=to_jsonable_python))
    return EveryLaunch(
        summary=judgement.summary(right),
        judged=len(flows.model.wrapper.launches) - len(unjudged),
        wrong=judgement.wrong,
        unjudged=unjudged[:SHOWN],
        unjudged_count=len(unjudged),
        outputs_right=right,
        plan=context.artifact(file, "how launches can be done in eager mode"),
        eager_outputs=context.artifact(Path(str(request["eager_outputs"])), "the outputs of eager mode"),
    )
