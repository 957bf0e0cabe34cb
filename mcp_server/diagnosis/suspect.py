"""A suspect: a possible cause, what was observed of it, and what would remove it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from mcp_server.diagnosis.interventions.base import Intervention
from mcp_server.model import Category, Evidence, Fix, Party


class CausalLevel(IntEnum):
    """How near to the root cause a suspect is; of two that hold, the deeper one explains the other.

    A bad call explains bad values, bad values explain a bad address, a bad address explains a later error.
    """

    SYMPTOM = 0
    FAULT_SITE = 1
    BAD_VALUE = 2
    STATE = 3
    CALL = 4
    BUILD = 5


class Instrument(Enum):
    """What made an observation."""

    PACKAGE_READER = "package reader"
    INPUT_READER = "input reader"
    CAPTURE_HOOK = "capture hook"
    LAUNCH_PROBE = "launch probe"
    MEMORY_CHECKER = "memory checker"
    EXPORTED_PROGRAM = "exported program"
    EAGER = "eager"
    OPERATOR_WATCH = "operator watch"
    RUNTIME_CHECK = "run-time check"
    REPEATED_CALL = "repeated call"
    MACHINE = "machine"
    LOG = "log"


# The step of a piece of evidence says what made it: every step of the diagnosis reads with one instrument.
INSTRUMENTS: dict[str, Instrument] = {
    "open_package": Instrument.PACKAGE_READER,
    "inspect_package": Instrument.PACKAGE_READER,
    "look_at_indices": Instrument.INPUT_READER,
    "capture": Instrument.CAPTURE_HOOK,
    "dump_kernel_io": Instrument.LAUNCH_PROBE,
    "trace_launches": Instrument.LAUNCH_PROBE,
    "locate_fault": Instrument.MEMORY_CHECKER,
    "read_exported": Instrument.EXPORTED_PROGRAM,
    "interpret": Instrument.EAGER,
    "compare_with_eager": Instrument.EAGER,
    "try_padding": Instrument.LAUNCH_PROBE,
    "try_wider": Instrument.LAUNCH_PROBE,
    "watch_operators": Instrument.OPERATOR_WATCH,
    "run_with_input_checks": Instrument.RUNTIME_CHECK,
    "repeat_call": Instrument.REPEATED_CALL,
    "check_devices": Instrument.MACHINE,
    "read_generated_kernel": Instrument.PACKAGE_READER,
    "read_log": Instrument.LOG,
    "run": Instrument.LOG,
    "run_alone": Instrument.LOG,
    "script": Instrument.LOG,
}


@dataclass(frozen=True)
class Suspect:
    """One possible cause.

    `summary` is the mechanism in a sentence, `evidence` what was observed of it. `observed` says that an
    instrument saw the mechanism itself in the failing call; else it was inferred. `intervention` would remove
    it, and `parts` are others that must remove it as well: what one leaves out of the call may be at fault.
    `refusal` is the row of the closed table (`refusals`) by which it needs none. `weak` marks one that
    only lists candidates; `settle` says what would tell whether it holds. `only_in_program` marks what a call
    that is made again by itself is free of: threads, streams, earlier calls, memory that others write.
    """

    category: Category
    guilty: Party
    summary: str
    level: CausalLevel
    evidence: tuple[Evidence, ...] = ()
    crashing: Party | None = None
    fix: Fix | None = None
    intervention: Intervention | None = None
    parts: tuple[Intervention, ...] = ()
    refusal: str = ""
    harmful: bool = True
    weak: bool = False
    settle: str = ""
    observed: bool = True
    only_in_program: bool = False

    @property
    def key(self) -> str:
        """Which cause this is: suspects of one key are one cause, seen in several ways."""
        return f"{self.category}:{self.guilty.kind}:{self.guilty.name}"

    @property
    def instruments(self) -> frozenset[Instrument]:
        """What has seen it."""
        return frozenset(INSTRUMENTS.get(each.step, Instrument.LOG) for each in self.evidence)
