"""A row of the table of error families: everything that the server knows about one error text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Literal, TypeVar

from mcp_server.model import Category, ComponentKind

Stage = Literal["export", "compile", "load", "call", "teardown", "any"]
Advice = Literal[
    "check_inputs",
    "check_package",
    "check_machine",
    "trace_index",
    "locate",
    "heap",
    "find_nan",
    "compare",
    "recompile",
    "run_again",
    "read_cause",
    "constants",
    "fix_script",
    "trace_hang",
]

_Text = TypeVar("_Text", bound=str)

# The properties of a family that code outside the table asks about.
Tag = Literal[
    "input_check",  # check_input_N and assert_size_stride, by AOTI_RUNTIME_CHECK_INPUTS, torch 2.8-2.15
    "nan",
    "index_assert",
    "kernel_assert",  # an index assertion in a generated kernel; the package shows which launches have it
    "result_check",  # a check of results that the program made
    "own_report",  # the program's own words about an earlier failure
    "ending",  # printed when a process dies
    "build_tool",  # a tool that the compiler called reports its own failure
    "crash",  # faulthandler prints the stack of the crash
    "native_stack",  # the C++ stack shows what the program was doing
    "stageless",  # occurs in several stages; the Python stack shows which one failed
    "operand",  # an operator rejects an operand; the script may have called it, and not the model
    "fake_operand",  # an operator rejects an operand, which may be a fake tensor of the compiler
    "bare_status",  # a call failed without a reason, which the CUDA status printed at teardown may give
    "open_refusal",  # raised by a package, but decides no category
    "unclassified",  # an exception whose text no family matches
]

INDEX_GUIDE = "triton-index-out-of-bounds.md"
MEMORY_GUIDE = "memory-faults.md"
NAN_GUIDE = "nan-and-wrong-output.md"
SHAPES_GUIDE = "inputs-shapes-custom-ops.md"
BUILD_GUIDE = "building-and-loading.md"
HANG_GUIDE = "hangs-and-concurrency.md"
CONSTANTS_GUIDE = "weights-and-constants.md"
MAIN_GUIDE = "SKILL.md"  # for generic texts: its first section says how to find the text with the cause


def guide_path(guide: str) -> str:
    """Where a guide is in the skill's folder."""
    return guide if guide in (MAIN_GUIDE, INDEX_GUIDE) else f"guides/{guide}"


# What to do next and which guide to read, by a family's likeliest category. A row of a table may differ.
_NEXT: dict[Category, tuple[Advice, str]] = {
    "input_mismatch": ("check_inputs", SHAPES_GUIDE),
    "shape_out_of_range": ("check_inputs", SHAPES_GUIDE),
    "device_mismatch": ("check_inputs", SHAPES_GUIDE),
    "custom_op": ("check_inputs", SHAPES_GUIDE),
    "index_out_of_bounds": ("trace_index", INDEX_GUIDE),
    "illegal_memory_access": ("locate", MEMORY_GUIDE),
    "nan_or_inf": ("find_nan", NAN_GUIDE),
    "wrong_output": ("compare", NAN_GUIDE),
    "constants": ("constants", CONSTANTS_GUIDE),
    "concurrency": ("locate", HANG_GUIDE),
    "hang": ("trace_hang", HANG_GUIDE),
    "compile_failure": ("recompile", BUILD_GUIDE),
    "toolchain": ("check_machine", BUILD_GUIDE),
    "environment": ("check_machine", BUILD_GUIDE),
    "out_of_memory": ("check_machine", BUILD_GUIDE),
    "invalid_package": ("check_package", BUILD_GUIDE),
    "arch_mismatch": ("check_package", BUILD_GUIDE),
    "script_error": ("fix_script", MAIN_GUIDE),
}


class Rank(IntEnum):
    """How close an error text is to the cause. The error of the highest rank is the root."""

    NOISE = 0
    """A warning or teardown message. Never a root."""
    GENERIC = 1
    """A call failed, but another text states the cause."""
    CONSEQUENCE = 2
    """An error that usually follows from an earlier one."""
    SYMPTOM = 3
    """A fault whose text does not state the cause."""
    ERROR = 4
    """The text states what was wrong."""
    CAUSE = 5
    """The text states what was wrong, and the error was raised where that happened."""


@dataclass(frozen=True)
class Naming:
    """Templates for the name and value of the component that an error text names, filled from its fields.

    If `kind` is None, the usual kind of component for the category applies.
    """

    name: str
    value: str = ""
    kind: ComponentKind | None = None


class Table:
    """Rows for one stage, unless a row names another. Each method adds a row of one rank."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.rows: list[Family] = []
        self.noise = partial(Family, self, Rank.NOISE)
        self.generic = partial(Family, self, Rank.GENERIC)
        self.consequence = partial(Family, self, Rank.CONSEQUENCE)
        self.symptom = partial(Family, self, Rank.SYMPTOM)
        self.error = partial(Family, self, Rank.ERROR)
        self.cause = partial(Family, self, Rank.CAUSE)


class Family:
    """One family of error texts. Creating it appends it to `table`.

    `candidates` are categories, the likeliest first; a single one is certain. `advice` and `guide` default to
    those of the likeliest category. `torch` says which releases print the text ("" = all from 2.8 on).
    `example` is a line that matches. `late`: a kernel caused the error, but CUDA reports it at a later call,
    so the traceback proves nothing. `sites` are the kinds of compute-sanitizer records that belong to the
    family. `sentence`, `names` and `fix` are templates, filled from the named groups of `patterns`; of
    `names`, the first whose groups all matched is used. `sentence` defaults to `meaning`, `fix` to the action
    of `advice`.
    """

    def __init__(
        self,
        table: Table,
        rank: Rank,
        id: str,
        patterns: str | tuple[str, ...],
        candidates: Category | tuple[Category, ...],
        meaning: str,
        example: str,
        *,
        stage: Stage | None = None,
        advice: Advice | None = None,
        guide: str = "",
        not_proven: str = "",
        torch: str = "",
        late: bool = False,
        sentence: str = "",
        names: Naming | tuple[Naming, ...] = (),
        fix: str = "",
        tags: Tag | tuple[Tag, ...] = (),
        sites: str | tuple[str, ...] = (),
    ) -> None:
        table.rows.append(self)
        self.id, self.meaning, self.example = id, meaning, example
        self.patterns = tuple(re.compile(pattern) for pattern in _several(patterns))
        self.candidates: tuple[Category, ...] = _several(candidates)
        usual_advice, usual_guide = _NEXT[self.candidates[0]]
        self.advice, self.guide = advice or usual_advice, guide or usual_guide
        self.stage, self.rank, self.late, self.torch = stage or table.stage, rank, late, torch
        self.sentence, self.fix, self.not_proven = sentence, fix, not_proven
        self.names = (names,) if isinstance(names, Naming) else names
        self.tags: frozenset[Tag] = frozenset(_several(tags))
        self.sites = _several(sites)

    def match(self, text: str) -> dict[str, str] | None:
        """The named fields of the first pattern found in `text`. None if no pattern matches."""
        for pattern in self.patterns:
            found = pattern.search(text)
            if found:
                return {name: value for name, value in found.groupdict().items() if value is not None}
        return None


def _several(value: _Text | tuple[_Text, ...]) -> tuple[_Text, ...]:
    return value if isinstance(value, tuple) else (value,)
