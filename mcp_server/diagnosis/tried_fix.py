"""The result of `try_fix`: what a trial of a change says, for a reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from mcp_server.diagnosis.interventions.base import Effect, Trial
from mcp_server.model import Record
from mcp_server.package.signature import CompiledInput
from mcp_server.worker.protocol import ElementChange, Smallest

Outcome = Literal["fixed", "harmful", "changed", "same", "no_failure", "not_applicable"]
SHOWN = 8  # elements that are listed of each kind


class ElementShown(Record):
    """One element that came out otherwise."""

    where: str
    before: str
    after: str


class InputShown(Record):
    """What the change did to one input: how many of its elements, or how its layout."""

    input: str
    changed: int
    elements: int
    layout: str = ""
    examples: list[ElementShown] = Field(default_factory=list)


class OutputShown(Record):
    """One output with the change, compared. `not_at_fault` counts changed elements that were good before."""

    output: int
    changed: int
    elements: int
    not_at_fault: int
    rows: list[int] = Field(default_factory=list)
    layout: str = ""


class NeededShown(Record):
    """The fewest of the changed elements with which the call comes back."""

    needed: int
    changed: int
    elements: list[ElementShown]


class TriedFix(Record):
    """The result. `fixed`: the failure went with the change, came again without it, and nothing else changed.

    `harmful`: it went, and elements changed that were not at fault. `changed`: another failure is left.
    `enough` are the fewest changed elements that do the same.
    `compared_with` says what the outputs were compared with; empty when nothing came back to compare with.
    """

    outcome: Outcome
    summary: str
    change: str
    before: str
    with_change: str
    again: str
    code_before: str = ""
    code_after: str = ""
    inputs: list[InputShown] = Field(default_factory=list)
    enough: NeededShown | None = None
    compared_with: str = ""
    outputs: list[OutputShown] = Field(default_factory=list)
    side_effects: list[ElementShown] = Field(default_factory=list)
    mutated_inputs: list[int] = Field(default_factory=list)
    calls: int = 0
    failed: int = 0
    chance: float | None = None
    command: str = ""


def tried_fix(trial: Trial, known: tuple[CompiledInput, ...]) -> TriedFix:
    """The result for a package with these inputs."""
    facts = trial.after.facts
    beside = facts.beside if facts is not None else None
    names = {item.index: item.path or item.name for item in known}
    return TriedFix(
        outcome=_outcome(trial),
        summary=_summary(trial),
        change=trial.intervention.what,
        before=trial.before.describe(),
        with_change=trial.after.describe(),
        again=trial.again.describe(),
        code_before=trial.intervention.before_code,
        code_after=trial.intervention.after_code,
        inputs=[
            InputShown(
                input=names.get(change.input, str(change.input)),
                changed=change.changed,
                elements=change.elements,
                layout=change.layout,
                examples=_elements(change.first),
            )
            for change in (facts.inputs if facts is not None else ())
        ],
        enough=_enough(facts.smallest, names) if facts is not None else None,
        compared_with=_compared_with(beside.against) if beside is not None else "",
        outputs=[
            OutputShown(
                output=output.output,
                changed=output.changed,
                elements=output.elements,
                not_at_fault=output.innocent,
                rows=list(output.rows[:SHOWN]),
                layout=output.layout,
            )
            for output in (beside.outputs if beside is not None else ())
        ],
        side_effects=_elements(trial.side_effects.first),
        mutated_inputs=list(facts.mutated) if facts is not None else [],
        calls=trial.calls,
        failed=trial.failed,
        chance=trial.chance or None,
        command=trial.command,
    )


def _enough(smallest: Smallest | None, names: Mapping[int, str]) -> NeededShown | None:
    if smallest is None:
        return None
    shown = [
        ElementShown(where=f"{names.get(e.input, e.input)}{list(e.index)}", before=e.before, after=e.after)
        for e in smallest.first[:SHOWN]
    ]
    return NeededShown(needed=smallest.needed, changed=smallest.changed, elements=shown)


def _compared_with(label: str) -> str:
    if label == "smallest":
        return "the call with only the fewest elements changed that let it come back"
    return "the call as it is"


def _elements(changes: tuple[ElementChange, ...]) -> list[ElementShown]:
    return [
        ElementShown(where=str(list(change.index)), before=change.before, after=change.after)
        for change in changes[:SHOWN]
    ]


def _outcome(trial: Trial) -> Outcome:
    if trial.effect is Effect.NOT_APPLICABLE:
        return "no_failure" if trial.before.failure == trial.again.failure == "none" else "not_applicable"
    if trial.effect is Effect.GONE:
        return "harmful" if trial.side_effects else "fixed"
    return "changed" if trial.effect is Effect.CHANGED else "same"


def _summary(trial: Trial) -> str:
    """What came of it in a sentence or two."""
    before, after = trial.before.describe(), trial.after.describe()
    reason = f" {trial.reason[:1].upper()}{trial.reason[1:]}." if trial.reason else ""
    told: dict[Outcome, str] = {
        "fixed": f"The failure ({before}) went with the change and came again without it.{_rest(trial)}",
        "harmful": f"The failure ({before}) went with the change, but {_harm(trial)}.",
        "changed": f"One failure ({before}) is removed, another is left: {after}.",
        "same": f"The change does not remove the failure: {after}.",
        "no_failure": f"The call does not fail as it is, so that there is nothing to fix.{_rest(trial)} Give "
        "expect to say what the outputs are to be.",
        "not_applicable": "The trial says nothing about the change.",
    }
    return told[_outcome(trial)] + reason


def _rest(trial: Trial) -> str:
    if not trial.side_effects.known:
        return (
            " What it does to elements that were not at fault is not known: nothing steady to compare with."
        )
    return " No element changed that was not at fault." if not trial.side_effects else f" {_harm(trial)}."


def _harm(trial: Trial) -> str:
    effects = trial.side_effects
    if effects.layout:
        return f"an output has another layout ({effects.layout})"
    more = " and others" if len(effects.rows) > SHOWN else ""
    rows = f" (dimension 0: {', '.join(map(str, effects.rows[:SHOWN]))}{more})" if effects.rows else ""
    return f"{effects.elements} elements that were not at fault change, too{rows}"
