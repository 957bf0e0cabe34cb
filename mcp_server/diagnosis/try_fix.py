"""`try_fix`: makes a failing call unchanged, with a change, and unchanged again, and reports the result."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import anyio.to_thread
from pydantic import Field

from mcp_server.diagnosis.interventions.base import (
    UNSEEN,
    Effect,
    Intervention,
    Kind,
    Options,
    SideEffects,
    Trial,
    known_only,
    update_from,
)
from mcp_server.diagnosis.interventions.input import Leaf, changed, read_change, together
from mcp_server.diagnosis.interventions.kernel import edit_kernel, launch_in_eager, replace_launch
from mcp_server.diagnosis.interventions.run import TriedCall, call_of_package, try_intervention
from mcp_server.diagnosis.interventions.source import edited
from mcp_server.diagnosis.next_steps import package_words, workload_arguments
from mcp_server.diagnosis.program_seen import Symptom
from mcp_server.errors import ProblemError, argument
from mcp_server.model import PackageWorkload, Record
from mcp_server.operations.arguments import FORMS, TryArguments, option_words
from mcp_server.package.signature import CompiledInput
from mcp_server.package.view import view_package
from mcp_server.plurals import capitalized, counted, ended_again, listed
from mcp_server.runtime.context import Context
from mcp_server.worker.events import ElementChange, NeededElement, OutputChange

Outcome = Literal["fixed", "passes", "harmful", "changed", "same", "no_failure", "not_applicable"]
SHOWN = 8  # elements of each kind that are listed


class ElementShown(Record):
    """One element that differed."""

    where: str
    before: str
    after: str


class InputShown(Record):
    """What the change did to one input: the number of changed elements, or the change of layout."""

    input: str
    changed: int
    elements: int
    layout: str = ""
    examples: list[ElementShown] = Field(default_factory=list)


class NeededShown(Record):
    """The fewest of the changed elements that make the call return."""

    needed: int
    changed: int
    elements: list[ElementShown]


class TriedFix(Record):
    """The result. `fixed`: the failure disappeared with the change and returned without it; no side effect.

    `passes`: the failure disappeared; side effects are unknown. `harmful`: output elements changed that were
    not at fault. `changed`: another failure remains. `enough` has the fewest changed elements with which the
    call returns, `enough_constants` the fewest constants; `unknown_constants` were left out, since the
    package does not have them. `compared_with` says what the outputs were compared
    with; empty if there were none.
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
    enough_constants: list[str] = Field(default_factory=list)
    unknown_constants: list[str] = Field(default_factory=list)
    compared_with: str = ""
    outputs: list[OutputChange] = Field(default_factory=list)
    side_effects: list[ElementShown] = Field(default_factory=list)
    mutated_inputs: list[int] = Field(default_factory=list)
    calls: int = 0
    failed: int = 0
    chance: float | None = None
    command: str = ""


async def try_fix(context: Context, workload: PackageWorkload, asked: TryArguments) -> TriedFix:
    """Make the call unchanged, with the change, and unchanged. Files that `asked` names have absolute paths.

    Raise `ProblemError` if there are no inputs or no change, if the change cannot be made, or if the
    expectation does not fit.
    """
    view = await anyio.to_thread.run_sync(view_package, workload.package, workload.model_name)
    package = view.package
    expected = Path(asked.expect) if asked.expect else None
    symptom = Symptom(expect=expected, rtol=asked.rtol or None, atol=asked.atol or None)
    judged = {name: value for name in ("expect", "rtol", "atol") if (value := getattr(asked, name))}
    words = package_words({**workload_arguments(workload), **judged})
    call = replace(call_of_package(workload, symptom), spelling=words)
    if asked.edit:
        if asked.changes or asked.kernel or asked.constants or asked.set_env or asked.exported:
            raise ProblemError("one thing is changed at a time", allowed="`edit`, with `launch` or alone")
        call, intervention = await edited(context, call, workload, Path(asked.edit), asked.launch)
    elif asked.exported:
        if asked.how != "eager" or asked.launch < 0 or asked.changes or asked.kernel or asked.set_env:
            allowed = "`launch`, `how` eager and `exported`, and no other change"
            raise ProblemError("an exported program is for a launch in eager mode", allowed=allowed)
        call, intervention = await launch_in_eager(
            context, call, workload, Path(asked.exported), asked.launch
        )
    else:
        intervention = await _intervention(context, call, asked, package.inputs)
    if intervention.unavailable:
        raise ProblemError(intervention.unavailable, value=" ".join(intervention.spelling))
    intervention = replace(intervention, smallest=bool(intervention.changes or asked.constants))
    trial = await try_intervention(context, call, intervention)
    if trial.after.ended == "refused":
        raise ProblemError(
            f"the change cannot be made: {trial.after.text}", allowed=FORMS if asked.changes else ""
        )
    return _tried_fix(trial, package.inputs)


async def _intervention(
    context: Context, call: TriedCall, asked: TryArguments, known: tuple[CompiledInput, ...]
) -> Intervention:
    """Combine all requested changes in one intervention."""

    def place_of(name: str) -> int:
        """The position of the input with this number, path (`args[1]`) or name. Raises `ProblemError`."""
        for item in known:
            if name in (str(item.index), item.path, item.name, f"inputs[{item.index}]"):
                return item.index
        allowed = ", ".join(item.path or str(item.index) for item in known[:40])
        raise ProblemError("no such input", value=name, allowed=allowed)

    paths = {item.index: item.path for item in known}
    parts = []
    for change in (read_change(text, place_of) for text in asked.changes):
        at = change.input or 0
        parts.append(changed(Leaf(at, paths.get(at) or f"inputs[{at}]"), change))
    if bool(asked.kernel) != bool(asked.replace) or len(asked.replace) == 1:
        raise ProblemError(
            "to edit a kernel, give its name and a replacement",
            value=asked.kernel or asked.replace,
            allowed="`kernel` NAME, `replace` OLD NEW",
        )
    if asked.kernel and asked.launch >= 0:
        raise ProblemError("one kernel is changed at a time", allowed="either `kernel` or `launch`")
    if asked.kernel:
        parts.append(await edit_kernel(context, call, asked.kernel, *asked.replace))
    if asked.launch >= 0:
        parts.append(await replace_launch(context, call, asked.launch, asked.how))
    if asked.constants:
        parts.append(with_constants(Path(asked.constants)))
    if asked.set_env:
        parts.append(with_variables(asked.set_env))
    if not parts:
        raise ProblemError(
            "nothing to change",
            allowed="`changes`, `kernel` with `replace`, `launch` with `how`, `edit`, `constants`, `set_env`",
        )
    if len(parts) == 1:
        return parts[0]
    return together(" + ".join(part.key for part in parts), "; ".join(part.what for part in parts), parts)


def with_constants(file: Path) -> Intervention:
    """The intervention that loads the constants of a file."""
    return Intervention(
        key=f"constant:file:{file}",
        kind=Kind.CONSTANT,
        what=f"the call with the constants of {file.name}",
        options=Options(updates=(update_from(file),)),
        before_code="loader(...)",
        after_code=_given(file),
        spelling=("--constants", str(file)),
    )


def _given(file: Path) -> str:
    """Code for the trial's update, without names that the package lacks: those would be rejected."""
    known = known_only(f'torch.load("{file}")', package="loader")
    return f"loader.load_constants(\n    {known},\n    check_full_update=False,\n)"


def with_variables(env: Mapping[str, str]) -> Intervention:
    """The intervention that sets environment variables for the call."""
    settings = [f"{name}={value}" for name, value in env.items()]
    return Intervention(
        key=f"environment:{','.join(settings)}",
        kind=Kind.ENVIRONMENT,
        what=f"the call with {' '.join(settings)}",
        options=Options(env=dict(env)),
        after_code="export " + shlex.join(settings),
        spelling=tuple(option_words({"set_env": env})),
    )


def _tried_fix(trial: Trial, known: tuple[CompiledInput, ...]) -> TriedFix:
    facts = trial.after.facts
    compared = facts.compared if facts is not None else None
    names = {item.index: item.path or item.name for item in known}
    outcome = _outcome(trial)
    enough = None
    if facts is not None and (least := facts.smallest) is not None:
        elements = _elements(least.first, names)
        enough = NeededShown(needed=least.needed, changed=least.changed, elements=elements)
    compared_with = "the call as it is" if compared is not None else ""
    if compared is not None and compared.against == "smallest":
        compared_with = "the call with the smallest change with which it returns"
    return TriedFix(
        outcome=outcome,
        summary=_summary(outcome, trial),
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
                examples=_elements(change.first, names),
            )
            for change in (facts.inputs if facts is not None else ())
        ],
        enough=enough,
        enough_constants=list(facts.constants) if facts is not None and outcome != "no_failure" else [],
        unknown_constants=list(facts.unknown) if facts is not None else [],
        compared_with=compared_with,
        outputs=list(compared.outputs) if compared is not None else [],
        side_effects=_elements(trial.side_effects.first, names) if outcome != "no_failure" else [],
        mutated_inputs=list(facts.mutated) if facts is not None else [],
        calls=trial.calls,
        failed=trial.failed,
        chance=trial.chance or None,
        command=trial.command,
    )


def _elements(
    changes: Sequence[ElementChange | NeededElement], names: Mapping[int, str]
) -> list[ElementShown]:
    """The first elements in words. A `NeededElement` starts with the name of its input."""
    shown = []
    for each in changes[:SHOWN]:
        of = names.get(each.input, str(each.input)) if isinstance(each, NeededElement) else ""
        shown.append(ElementShown(where=f"{of}{list(each.index)}", before=each.before, after=each.after))
    return shown


def _outcome(trial: Trial) -> Outcome:
    if trial.effect is Effect.NOT_APPLICABLE:
        return "no_failure" if trial.before.failure == trial.again.failure == "none" else "not_applicable"
    if trial.gone:
        if trial.before.failure == "nonfinite" and trial.after.non_finite:
            return "changed"
        if not trial.side_effects.known:
            return "passes"
        return "harmful" if trial.side_effects else "fixed"
    return "changed" if trial.effect is Effect.CHANGED else "same"


def _harm(effects: SideEffects) -> str:
    if effects.layout:
        return f"the layout of an output changes ({effects.layout})"
    rows = ", ".join(map(str, effects.rows[:SHOWN])) + (" and others" if len(effects.rows) > SHOWN else "")
    harm = f"{counted(effects.elements, 'element')} not at fault changed as well"
    return f"{harm} (dimension 0: {rows})" if rows else harm


def _summary(outcome: Outcome, trial: Trial) -> str:
    """Summarise the result, with a short sentence for each call."""
    after, effects = trial.after.describe(), trial.side_effects
    as_is = f"As is, the call {trial.before.describe()}."
    model = trial.intervention.kind is Kind.SOURCE and outcome in ("passes", "fixed")
    ship = f" The fix: {trial.intervention.action}." if model else ""
    reason = f"{ship} {capitalized(trial.reason)}." if trial.reason else ship
    harm = _harm(effects)
    rest = f" {harm}." if effects else " No element changed that was not at fault."
    if effects.unseen and not effects:
        rest = f" Side effects are not known: {UNSEEN}."
    if not effects.known:
        rest = (
            " The effect on elements that were not at fault is unknown, because the outputs are not steady."
        )
    facts = trial.after.facts
    if constants := facts.constants if facts is not None else ():
        names = listed(constants[:SHOWN]) if len(constants) <= SHOWN else f"{len(constants)} of them"
        rest += f" Of the constants, {names} {'is' if len(constants) == 1 else 'are'} enough."
    again = ended_again(trial.again.describe())
    gone = f"{as_is} With the change it {after}. Without this change, it {again}."
    left = " One failure is removed, and another remains."
    if trial.after.failure == "none":
        left = " The infinities that remain are a second failure, unless they are intended, as in a mask."
    sentences: dict[Outcome, str] = {
        "passes": f"{gone}{rest}",
        "fixed": f"{gone}{rest}",
        "harmful": f"{gone} But {harm}.",
        "changed": f"{gone}{left}",
        "same": f"{as_is} With the change it still {after}.",
        "no_failure": "The change was not tested, because nothing says that the outputs are wrong. "
        f"Give the correct outputs ({argument('expect')}).",
        "not_applicable": "The trial says nothing about the change.",
    }
    if facts is not None and facts.unknown:
        reason += f" Left out, since the package lacks them: {', '.join(facts.unknown[:SHOWN])}."
    return sentences[outcome] + reason
