"""A verdict in about eleven lines, for terminals and MCP clients: what failed, why, where, and the fix.

The full evidence with its commands, and the checks, are in the output of `--verbose`, the page and the JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mcp_server.jobs.manager import RESULT_FILE
from mcp_server.jobs.output import clean
from mcp_server.jobs.store import SCHEME
from mcp_server.model import (
    PROOF_FILE,
    SUBJECT_FILE,
    Category,
    Component,
    Confirmed,
    Cost,
    Eager,
    Fix,
    Verdict,
)
from mcp_server.operations.table import as_listed, command_line, command_name, in_shell_words
from mcp_server.plurals import capitalized, ended_again

MOST_TEXT = 500  # characters in one line
MOST_REMOVED, MOST_ADDED = 3, 24  # lines of code before and after a fix
MOST_KNOWN = 4  # facts shown for an inconclusive verdict
MOST_CLEARED = 2
LABEL = 11  # width of the label column in characters
SHOWN_WAIT_S = 0.1

OF_JOB = re.compile(r"aoti-debug://jobs/(?P<job>\w+)/(?P<file>.+)")
OUTCOME_TITLE = {"fault": "FAULT", "no_fault": "NO FAULT", "inconclusive": "INCONCLUSIVE"}
HEALTHY = {"likely": "as far as this call shows", "possible": "the numbers were not checked"}
_TIMES = re.compile(r" \(\d+ times\)$")
_KERNEL = re.compile(r"\b(?:cpp|triton)_\w{32,}")
_HEAD, _TAIL = 18, 16  # characters kept at each end of a long kernel name

IN_MODEL = "so the fault is in the model or its inputs, not the compiler."
IN_PACKAGE = "so the fault is in the compiled package, not the model."
# What eager mode's result says about where to look, by category.
EAGER: dict[tuple[Category, Eager], str] = {
    ("nan_or_inf", "same"): f"Eager mode does the same, {IN_MODEL}",
    ("nan_or_inf", "differs"): f"Eager mode returns finite values, {IN_PACKAGE}",
    ("index_out_of_bounds", "same"): f"Eager mode fails too, {IN_MODEL}",
    ("index_out_of_bounds", "differs"): "Eager mode returns: it does not make this check.",
    ("wrong_output", "same"): f"Eager mode returns the same numbers, {IN_MODEL}",
    ("wrong_output", "differs"): f"Eager mode returns other numbers for the same inputs, {IN_PACKAGE}",
    (
        "wrong_output",
        "varies",
    ): "Eager mode returns different numbers in each run, so the model itself is not deterministic.",
}

OF_CALL = "args[N] is argument N of the failing call, counted from 0: write your own name for it."
OF_UPDATE = "state is the dict of tensors that you pass to the update."
Role = Literal["title", "text", "label", "removed", "added", "command"]


@dataclass(frozen=True)
class Line:
    """One line: its role, the label before it, and its text."""

    role: Role
    text: str
    label: str = ""

    @property
    def mark(self) -> str:
        """The prefix of a code line. Empty for other lines."""
        return {"removed": "- ", "added": "+ ", "command": "$ "}.get(self.role, "")

    def plain(self) -> str:
        """Format as text, in columns if the line has a label."""
        if self.role in ("title", "text"):
            return self.text
        return f"{self.label:<{LABEL}}{self.mark}{self.text}"


def text(verdict: Verdict) -> str:
    """The lines for an MCP client."""
    return "\n".join(line.plain() for line in lines(verdict, in_shell=False))


_SHELL: Any = {"evidence": {"__all__": {"command"}}, "confirmed": {"command"}, "fix": {"ran": {"command"}}}


def main_fields(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON for an MCP client: no empty fields, shell commands, or facts told twice.

    Some clients show a model only this JSON, not the text, so every field costs tokens.
    """
    experiment = ("intervention",) if verdict.confirmed is not None else ()
    facts = {_TIMES.sub("", each.fact): each for each in reversed(verdict.evidence)}  # one of equal facts
    kept: dict[str, Any] = {
        "decisions": [],
        "next_steps": [as_listed(step) for step in verdict.next_steps],
        "causes": verdict.causes if len(verdict.causes) > 1 else [],
        "evidence": [
            each for each in verdict.evidence if each in facts.values() and each.step not in experiment
        ],
        "artifacts": [each for each in verdict.artifacts if each.path.name != SUBJECT_FILE],
    }
    if verdict.guilty is not None and verdict.crashing is not None:
        own = [at for at in verdict.crashing.model_locations if at not in verdict.guilty.model_locations]
        kept["crashing"] = verdict.crashing.model_copy(update={"model_locations": own})
    if verdict.confirmed is not None:
        kept |= {"intervention": None, "program": []}
    found = verdict.model_copy(update=kept).model_dump(mode="json", exclude_defaults=True, exclude=_SHELL)
    return {"format_version": verdict.format_version, "confidence": verdict.confidence, **found}


def lines(verdict: Verdict, *, in_shell: bool = True) -> Iterator[Line]:
    """Yield the lines of a verdict. With `in_shell`, tools and arguments are spelled as in a shell."""
    quoted = {_bounded(_TIMES.sub("", each.fact)) for each in verdict.evidence if each.step == "read_log"}
    for line in _lines(verdict, in_shell):
        as_it_is = line.role in ("removed", "added", "command") or line.text in quoted
        yield line if as_it_is or not in_shell else replace(line, text=in_shell_words(line.text))


def _lines(verdict: Verdict, in_shell: bool) -> Iterator[Line]:
    yield Line("title", title_of(verdict))
    yield Line("text", _bounded(what_happened(verdict)))
    if eager_in_words(verdict):
        yield Line("text", eager_in_words(verdict))
    proven = verdict.outcome == "fault" and verdict.confidence == "proven"
    yield from _labelled("Observed", _observed(verdict, proven))
    yield from _where(verdict)
    if verdict.fix:
        yield from _fix(verdict.fix)
    if verdict.confirmed:
        yield from _labelled("Confirmed", confirmation(verdict.confirmed))
    for cause in verdict.causes[1:]:
        same = verdict.intervention is not None and cause.intervention == verdict.intervention
        yield Line("label", _bounded(cause.summary), "Also" if same else "Then fix")
    cleared = [f"{each.hypothesis.rstrip('.')}: {each.by}" for each in verdict.bystanders[:MOST_CLEARED]]
    yield from _labelled("Cleared", cleared)
    yield from _labelled("Note", verdict.remarks)
    yield from _next(verdict, in_shell, proven)
    yield from _more(verdict, in_shell)


def _observed(verdict: Verdict, proven: bool) -> list[str]:
    """Facts that the summary lacks: the text of a refusal, and nothing of an experiment."""
    if verdict.outcome == "no_fault" or (proven and verdict.confirmed):
        return []
    # A fact that is part of a longer one is left out.
    shown = (each for each in verdict.evidence if not proven or each.step == "read_log")
    untold = (e.fact for e in shown if e.fact.rstrip(".").lower() not in verdict.summary.lower())
    facts = dict.fromkeys(_TIMES.sub("", fact) for fact in untold)
    whole = [text for text in facts if not any(text in other and text != other for other in facts)]
    return whole[: 1 if proven else MOST_KNOWN]


def title_of(verdict: Verdict) -> str:
    """Format the title: `FAULT  NaN in output 0  (proven)`."""
    surely = {"fault": verdict.confidence, "no_fault": HEALTHY.get(verdict.confidence)}.get(verdict.outcome)
    known = verdict.headline or (verdict.category or "").replace("_", " ")
    words = known if verdict.outcome != "no_fault" else ""
    how = f"({surely})" if surely else ""
    return _bounded("  ".join(filter(None, (OUTCOME_TITLE[verdict.outcome], words, how))))


def _bounded(text: str) -> str:
    """The text as one line, shortened; long kernel names become `cpp_fused__softmax…view_1`."""
    text = _KERNEL.sub(lambda found: f"{found[0][:_HEAD]}…{found[0][-_TAIL:]}", clean(text)).replace(
        "\n", " "
    )
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 1]}…"


def eager_in_words(verdict: Verdict) -> str:
    """The sentence of EAGER for this verdict, if any."""
    told = verdict.category is not None and verdict.outcome == "fault"
    return EAGER.get((verdict.category, verdict.eager), "") if told and verdict.category else ""


def what_happened(verdict: Verdict) -> str:
    """The summary. If it tells of one of several calls, the number of that call is added."""
    call, of_program = verdict.call, verdict.category in ("concurrency", "constants", "script_error")
    if call is None or call.of == 1 or verdict.outcome != "fault" or of_program:
        return verdict.summary
    return f"Call {call.number} of {call.of}: {verdict.summary}"


def _labelled(label: str, texts: list[str]) -> Iterator[Line]:
    """Yield one line for each text, with the label only before the first."""
    yield from (Line("label", _bounded(each), "" if number else label) for number, each in enumerate(texts))


def _where(verdict: Verdict) -> Iterator[Line]:
    """Yield where it failed, if known: the line of the model, and the launch."""
    parties = [party for party in (verdict.guilty, verdict.crashing) if party is not None]
    if placed := placed_party(verdict):
        yield Line("label", _bounded(_place(placed)), "Where")
    launched = next((party for party in reversed(parties) if party.launch_index is not None), None)
    if launched is not None:
        at = f" ({launched.generated_location})" if launched.generated_location else ""
        name = f"{'which reads ' if launched.kind == 'constant' else ''}{launched.name}"
        yield Line("label", _bounded(f"launch {launched.launch_index}, {name}{at}"), "Kernel")


def placed_party(verdict: Verdict) -> Component | None:
    """The root cause if it has a model line, else the crash site if that has one, else None."""
    parties = (verdict.guilty, verdict.crashing)
    return next((party for party in parties if party is not None and party.model_locations), None)


def _place(party: Component) -> str:
    """Format the first line of the model. For a launch, add its other lines in the same file."""
    first, *others = party.model_locations
    shown = f"{Path(first.file).name}:{first.line}  {first.code}".rstrip()
    numbers = [str(at.line) for at in others if at.file == first.file and at.line != first.line]
    if party.launch_index is None or not numbers:
        return shown
    return f"{shown}  (or line {', '.join(dict.fromkeys(numbers))}: one kernel computes them all)"


def _fix(fix: Fix) -> Iterator[Line]:
    text = _bounded(fix.text)
    yield Line("label", capitalized(text), "Fix")
    # If nothing replaces the line, `Where` already shows it.
    lines = (fix.before or "").splitlines() if fix.after else []
    most = MOST_REMOVED if len(lines) > MOST_REMOVED + 1 else len(lines)  # "..." never stands for one line
    for line in [*lines[:most], *(["..."] if most < len(lines) else [])]:
        yield Line("removed", _bounded(line))
    yield from (Line("added", _bounded(line)) for line in (fix.after or "").splitlines()[:MOST_ADDED])
    if note := note_on_arguments(fix):
        yield Line("label", note)


def note_on_arguments(fix: Fix) -> str:
    """Explain `args[N]` or `state` if the code of the fix contains it. Empty otherwise."""
    after = fix.after or ""
    return OF_CALL if "args[" in after else OF_UPDATE if "state[" in after else ""


def confirmation(run: Confirmed) -> list[str]:
    """Describe the experiment: the call with and without the change, and why not to ship the change."""
    what = run.what if run.what.startswith(("with", "after")) else f"with {run.what}"
    counted_runs = run.again.startswith("failed ")  # `failed 3 of 10 times (died with SIGABRT)`
    again = f"Without this change, it {run.again if counted_runs else ended_again(run.again)}."
    effects = f" {capitalized(run.side_effects)}." if run.side_effects else ""
    found = f"{capitalized(what)}, the {run.subject} {run.after}.{effects} {again}"
    return [found, run.not_for_shipping] if run.not_for_shipping else [found]


def _next(verdict: Verdict, in_shell: bool, proven: bool) -> Iterator[Line]:
    """Yield each step and its call."""
    for number, step in enumerate(verdict.next_steps):
        how = f" ({command_name(step.tool)})" if in_shell and proven else ""
        yield Line("label", f"{capitalized(step.why)}{how}", "Next" if number == 0 else "")
        if not in_shell:
            call = as_listed(step)
            yield Line("label", f"{call.tool} {json.dumps(call.arguments)}")
        elif not how:
            yield Line("command", command_line(step))


def _more(verdict: Verdict, in_shell: bool) -> Iterator[Line]:
    """Yield the script that repeats the experiment, the cost, and how to see the evidence."""
    if proof := next((each.path for each in verdict.artifacts if each.path.name == PROOF_FILE), None):
        yield Line("label", f"python {proof}", "Reproduce")
    jobs = (OF_JOB.fullmatch(each.uri) for each in verdict.artifacts)
    job = next((found["job"] for found in jobs if found and found["file"] == SUBJECT_FILE), "")
    page = f"run: aoti-debug report {job} --out FOLDER" if job else "--report FOLDER"
    rest = f" For the evidence, add --verbose, or {page}"
    if not in_shell:
        rest = f" Evidence and commands: {SCHEME}{job}/{RESULT_FILE}" if job else ""
    yield Line("label", f"The diagnosis took {cost_in_words(verdict.cost)}.{rest}", "Cost")


def cost_in_words(cost: Cost) -> str:
    """Format the seconds. Runs and compiles are left out: those in the user's script are not counted."""
    waited = f", of which {cost.waited_s:.1f} s waiting for a GPU" if cost.waited_s >= SHOWN_WAIT_S else ""
    return f"{cost.wall_s:.1f} s{waited}"
