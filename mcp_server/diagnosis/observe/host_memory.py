"""Runs a host again with the memory filled that it freed or never wrote."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import anyio.to_thread

from mcp_server.diagnosis.causes.index_out_of_bounds import NO_ROW
from mcp_server.diagnosis.causes.shared_memory import removal_of
from mcp_server.diagnosis.interventions.base import Effect, Seen, judged_elsewhere
from mcp_server.diagnosis.observe import DECIDES, Observation
from mcp_server.diagnosis.observe.rerun import plain_command
from mcp_server.diagnosis.program_seen import FilledInput
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.jobs.child import Finished
from mcp_server.model import CommandWorkload, ScriptWorkload
from mcp_server.package.terms.sizes import index_at
from mcp_server.package.terms.term import itemsize_of
from mcp_server.recorder.package import FOLDER, recording_environment
from mcp_server.recorder.replay import candidates
from mcp_server.recorder.ring import RecordedCall, Recording, read_recording
from mcp_server.runtime.context import Context

PERTURB, ZERO = 0x5A, 0xFF
TUNABLES = "glibc.malloc.perturb={}:glibc.malloc.tcache_count=0"
# The bytes with which glibc fills freed memory and new memory (malloc.c, free_perturb).
FILLS: Mapping[Literal["freed", "unwritten"], int] = {"freed": PERTURB, "unwritten": 0xFF - PERTURB}
SHORTEST_HOST_S, LONGEST_HOST_S = 15.0, 60.0
SHORTEST_FILL = 16  # fewer equal bytes may be a coincidence


class FillHostMemory(
    Observation, name="fill_host_memory", seconds=10, best=DECIDES, alone=True, decisive=True
):
    """Run the host with memory filled that it does not own; look for it in the inputs."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        script, plain = case.script_run, case.plain_run
        if case.host_package is None or case.taken is None or script is None or plain is None:
            return 0.0
        garbage = any(
            each.outside and not each.as_int32 and max(abs(each.min or 0), abs(each.max or 0)) >= NO_ROW
            for each in case.index_values.values()
        )
        unclear = plain.failure in ("none", "nonfinite") and script.failure != "none"
        short = script.failure == "timeout" or script.finished.wall_s < LONGEST_HOST_S
        return (
            self.best if short and (garbage or unclear) and not (case.unowned or case.taken.changes) else 0.0
        )

    async def act(self, case: DiagnosisState, context: Context) -> None:
        env = {"GLIBC_TUNABLES": TUNABLES.format(PERTURB)}
        _, recordings = await _host_again(case, context, "filled", env)
        case.filled = await anyio.to_thread.run_sync(_filled, recordings)
        if case.filled is None:
            return
        freed = case.filled.memory == "freed"
        env = {} if freed else {"GLIBC_TUNABLES": TUNABLES.format(ZERO)}
        finished, recordings = await _host_again(case, context, "owned", env, keep_freed=freed)
        failed = not finished.ok or any(
            call.code or call.end_ns is None for r in recordings for call in r.calls
        )
        if not failed and recordings:
            assert case.script_run is not None
            made = removal_of(case.filled)
            failing = Seen("raised", text=case.script_run.root.text if case.script_run.root else "")
            case.trials[made.key] = judged_elsewhere(made, Effect.GONE, failing)


async def _host_again(
    case: DiagnosisState, context: Context, name: str, env: Mapping[str, str], *, keep_freed: bool = False
) -> tuple[Finished, list[Recording]]:
    """Run the host again with these variables. Return how it ended, and its recordings."""
    workload, script = case.workload, case.script_run
    assert isinstance(workload, ScriptWorkload | CommandWorkload) and script is not None
    folder = f"{FOLDER}-{name}"
    recorder = await recording_environment(context, workload.env, folder, keep_freed=keep_freed)
    hung = script.failure == "timeout"
    limit_s = min(LONGEST_HOST_S, max(SHORTEST_HOST_S, 0.0 if hung else 4 * script.finished.wall_s))
    command = plain_command(case, context, {**recorder, **env}, limit_s)
    finished = await context.run(command, name, runs=1)
    found = context.directory / folder
    paths = await anyio.to_thread.run_sync(lambda: sorted(found.glob("*.ring")))
    return finished, [await anyio.to_thread.run_sync(read_recording, path) for path in paths]


def _filled(recordings: Sequence[Recording]) -> FilledInput | None:
    """The first filled input, preferably of a failed call, with its least offset over all calls."""
    ordered = [each.call for recording in recordings for each in candidates(recording)]
    calls = [*ordered, *(call for recording in recordings for call in recording.calls)]
    found = [each for call in calls for each in _fills_of(call)]
    same = [e for e in found if (e.number, e.memory) == (found[0].number, found[0].memory)]
    least = min((each.offset for each in same), default=0)
    return replace(found[0], offset=least) if found else None


def _fills_of(call: RecordedCall) -> Iterator[FilledInput]:
    for number, given in enumerate(call.inputs):
        if given.bytes is None or not given.span:
            continue
        values = given.bytes.read()
        size = itemsize_of(given.dtype)
        for memory, byte in FILLS.items():
            offset = values.find(bytes([byte]) * SHORTEST_FILL)
            if offset >= 0:
                at = -(-offset // size)
                element = list(index_at(at, given.sizes, given.strides) or ())
                same = values[at * size :].count(bytes([byte]) * size)
                yield FilledInput(number, memory, offset, element, same)
