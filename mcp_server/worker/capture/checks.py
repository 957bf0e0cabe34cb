"""Comparisons that the program makes itself: `assert_close`, `allclose` and `equal` say what was expected."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from dataclasses import dataclass
from types import CodeType
from typing import Any, Optional

import torch

from ..encode import callers, frames, is_ours, raised_in
from ..report import Encoded
from ..saved_calls import TooLarge
from ..tensors import only_tensors, storage_bytes
from .calls import Calls, failure

REPORTED = "aoti_debug_reported"  # attribute of an exception that is journaled as a failed comparison


@dataclass(frozen=True, eq=False)
class Comparison:
    """One that failed: the file with both sides, whose outputs they were, and the function that compared."""

    file: Optional[str]
    calls: list[int]
    frames: Encoded
    code: Optional[CodeType]


class Comparisons:
    """Remembers the last comparison of this process where it failed, until another one holds."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.numbers = itertools.count()
        self.failed: Optional[Comparison] = None

    def asserting(self, actual: Any, expected: Any, *_args: Any, **_kwargs: Any) -> tuple[Any, Any]:
        return actual, expected

    def asserted(self, state: tuple[Any, Any], _result: Any, error: Optional[BaseException]) -> None:
        """Journal a failed `assert_close`: the program may catch it and count."""
        self._forget()
        if isinstance(error, AssertionError):
            error.__dict__[REPORTED] = True  # a reference to it would keep the tensors of its frames alive
            self.failed = self._kept(*state)
            self._tell(error)

    def comparing(self, first: Any = None, second: Any = None, *_args: Any, **named: Any) -> Any:
        """`torch.allclose` or `torch.equal`, which torch calls, too: only calls of the program count."""
        inside = is_ours(sys._getframe(3).f_code)
        return None if inside else (named.get("input", first), named.get("other", second))

    def compared(self, state: tuple[Any, Any], result: Any, _error: Optional[BaseException]) -> None:
        """A comparison that fails is no failure yet: the program may end over it."""
        self._forget()
        if result is False:
            self.failed = self._kept(*state)

    def ending(self, error: BaseException) -> None:
        """Journal the last comparison if it failed in a function that this error ends."""
        if self.failed is not None and self.failed.code in [place.f_code for place, _ in raised_in(error)]:
            self._tell(error)

    def _kept(self, actual: Any, expected: Any) -> Comparison:
        """In the order of `assert_close`: the actual side is what a call returned."""
        sides = [[leaf.detach() for leaf in only_tensors(side)] for side in (actual, expected)]
        calls_of = self.calls.outputs.calls_of
        if calls_of(sides[1]) and not calls_of(sides[0]):
            sides.reverse()
        record = {"actual": sides[0], "expected": sides[1]}
        path, _ = self.calls.saved("assertion", next(self.numbers), lambda: self._within(record))
        code = next((frame.f_code for frame in callers()), None)
        return Comparison(path, calls_of(sides[0] + sides[1]), frames(), code)

    def _within(self, record: dict[str, list[torch.Tensor]]) -> dict[str, list[torch.Tensor]]:
        """The record; raises `TooLarge` above the cap on a file."""
        size = storage_bytes(record["actual"] + record["expected"])
        if size > self.calls.store.cap:
            raise TooLarge(f"its {size} bytes are above the cap of {self.calls.store.cap}")
        return record

    def _tell(self, error: BaseException) -> None:
        """Journal the failed comparison, once, with the error that came of it."""
        told, self.failed = self.failed, None
        if told is not None:
            self.calls.memory.failed()
            self.calls.journal.event(
                "assertion_failed",
                file=told.file,
                calls=told.calls,
                frames=told.frames,
                **failure(error),
            )

    def _forget(self) -> None:
        """The last one did not end the program: its file goes."""
        before, self.failed = self.failed, None
        if before is not None and before.file is not None:
            with contextlib.suppress(OSError):
                os.unlink(before.file)
