"""The smallest change of the inputs that makes a failure go away, found with the failure as the test.

Bisection over the offending elements, one needed element after the other, as in delta debugging (Zeller and
Hildebrandt, 2002). Each test is a call of the user's workload: there are few.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass

from mcp_server.diagnosis.origin.records import Origin

MOST_CALLS = 12


@dataclass(frozen=True)
class Change:
    """One element of an input set to another value."""

    input_index: int
    index: tuple[int, ...]
    after: float | int | bool
    label: str = ""
    before: str = ""

    def text(self) -> str:
        """`args[1][2]: 731 to 499`."""
        where = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        return f"{self.label or f'input {self.input_index}'}{where}: {self.before or '?'} to {self.after}"


@dataclass(frozen=True)
class SmallestChange:
    """`changes` make the failure go away. `minimal`: without any one of them it stays.

    `sufficient`: with every other candidate changed and these as they were, the call still fails.
    """

    changes: tuple[Change, ...]
    minimal: bool
    sufficient: bool
    calls: int

    def text(self) -> str:
        shown = ", ".join(change.text() for change in self.changes[:4])
        more = f" and {len(self.changes) - 4} more" if len(self.changes) > 4 else ""
        return f"the failure goes away with {shown}{more}, and comes back without"


Test = Generator[tuple[Change, ...], bool, SmallestChange | None]


def smallest_change(
    candidates: Sequence[Change], fails: Callable[[tuple[Change, ...]], bool], calls: int = MOST_CALLS
) -> SmallestChange | None:
    """The fewest of `candidates` with which the call does not fail; None when it fails with all of them.

    `fails` makes the call with some elements changed and says whether it fails as before; it is asked at most
    `calls` times.
    """
    search = _search(tuple(candidates), calls)
    try:
        asked = next(search)
        while asked is not None:
            asked = search.send(fails(asked))
    except StopIteration as end:
        found: SmallestChange | None = end.value
        return found


async def smallest_change_of_calls(
    candidates: Sequence[Change],
    fails: Callable[[tuple[Change, ...]], Awaitable[bool]],
    calls: int = MOST_CALLS,
) -> SmallestChange | None:
    """The same with calls that have to be waited for."""
    search = _search(tuple(candidates), calls)
    try:
        asked = next(search)
        while asked is not None:
            asked = search.send(await fails(asked))
    except StopIteration as end:
        found: SmallestChange | None = end.value
        return found


def _search(candidates: tuple[Change, ...], calls: int) -> Test:
    """Yields the changes to make the call with, and is sent whether it fails.

    What more changes would do is taken from what fewer did: a call that fails with some fails with fewer.
    """
    failing: list[frozenset[Change]] = []
    if len(candidates) < 1 or calls < 2:
        return None
    if not (yield ()) or (yield candidates):
        return None
    failing.append(frozenset())
    needed: tuple[Change, ...] = ()
    spent, rest, gone = 2, candidates, False
    while not gone and rest and spent < calls - 1:
        low, high = 0, len(rest)  # the call fails with the first `low` of the rest, and not with `high`
        while high - low > 1 and spent < calls - 1:
            middle = (low + high) // 2
            spent += 1
            if (yield needed + rest[:middle]):
                low = middle
                failing.append(frozenset(needed + rest[:middle]))
            else:
                high = middle
        if high - low > 1:
            rest = rest[:high]
            break
        needed, rest = (*needed, rest[high - 1]), rest[: high - 1]
        if rest and spent < calls - 1:
            spent += 1
            gone = not (yield needed)
            if not gone:
                failing.append(frozenset(needed))
    best = needed if gone else needed + rest
    others = tuple(change for change in candidates if change not in best)
    sufficient = False
    if others and spent < calls:
        spent += 1
        sufficient = yield others
    return SmallestChange(best, _is_minimal(best, failing), sufficient, spent)


def _is_minimal(changes: tuple[Change, ...], failing: Sequence[frozenset[Change]]) -> bool:
    """Whether the call is known to fail without each single one of the changes."""
    whole = frozenset(changes)
    return all(any(whole - {change} <= known for known in failing) for change in changes)


def changes_of(origin: Origin) -> tuple[Change, ...]:
    """Each offending element set to the nearest value with which the expression is good, where that is known.

    An element of a mask is set the other way round.
    """
    good = origin.condition.good if origin.condition else None
    found = []
    for each in origin.elements:
        if each.kind != "input" or each.input_index is None:
            continue
        known = good if origin.condition and origin.condition.label == each.label else None
        after = {"False": True, "True": False}.get(each.value, known)
        if after is not None:
            place = tuple(each.index)
            found.append(Change(each.input_index, place, after, each.label, each.value))
    return tuple(found)
