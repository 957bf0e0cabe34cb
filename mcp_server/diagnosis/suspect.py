"""A suspect: a possible cause, its evidence and interventions, and the closed table of direct refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum

from mcp_server.diagnosis.interventions.base import Intervention
from mcp_server.model import Category, Component, Evidence, Fix


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
    """What made an observation, by the steps whose evidence it is."""

    PACKAGE_READER = ("open_package", "inspect_package", "read_generated_kernel")
    INPUT_READER = ("look_at_indices",)
    CAPTURE_HOOK = ("capture",)
    LAUNCH_PROBE = ("dump_kernel_io", "trace_launches", "try_padding", "try_wider")
    MEMORY_CHECKER = ("locate_fault",)
    EXPORTED_PROGRAM = ("read_exported",)
    EAGER = ("interpret", "compare_with_eager")
    OPERATOR_WATCH = ("watch_operators",)
    RUNTIME_CHECK = ("run_with_input_checks", "run_program_with_input_checks")
    REPEATED_CALL = ("repeat_call",)
    COMPILER = ("bisect",)
    MACHINE = ("check_devices",)
    LOG = ("read_log", "run", "run_alone", "script", "read_source", "intervention", "note")


# A step that no instrument names is an instrument of its own.
INSTRUMENTS = {step: instrument for instrument in Instrument for step in instrument.value}


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
    guilty: Component
    summary: str
    level: CausalLevel
    evidence: tuple[Evidence, ...] = ()
    crashing: Component | None = None
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
    def instruments(self) -> frozenset[Instrument | str]:
        """What has seen it."""
        return frozenset(INSTRUMENTS.get(each.step, each.step) for each in self.evidence)

    @property
    def interventions(self) -> tuple[Intervention, ...]:
        """All that have to remove it: the first one, and the parts."""
        return (self.intervention, *self.parts) if self.intervention is not None else ()

    @property
    def leaves_out(self) -> bool:
        """Whether removing it leaves out parts of the call: another suspect may lie in these."""
        return self.intervention is not None and self.intervention.leaves_out


# Direct refusals. The loader, the linker, the compiler or the operating system refuses, and its words name
# the component. No intervention can add to that. Nothing belongs here that a later failure merely suggests.
NOT_A_PACKAGE = "the loader refuses the file: it is no package"
NO_SUCH_MODEL = "the loader refuses the name: the package has no such model"
INCOMPLETE = "the loader refuses the package: a file that it needs is not in it"
UNDEFINED_SYMBOL = "the linker refuses the library: a symbol or a library is missing"
NOT_LINKABLE = "the linker refuses a file: it is no library"
NO_COMPILER = "the compiler cannot be started"
WRONG_ARCHITECTURE = "the system refuses the code: it is for another architecture"
NO_DEVICE = "the driver refuses the device"

# Slugs of a package that cannot be read, or of a fatal defect (package/problems.py).
_NO_PACKAGE = (
    *("empty_file", "not_a_zip", "truncated_zip", "damaged_member", "missing_file", "torch_save_file"),
    *("pickle_file", "torch_export_archive", "torchscript_file", "other_zip", "not_a_package_directory"),
    "outdated_layout",
)
_NOT_WHOLE = ("missing_library", "damaged_library", "missing_metadata", "missing_kernel_binary")
BY_SLUG: Mapping[str, str] = {
    **dict.fromkeys(_NO_PACKAGE, NOT_A_PACKAGE),
    **dict.fromkeys(("no_model", "unknown_model"), NO_SUCH_MODEL),
    **dict.fromkeys(_NOT_WHOLE, INCOMPLETE),
    "foreign_library": WRONG_ARCHITECTURE,
}

# By the family of the error text in a run of ours.
BY_FAMILY: Mapping[str, str] = {
    "model_name": NO_SUCH_MODEL,
    "other_archive": NOT_A_PACKAGE,
    "no_compiler": NO_COMPILER,
    "link_file": NOT_LINKABLE,
    **dict.fromkeys(("undefined_symbol", "link_library", "linker_shim"), UNDEFINED_SYMBOL),
    **dict.fromkeys(("no_kernel_image", "torch_without_arch"), WRONG_ARCHITECTURE),
    **dict.fromkeys(("no_driver", "bad_device_index"), NO_DEVICE),
}

REFUSALS = frozenset({*BY_SLUG.values(), *BY_FAMILY.values()})
