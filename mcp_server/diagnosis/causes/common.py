"""What causes share: components of inputs and launches, observations in words, tests that only confirm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcp_server.diagnosis.interventions.base import Intervention
from mcp_server.diagnosis.interventions.input import Leaf
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.logs.facts import ErrorFact
from mcp_server.model import Component, ComponentKind, Evidence, ModelLocation
from mcp_server.package.signature import CompiledInput
from mcp_server.tools.context import Event


def seen(step: str, fact: str, source: str = "") -> Evidence:
    return Evidence(step=step, fact=fact, source=source)


def reported(root: ErrorFact, source: str) -> Evidence:
    """The error text of a run, and where it stands."""
    return seen("run", root.text[:300], f"{source}:{root.line}")


def agreement(case: DiagnosisState) -> tuple[Evidence, ...]:
    """That package and exported program give the same, where that was seen."""
    return (seen("interpret", "package and exported program agree"),) if case.equals_eager else ()


def check_failed(case: DiagnosisState) -> bool:
    """Whether every call of a program came back, and what failed is a check of results, however it ended."""
    script = case.runs.get("script")
    if script is None or script.failure != "exception" or any(call.outcome != "ok" for call in case.calls):
        return False
    return script.root is None or "result_check" in script.root.family.tags


def name_of(item: CompiledInput) -> str:
    """As the user writes it, where the signature tells."""
    return item.path or item.name


def component(
    kind: ComponentKind,
    name: str,
    lines: Sequence[ModelLocation] = (),
    *,
    value: str | None = None,
    index: int | None = None,
    launch: int | None = None,
) -> Component:
    """A component at these lines of the user's; `index` is its place among the inputs."""
    return Component(
        kind=kind,
        name=name,
        model_locations=list(lines),
        value=value,
        input_index=index,
        launch_index=launch,
    )


def leaf_of(item: CompiledInput) -> Leaf:
    return Leaf(item.index, name_of(item))


def input_component(
    item: CompiledInput,
    lines: Sequence[ModelLocation],
    value: str | None = None,
    launch: int | None = None,
) -> Component:
    return component("input", name_of(item), lines, value=value, index=item.index, launch=launch)


def launch_lines(number: int | None, case: DiagnosisState, most: int = 3) -> list[ModelLocation]:
    """The model's lines behind a launch."""
    if case.view is None or number is None:
        return []
    return list(case.view.provenance(case.view.wrapper.launches[number]).locations[:most])


def depends_on(number: int | None, case: DiagnosisState, words: str) -> str:
    """`words` and the first inputs that a launch computes from; empty where there are none."""
    behind = case.view.inputs_behind(number) if case.view is not None and number is not None else []
    return f"{words} {', '.join(behind[:3])}" if behind else ""


def confirming(test: Intervention, case: DiagnosisState) -> Intervention | None:
    """A test that can only confirm: one that did not remove the failure clears nobody, and is dropped."""
    trial = case.trials.get(test.key)
    return test if trial is None or trial.proves else None


def written_inputs(case: DiagnosisState) -> set[int]:
    """Positions of the inputs that some launch or copy writes, as far as the package tells."""
    storages = written_storages(case)
    return {
        buffer.position
        for buffer in (case.view.wrapper.buffers.values() if case.view is not None else ())
        if buffer.kind == "input" and buffer.position is not None and buffer.storage in storages
    }


def written_storages(case: DiagnosisState) -> set[int]:
    """The memory that some launch or copy of a call writes."""
    if case.view is None:
        return set()
    run = case.view.wrapper.run
    names = {name for launch in run.launches for name in launch.writes} | {t.writes for t in run.transfers}
    return {run.buffers[name].storage for name in names if name in run.buffers}


def lines_of(event: Event) -> list[ModelLocation]:
    """The model's lines of an operator, innermost first."""
    stack: Sequence[dict[str, Any]] = event.get("stack", ())
    return [ModelLocation(file=f["file"], line=int(f["line"]), code=f["code"]) for f in stack[:3]]


def first_line(event: Event) -> str:
    """Of the error text in an event."""
    return str(event["text"]).splitlines()[0][:300]


def raising_lines(case: DiagnosisState) -> list[ModelLocation]:
    """The model's lines of the operator that raised in eager mode."""
    return [line for event in case.eager_events("node_raised")[:1] for line in lines_of(event)]
