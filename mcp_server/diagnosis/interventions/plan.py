"""Carries a plan of calls out: in one process where no call ends it, else going on in another one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from mcp_server.diagnosis.interventions.base import Change, Intervention, Kind, Seen
from mcp_server.diagnosis.symptom import Symptom
from mcp_server.errors import ProblemError
from mcp_server.logs.log import read_log
from mcp_server.logs.text import bound, clean
from mcp_server.model import PackageWorkload
from mcp_server.package.view import view_package
from mcp_server.tools.context import Context, WorkerRun, gpus_of
from mcp_server.tools.failure import read_output
from mcp_server.tools.requests import run_request
from mcp_server.worker.protocol import CallFacts

START_S = 120.0  # for the interpreter, the import of torch and the load, on top of the calls' own limits
MOST_LIMITS = 4  # calls of one process that may each take their whole limit
FACTS = TypeAdapter(CallFacts)
_VOLATILE = re.compile(r"0x[0-9a-fA-F]+|(?:/[\w.+\-]+)+/|\b[a-z0-9]{40,}\b")


@dataclass(frozen=True)
class TriedCall:
    """The failing call: a request of the worker's `run` or `replay`, and its surroundings.

    `symptom` says what the outputs are to be; `fresh` loads the package anew for each call. `timeout_s` is
    for one call. `spelling` are the arguments of `try-fix` that name this call.
    """

    request: Mapping[str, object]
    env: Mapping[str, str] = field(default_factory=dict)
    python: Path | None = None
    cwd: Path | None = None
    timeout_s: float = 300.0
    gpus: tuple[int, ...] | None = None
    symptom: Symptom = field(default_factory=Symptom)
    fresh: bool = False
    spelling: tuple[str, ...] = ()


AS_IT_IS = Intervention("", Kind.CALL, "the call as it is")


@dataclass(frozen=True)
class Planned:
    """One call of a plan, with the changes of the intervention or with `minimal` ones in their place."""

    label: str
    intervention: Intervention = AS_IT_IS
    minimal: tuple[Change, ...] = ()
    save: Path | None = None

    def request(self) -> dict[str, object]:
        made = self.intervention
        return {
            "label": self.label,
            "key": made.key,
            "changes": [change.request() for change in self.minimal or made.changes],
            "options": made.options.request() if not self.minimal else {},
            "reference": bool(self.minimal),
            "smallest": made.smallest and not self.minimal,
            "save": self.save,
        }


def call_of_package(workload: PackageWorkload, symptom: Symptom | None = None) -> TriedCall:
    """The call of a package with its inputs. Raises `ProblemError` without inputs."""
    package = view_package(workload.package, workload.model_name).package
    return TriedCall(
        request=run_request(workload),
        env=workload.env,
        python=workload.python,
        cwd=workload.cwd,
        timeout_s=workload.timeout_s,
        gpus=gpus_of(package.device_type, workload.device_index),
        symptom=symptom or Symptom(),
    )


async def carry_out(
    context: Context, call: TriedCall, plan: Sequence[Planned], *, name: str = "intervene"
) -> dict[str, Seen]:
    """How each call of the plan ended, by label.

    Raises `ProblemError` when no call can be made at all, and for a change that cannot be made of the call.
    """
    seen: dict[str, Seen] = {}
    rest = list(plan)
    while rest:
        done = await _process(context, call, rest, name)
        ended = _read(done, call)
        if not ended:
            failed = done.last("failed")
            why = str(failed["text"])[:500] if failed else f"the worker ended in {done.phase}"
            raise ProblemError(f"the call could not be made: {why}", value=done.finished.ending)
        if not done.finished.reused:
            context.cost.runs += len(ended) - 1  # the process itself counts as one
        seen.update(ended)
        rest = rest[len(ended) :]
        came_back = any(each.ended == "ok" and each.facts and not each.facts.key for each in seen.values())
        if rest and rest[0].intervention is not AS_IT_IS and came_back:
            # The outputs to compare with ended with their process: begin with the call as it is.
            rest = [Planned(f"reference-{len(seen)}"), *rest]
    return seen


async def _process(context: Context, call: TriedCall, plan: Sequence[Planned], name: str) -> WorkerRun:
    symptom = call.symptom
    return await context.worker(
        "intervene",
        {
            **call.request,
            "expect": symptom.expect,
            "rtol": symptom.rtol,
            "atol": symptom.atol,
            "check": list(symptom.check),
            "infinities": symptom.infinities,
            "fresh": call.fresh,
            "plan": [planned.request() for planned in plan],
            "call_limit_s": call.timeout_s,
        },
        name=name,
        env={**call.env, **plan[0].intervention.options.env},
        timeout_s=START_S + min(len(plan), MOST_LIMITS) * call.timeout_s,
        python=call.python,
        cwd=call.cwd,
        gpus=call.gpus,
    )


def _read(done: WorkerRun, call: TriedCall) -> dict[str, Seen]:
    """The calls that were made, in order; the last one may have ended the process."""
    seen: dict[str, Seen] = {}
    for event in done.all("intervened"):
        facts = FACTS.validate_python(event)
        seen[facts.label] = _of_facts(facts, infinities=call.symptom.infinities)
    begun = [str(event["label"]) for event in done.all("intervening")]
    if begun and begun[-1] not in seen:
        seen[begun[-1]] = _ended_process(done)
    return seen


def _of_facts(facts: CallFacts, *, infinities: bool) -> Seen:
    """A call that came back, raised, or was refused."""
    if facts.ended == "ok":
        return Seen("ok", facts, infinities=infinities)
    if facts.ended == "refused":
        return Seen("refused", facts, text=facts.error_text)
    first = f"{facts.error_type.removeprefix('builtins.')}: {facts.error_text}"
    raised = ["Traceback (most recent call last):", '  File "call.py", line 1, in call', *first.splitlines()]
    root = read_log(raised).root
    return Seen(
        "raised",
        facts,
        text=bound("\n".join(map(clean, facts.error_text.splitlines()))),
        family=root.family.id if root else "",
        essence=_essence(facts.error_text),
    )


def _ended_process(done: WorkerRun) -> Seen:
    finished = done.finished
    root = read_output(finished.output).root
    text = root.text if root else finished.note
    family = root.family.id if root else ""
    # The worker itself ends a process in which a call takes too long (`call_limit_s`).
    by_worker = finished.returncode == 1 and finished.stderr.exists()
    if finished.ending == "timeout" or (
        by_worker and "Timeout (" in finished.stderr.read_text(errors="replace")
    ):
        return Seen("timeout", text=text)
    if finished.ending == "out_of_memory":
        return Seen("out_of_memory", text=text, family=family)
    signal = finished.signal or f"exit status {finished.returncode}"
    return Seen("died", signal=signal, text=text, family=family, essence=_essence(text) or signal)


def _essence(text: str) -> str:
    """The first line, without addresses and directories, which differ from run to run."""
    lines = text.strip().splitlines()
    return _VOLATILE.sub("", lines[0]).strip() if lines else ""
