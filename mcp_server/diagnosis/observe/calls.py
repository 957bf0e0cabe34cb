"""Repeats the program's call: plain, checked, several times, and operator by operator."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mcp_server.diagnosis.causes.concurrency import updated_in_a_copy
from mcp_server.diagnosis.causes.hang import shown_by_trace, to_be_traced
from mcp_server.diagnosis.causes.value_constraints import form_trials, own_drift
from mcp_server.diagnosis.components import drawing_launches, operator_missing_here
from mcp_server.diagnosis.indices import checked_inputs
from mcp_server.diagnosis.observe import (
    DECIDES,
    EXPLAINS,
    GUESSES,
    LOCATES,
    LOOKS_TWICE,
    NEEDED,
    Observation,
    eager_limit,
    hangs,
    limit_of,
    to_be_placed,
)
from mcp_server.diagnosis.observe.program import STACKS, STACKS_AT, see
from mcp_server.diagnosis.program_seen import RunSeen, refuse_misfit
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.errors import ProblemError
from mcp_server.model import PackageWorkload
from mcp_server.probes.build import with_probes
from mcp_server.runtime.context import Context, WorkerRun, gpus_of
from mcp_server.tools.fault_run import ONE_THREAD
from mcp_server.tools.run_deterministic import CHECK_INPUTS

SHARE = 0.45  # of the rest of the budget: if the call hangs, time must remain to find the place
SHARE_OF_HANG = 0.6  # the same if the program hung: little else remains to be seen


async def run_call(
    case: DiagnosisState,
    context: Context,
    label: str,
    *,
    env: Mapping[str, str] | None = None,
    extra: Mapping[str, object] | None = None,
    record: bool = True,
) -> RunSeen:
    """Make the call once in the worker. With `record`, keep the result in `case.runs[label]`."""
    assert case.call is not None
    limit = limit_of(case, share=SHARE_OF_HANG if hangs(case) else SHARE)
    mutated = updated_in_a_copy(case)
    without_inputs = isinstance(case.workload, PackageWorkload) and case.workload.inputs is None
    watched = {"tell_changes": {str(place): size for place, size in mutated.items()}} if mutated else {}
    done = await context.worker(
        case.call.operation,
        {**case.call.request, **watched, **(extra or {})},
        name="load" if without_inputs else label,
        timeout_s=limit.seconds,
        gpus=gpus_of(case.device, case.device_index),
        **case.surroundings_with({STACKS: str(limit.seconds * STACKS_AT)}, env or {}),
    )
    limit.check(done.finished, "the call")
    seen = replace(see(label, done.finished, done), infinities=case.symptom.infinities)
    if record:
        case.runs[label] = seen
    return seen


OF_INPUTS = ("input_mismatch", "shape_out_of_range")


class PlainRun(Observation, name="run", seconds=6, best=DECIDES):
    """Make the call unchanged."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        if to_be_traced(case) or shown_by_trace(case):
            return 0.0  # a trace tells more about a call that hangs
        # The inputs may choose the device, and explain a wrong shape of outputs.
        waits = to_be_placed(case) or (case.symptom.expect is not None and case.inputs)
        if waits and "compare_inputs" not in case.done:
            return 0.0
        return self.best if case.call is not None else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        script = case.script_run
        if case.symptom.seen is None and script is not None and script.family == "script_says_nan":
            case.symptom = replace(case.symptom, seen="nan")
        try:
            seen = await run_call(case, context, "plain", extra=case.symptom.request(), record=False)
            # Inputs that do not fit the package may explain a wrong shape.
            if not any(suspect.harmful and suspect.category in OF_INPUTS for suspect in case.suspects):
                refuse_misfit(seen, case.symptom)
        except ProblemError as problem:
            asked = (str(case.symptom.expect), " ".join(case.symptom.check))
            if problem.value is not None and problem.value in asked:
                case.unfit = problem
            raise
        missing = operator_missing_here(seen, case)
        if not missing:
            case.runs["plain"] = seen
            return
        case.call = None
        case.notes.append(missing)


class CheckedRun(Observation, name="run_with_input_checks", seconds=6, best=LOCATES):
    """Make the call with AOTInductor's own input checks: a second, independent view of a bad input."""

    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect]) -> float:
        if case.call is None or case.only_loaded or "plain" not in case.runs:
            return 0.0
        if "look_at_indices" not in case.done and checked_inputs(case):
            return 0.0  # looking at indices is cheaper, and tells more about a failed index assertion
        if case.runs["plain"].failure == "timeout" and not case.mismatches:
            return 0.0  # the call would hang again
        contract = {"input_mismatch", "device_mismatch", "shape_out_of_range", "custom_op"}
        asked = any(h.category in contract for h in open_suspects) or not case.mismatches
        return self.best if asked else GUESSES

    async def act(self, case: DiagnosisState, context: Context) -> None:
        await run_call(case, context, "checked", env={**CHECK_INPUTS, **ONE_THREAD})


class Interpret(Observation, seconds=4, best=NEEDED):
    """See which operator of the model raises, makes NaN, or breaks its fake function's promise."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        if case.ran_out_of_memory:
            return 0.0  # eager mode needs more memory, as it keeps values between operators
        if to_be_traced(case) or shown_by_trace(case):
            return 0.0  # eager mode may also hang
        return self.best if case.program_path is not None and case.inputs is not None else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        assert case.call is not None
        checked = case.symptom.expect or case.call.request.get("actual")
        more = {"expect": str(checked)} if checked else {}
        drift = own_drift(case)
        if checked and drift is not None and drift.file is not None:
            more["weights"] = str(drift.file)
        case.interpreted = await interpret(case, context, **more)
        case.trials |= {trial.intervention.key: trial for trial in form_trials(case)}


async def interpret(case: DiagnosisState, context: Context, **more: object) -> WorkerRun:
    """Run the exported program on the call's inputs in the worker. `more` is added to the request."""
    assert case.call is not None
    request = case.call.request
    # `package` asks for a comparison of the outputs. With updated constants, they differ anyway.
    as_exported = not (case.call.updated or request.get("library"))
    loading = {"package", "model_name", "device_index"} if as_exported else set()
    return await context.worker(
        "interpret",
        {
            "exported": case.program_path,
            "inputs": case.inputs,
            "extra_imports": request.get("extra_imports", []),
            **{name: value for name, value in request.items() if name in loading},
            **more,
        },
        **case.surroundings,
        timeout_s=eager_limit(case),
    )


LONGEST_CALL_S = 15.0
MOST_BYTES = 1 << 30  # largest package that is loaded again


class RepeatCall(Observation, seconds=5, best=LOOKS_TWICE):
    """Repeat a call that returned, three times, each in a new load; in the last, fill all new memory."""

    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect]) -> float:
        plain, call = case.plain_run, case.call
        if plain is None or plain.failure != "none" or call is None or case.only_loaded:
            return 0.0
        # Only the CPU's memory comes from the C library, and only there are new loads and calls quick.
        on_cpu = isinstance(case.workload, PackageWorkload) and case.device == "cpu"
        if not on_cpu or plain.finished.wall_s >= LONGEST_CALL_S or call.package.stat().st_size >= MOST_BYTES:
            return 0.0
        return 0.0 if any(h.harmful and not h.weak for h in open_suspects) else self.best

    async def act(self, case: DiagnosisState, context: Context) -> None:
        case.repeated = await _repeat(case, context, "repeats", {}, {})


class WatchRepeats(Observation, seconds=14, best=EXPLAINS, alone=True):
    """Repeat the call with every launch watched, to see where the outputs diverge."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        unexplained = case.differs_in("second") and not drawing_launches(case)
        return self.best if unexplained or case.reads_unset else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        rebuilt = await with_probes(context, case.package_call)
        more = {"package": rebuilt.package, "probes": True}
        case.repeated_watched = await _repeat(case, context, "repeats-watched", more, rebuilt.environment)


async def _repeat(
    case: DiagnosisState, context: Context, name: str, more: Mapping[str, object], env: Mapping[str, str]
) -> WorkerRun:
    assert case.call is not None
    limit = limit_of(case)
    done = await context.worker(
        "repeat",
        {**case.call.request, **more},
        name=name,
        timeout_s=limit.seconds,
        **case.surroundings_with({}, env),
    )
    limit.check(done.finished, "the repeated call")
    context.cost.runs += len(done.phases("calling")) - 1 if not done.finished.reused else 0
    return done
