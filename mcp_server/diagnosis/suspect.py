"""A suspect: a possible cause, its evidence and interventions, and the closed table of direct refusals."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from mcp_server.diagnosis.interventions.base import Intervention
from mcp_server.model import Category, Component, Evidence, Fix


class CausalLevel(IntEnum):
    """How near to the root cause a suspect is. The deeper of two suspects explains the other.

    A bad call explains bad values, bad values explain a bad address, a bad address explains a later error.
    """

    SYMPTOM = 0
    FAULT_SITE = 1
    BAD_VALUE = 2
    STATE = 3
    CALL = 4
    BUILD = 5


# Steps whose evidence is only a text of the program, or a result of this tool.
OF_TEXTS = frozenset(("read_log", "run", "run_alone", "script", "read_source", "intervention", "note"))


@dataclass(frozen=True)
class Suspect:
    """One possible cause.

    `summary` is the mechanism in a sentence, `evidence` its observations. `observed`: a step saw the
    mechanism in the failing call; otherwise it was inferred. `intervention` would remove the cause. Each of
    `parts` must remove it as well, because one alone may omit the faulty part of the call. `refusal` is a row
    of the closed table `REFUSALS`, which makes an intervention unnecessary. `weak` marks a mere list of
    candidates; `settle` says what would decide among them. `only_in_program`: the cause is absent when the
    call is repeated alone (threads, streams, earlier calls, memory that others write).
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
        """The identity of the cause: suspects with the same key are views of one cause."""
        return f"{self.category}:{self.guilty.kind}:{self.guilty.name}"

    @property
    def steps(self) -> frozenset[str]:
        """The steps that saw the cause, except those that only read a text."""
        return frozenset(each.step for each in self.evidence) - OF_TEXTS

    @property
    def interventions(self) -> tuple[Intervention, ...]:
        """All interventions that must remove the cause: the first one, and the parts."""
        return (self.intervention, *self.parts) if self.intervention is not None else ()

    @property
    def leaves_out(self) -> bool:
        """Whether removing the cause omits parts of the call, where another cause may be."""
        return self.intervention is not None and self.intervention.leaves_out


REFUSED_NAMES = "the package rejects the names of an update"
UNREGISTERED = "the loader rejects the package: an operator that it calls is not registered"
WRONG_ARCHITECTURE = "the system rejects the code: it is for another architecture"

# Direct rejections. The loader, linker, compiler or operating system rejects something, and its text names
# the component. An intervention would add nothing. Causes that a later failure only suggests are not in the
# table. For each row: the slugs of a package that cannot be read, or of a fatal defect (package/problems.py),
# and the families of the error text in a run of aoti-debug.
_REFUSED: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "the loader rejects the file: it is not a package": (
        (
            *("empty_file", "not_a_zip", "truncated_zip", "damaged_member", "missing_file", "other_zip"),
            *("torch_save_file", "pickle_file", "torch_export_archive", "torchscript_file"),
            *("not_a_package_directory", "outdated_layout"),
        ),
        ("other_archive",),
    ),
    "the loader rejects the name: the package has no such model": (
        ("no_model", "unknown_model", "mixed_folders"),
        ("model_name", "other_folder"),
    ),
    "the loader rejects the package: a file that it needs is missing": (
        ("missing_library", "damaged_library", "missing_metadata", "missing_kernel_binary"),
        (),
    ),
    "the package rejects the call: it expects a different number of tensors, or different keywords": (
        (),
        ("input_count", "kwarg_names"),
    ),
    "the linker rejects the library: a symbol or a library is missing": (
        (),
        ("undefined_symbol", "link_library", "linker_shim", "host_loader"),
    ),
    REFUSED_NAMES: ((), ("constant_unknown",)),
    UNREGISTERED: ((), ("op_not_registered",)),
    "the linker rejects a file: it is not a library": ((), ("link_file",)),
    "the compiler cannot be started": ((), ("no_compiler",)),
    "CMake rejects the build: it does not find a package": ((), ("host_package",)),
    WRONG_ARCHITECTURE: (("foreign_library",), ("no_kernel_image", "torch_without_arch")),
    "the driver rejects the device": ((), ("no_driver", "bad_device_index")),
}
REFUSALS = frozenset(_REFUSED)
BY_SLUG = {slug: refusal for refusal, (slugs, _) in _REFUSED.items() for slug in slugs}
BY_FAMILY = {family: refusal for refusal, (_, families) in _REFUSED.items() for family in families}
