"""Which call of a recording to make again, in which order, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcp_server.logs.journal import DTYPES
from mcp_server.recorder.ring import RecordedCall, RecordedModel, Recording

KNOWN_DTYPES = frozenset(DTYPES.values())
MOST_LAST = 32  # calls on a device: they return before their kernels have run


@dataclass(frozen=True)
class Candidate:
    """A call that may be the one at fault, and why it is looked at."""

    recording: Recording
    call: RecordedCall
    why: str

    @property
    def model(self) -> RecordedModel:
        return self.recording.models[self.call.model]

    @property
    def number(self) -> str:
        """Which call it is: the sequence counts those of its slot, which is one thread at a time."""
        return f"call {self.call.sequence} of thread {self.call.thread}, process {self.recording.pid}"

    @property
    def missing(self) -> str:
        """What was not kept of it, in words; empty if everything was."""
        if self.call.total_inputs > len(self.call.inputs):
            return f"{self.call.total_inputs - len(self.call.inputs)} of {self.call.total_inputs} inputs"
        gone = [
            f"input {number} ({each.dtype}{list(each.sizes)}, {each.span} bytes)"
            for number, each in enumerate(self.call.inputs)
            if (each.span and each.bytes is None) or each.dtype not in KNOWN_DTYPES
        ]
        return ", ".join(gone)


def candidates(recording: Recording) -> Iterator[Candidate]:
    """The crashing thread's call, the others in flight, those that returned an error; else the last ones.

    On a device a call returns before its kernels have run, so that after a crash the fault may be in any of
    the last calls.
    """
    crash = recording.crash
    flying = [call for call in recording.calls if call.end_ns is None]
    crashed = [call for call in flying if crash is not None and call.thread == crash.thread]
    rest = [call for call in flying if call not in crashed]
    failed = [call for call in reversed(recording.calls) if call.end_ns is not None and call.code != 0]
    for call in crashed:
        yield Candidate(recording, call, "its thread got the fatal signal")
    for call in failed if recording.ended or recording.alive else ():
        yield Candidate(recording, call, f"it returned error code {call.code}")
    for call in reversed(rest):
        how = "when the process died" if not recording.alive else "when the recording was read"
        yield Candidate(recording, call, f"it was in flight {how}")
    for call in failed if not (recording.ended or recording.alive) else ():
        yield Candidate(recording, call, f"it returned error code {call.code}")
    seen = {id(call) for call in (*flying, *failed)}
    last = [call for call in reversed(recording.calls) if id(call) not in seen]
    on_device = [call for call in last if call.on_device][:MOST_LAST]
    for call in on_device or last[:1]:
        why = (
            "its kernels may still have run at the end" if on_device else "it is the last call that was kept"
        )
        yield Candidate(recording, call, why)
