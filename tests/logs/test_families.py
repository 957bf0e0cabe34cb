"""The table of error families, tested on recorded texts."""

import json
import re
import re._constants as sre  # type: ignore[import-not-found]
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.releases.checks import EXPECTED
from mcp_server.logs.details import literals, look
from mcp_server.logs.families import FAMILIES, Family, Rank, find_family
from mcp_server.logs.log import read_log_file
from mcp_server.logs.text import read_line
from mcp_server.model import FAILURES
from tests.logs.support import read
from tests.recorded import RECORDINGS
from tests.zoo.names import nightly

# The table of error families.

TEXTS = json.loads(Path(__file__).with_name("texts.json").read_text())
MATCHED = [family for family in FAMILIES if family.patterns]


@pytest.mark.parametrize("family", MATCHED, ids=lambda family: family.id)
def test_example_is_found(family: Family) -> None:
    """A family is the first that matches its own example, and the fast search suggests it for the example."""
    found = find_family(family.example)
    assert found is not None and found[0] is family
    assert family in look([read_line(family.example, 1)])[0].families


@pytest.mark.parametrize("family", [*MATCHED[::5], *nightly(*MATCHED)], ids=lambda family: family.id)
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_matches_hold_a_required_text(family: Family, data: st.DataObject) -> None:
    """Every match of a pattern contains one of the texts with which the fast search looks for it."""
    for pattern in family.patterns:
        hints = literals(pattern.pattern)
        found = pattern.search(data.draw(st.from_regex(pattern)))
        assert min(map(len, hints), default=0) >= 3
        assert found is not None and any(hint in found[0] for hint in hints)


def begins_anew(items: Iterable[Any]) -> bool:
    """Whether the pattern can start at every character of a word and read to its end: quadratic time."""
    for kind, value in items:
        if kind is sre.SUBPATTERN:
            return begins_anew(value[-1])
        if kind is sre.BRANCH:
            return any(begins_anew(branch) for branch in value[1])
        if kind not in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            return False
        low, high, body = value
        if high is sre.MAXREPEAT or begins_anew(body):
            return True
        if low:
            return False
    return False


@pytest.mark.parametrize("family", MATCHED, ids=lambda family: family.id)
def test_long_words_take_no_longer_than_short_ones(family: Family) -> None:
    """No pattern begins with a repetition that can start anywhere: long words would take quadratic time."""
    assert [p.pattern for p in family.patterns if begins_anew(re._parser.parse(p.pattern))] == []  # type: ignore[attr-defined]


def test_ids_are_unique() -> None:
    """No two rows share an id."""
    assert max(Counter(family.id for family in FAMILIES).values()) == 1


def test_every_category_but_silent_ones_has_a_family() -> None:
    """Each category is the first candidate of some family."""
    firsts = {family.candidates[0] for family in FAMILIES}
    assert set(FAILURES) - firsts == set()


def test_decided_texts_say_what_they_do_not_prove() -> None:
    """A call-time family that claims a cause but has several candidates says what it does not prove."""
    causes = [f for f in FAMILIES if f.rank == Rank.CAUSE and f.stage == "call" and len(f.candidates) > 2]
    open_ends = {f.id for f in causes if not f.not_proven}
    assert open_ends <= {"device_assert", "runtime_assert", "address_sanitizer", "sanitizer_uninitialised"}


@pytest.mark.parametrize(("text", "family", "category"), TEXTS, ids=[text[:50] for text, _, _ in TEXTS])
def test_known_text(text: str, family: str, category: str) -> None:
    """A text that torch, CUDA or a tool prints gets its family and its likeliest category."""
    root = read(text).root
    assert root is not None
    assert (root.family.id, root.candidates[0]) == (family, category)


# Recorded outputs of one fault under several releases of torch.

LOGS = sorted((RECORDINGS / "releases").glob("*.txt"))


def root(log: Path) -> Any:
    found = read_log_file(log).root
    assert found is not None
    return found


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_a_fault_has_one_family_in_every_release(log: Path) -> None:
    """The wording of an error differs between releases; its family does not."""
    assert root(log).family.id in EXPECTED[log.name.partition(".")[0]][0].split()


@pytest.mark.parametrize("release", ["2.8", "2.14"])
def test_an_operators_exception_is_read_where_its_error_is_not_checked(release: str) -> None:
    """Up to torch 2.12, the exception is only a line in the log, and the call continues to other errors."""
    found = root(RECORDINGS / "releases" / f"operator_raises.torch-{release}.txt")
    assert (found.candidates[0], found.fields["at_function"]) == ("custom_op", "refuse")
    assert "no value below one is allowed" in found.text
    assert found.fields.get("node") == ("0" if release == "2.14" else None)
