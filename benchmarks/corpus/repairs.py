"""What shows that the causes of an answer are the causes: the program without some of its defects.

A cause is one when the program passes without it and fails with it. A bystander is one when the program
fails without it as with it. Of two causes the first hides the second, which shows once the first is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from benchmarks.corpus.answers import Answer, Defect


@dataclass(frozen=True)
class Trial:
    """A program's source with some defects removed; `wanted` says how it must end."""

    what: str
    source: str
    wanted: Answer


def trials(answer: Answer, source: str) -> Iterator[Trial]:
    """The program as it is, and every program without some defects whose end decides about the answer."""
    yield Trial("as it is", source, answer)
    if answer.bystanders:
        yield Trial("bystanders fixed, ends as before", _without(answer.bystanders, source), answer)
    for count in range(1, len(answer.causes)):
        first, then = answer.causes[:count], answer.causes[count:]
        category = min(map(str, then[0].categories))
        shows = replace(answer, category=category, expected_error=then[0].expected_error)
        yield Trial(f"cause {count} fixed, the next one shows", _without(first, source), shows)
        yield Trial(f"cause {count + 1} fixed alone, ends as before", _without(then[:1], source), answer)
    if answer.causes:
        well = replace(answer, outcome="no_fault", category=None, expected_error="")
        yield Trial("causes fixed, passes", _without(answer.causes, source), well)


def _without(defects: Iterable[Defect], source: str) -> str:
    for defect in defects:
        source = defect.removed_from(source)
    return source
