"""A hypothesis: who would be guilty, what speaks for it, and how it could be refuted."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from mcp_server.model import Category, Evidence, Fix, Party


class Depth(IntEnum):
    """How near to the root cause a hypothesis is; of two that hold, the deeper one explains the other.

    A bad call explains bad values, bad values explain a bad address, a bad address explains a later error.
    """

    SYMPTOM = 0
    FAULT_SITE = 1
    BAD_VALUE = 2
    STATE = 3
    CALL = 4
    BUILD = 5


@dataclass(frozen=True)
class CounterTest:
    """Make the call again without the suspected cause.

    `changes` are input changes of the worker's `transforms`; `options` change how the package is loaded.
    `key` identifies the test, so that its result finds its hypothesis.
    """

    key: str
    what: str
    changes: tuple[dict[str, Any], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Hypothesis:
    """One possible cause.

    `sources` names the independent observations that support it, such as `package file`, `runtime check`,
    `log`, `memcheck`: two of them, or a counter-test that passes, make it proven once the failure was seen.
    `weak` marks one that only lists candidates; `settle` says what would tell whether it holds.
    """

    category: Category
    guilty: Party
    summary: str
    depth: Depth
    sources: frozenset[str]
    evidence: tuple[Evidence, ...] = ()
    crashing: Party | None = None
    fix: Fix | None = None
    counter: CounterTest | None = None
    harmful: bool = True
    weak: bool = False
    settle: str = ""
    exact: bool = True

    @property
    def key(self) -> str:
        """Which cause this is: hypotheses of one key are one hypothesis seen by several detectors."""
        return f"{self.category}:{self.guilty.kind}:{self.guilty.name}"
