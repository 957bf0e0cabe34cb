"""What releases of torch print about one fault, recorded by `tests.releases.provoke`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.logs.facts import ErrorFact
from mcp_server.logs.log import read_log_file
from tests.recorded import RECORDINGS
from tests.releases.texts import EXPECTED

LOGS = sorted((RECORDINGS / "releases").glob("*.txt"))


def root(log: Path) -> ErrorFact:
    found = read_log_file(log).root
    assert found is not None
    return found


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_a_fault_has_one_family_in_every_release(log: Path) -> None:
    """Wording and place of a text differ between releases, what it is read as does not."""
    assert root(log).family.id in EXPECTED[log.name.partition(".")[0]][0].split()


@pytest.mark.parametrize("release", ["2.8", "2.9", "2.12", "2.14"])
def test_an_operators_exception_is_read_where_its_error_is_not_checked(release: str) -> None:
    """Up to 2.12 the exception is a line of the log; the call goes on, and what comes of it follows."""
    found = root(RECORDINGS / "releases" / f"operator_raises.torch-{release}.txt")
    assert (found.candidates[0], found.fields["at_function"]) == ("custom_op", "refuse")
    assert "no value below one is allowed" in found.text
    assert found.fields.get("node") == ("0" if release == "2.14" else None)


def test_the_oldest_text_names_the_model_that_is_missing() -> None:
    """torch 2.8 has no quotes around the name, and no space behind it."""
    assert root(RECORDINGS / "releases" / "no_such_model.torch-2.8.txt").fields["model"] == "nope"
