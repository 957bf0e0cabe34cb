"""The first bad release of torch: the search, and environments that are kept or cannot be made."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.errors import ProblemError
from mcp_server.tools.releases import INDEX, Environments, ReleaseTried, Result, Search, releases_of
from mcp_server.versions import FIRST, LAST, Release, release_of, text
from tests.worker.support import context_in
from tests.zoo.names import thorough

ALL = releases_of(f"{text(FIRST)}..{text(LAST)}")


def searched(
    first_bad: Release | None, unknown: frozenset[Release] = frozenset(), releases: list[Release] = ALL
) -> Search:
    """A search in which every release from `first_bad` on fails, and some cannot be installed."""

    async def attempt(release: Release) -> ReleaseTried:
        fails = first_bad is not None and release >= first_bad
        result: Result = "unknown" if release in unknown else "fails" if fails else "passes"
        return ReleaseTried(release=text(release), result=result, how="")

    found = Search(releases, attempt)
    anyio.run(found.run)
    return found


@pytest.mark.parametrize("bad", ALL[1:])
def test_every_first_bad_release_is_named(bad: Release) -> None:
    """By its neighbour before it, with fewer trials than there are releases where there are many."""
    found = searched(bad)
    assert found.ends == (ALL[ALL.index(bad) - 1], bad) and len(found.tried) <= 5
    assert found.conclusion()[0] == "first_bad"


@given(
    bad=st.sampled_from([None, *ALL]), unknown=st.frozensets(st.sampled_from(ALL)), start=st.integers(0, 3)
)
def test_what_is_named_was_tried(bad: Release | None, unknown: frozenset[Release], start: int) -> None:
    """A first bad release was seen to fail and its neighbour to pass; where none is named, none could be."""
    found = searched(bad, unknown, ALL[start:])
    outcome, _ = found.conclusion()
    good, first = found.ends
    known = [release for release in ALL[start:] if release not in unknown]
    fails = [release for release in known if bad is not None and release >= bad]
    assert first == (fails[0] if fails else None)
    assert good == max((release for release in known if release not in fails), default=None) or not fails
    if outcome == "first_bad":
        assert good is not None and first is not None and ALL.index(first) == ALL.index(good) + 1
        assert found.tried[good].result == "passes" and found.tried[first].result == "fails"
    assert (outcome == "not_found") == (not fails)


def test_what_cannot_be_tried_leaves_an_honest_partial_answer() -> None:
    """The releases between which it is, and those that are not known."""
    found = searched((2, 11), frozenset({(2, 10), (2, 11)}))
    outcome, summary = found.conclusion()
    assert (outcome, found.ends) == ("narrowed", ((2, 9), (2, 12)))
    assert "2.12 fails, and torch 2.9 does not" in summary and "2.10, 2.11" in summary
    others = frozenset(ALL) - {(2, 13)}
    outcome, summary = searched((2, 8), others).conclusion()
    assert outcome == "fails_in_all" and "2.13" in summary and "2.8" in summary


def test_a_failure_of_all_and_of_none() -> None:
    """Nothing is named where there is no border."""
    assert searched(ALL[0]).conclusion()[0] == "fails_in_all"
    assert searched(None).conclusion()[0] == "not_found"


@pytest.mark.parametrize("asked", ["2.13", "2.13..2.10", "1.9..2.13", "2.13..2.99", "x..y", "2.10..2.10"])
def test_a_range_that_is_none_is_refused(asked: str) -> None:
    """With what is supported."""
    with pytest.raises(ProblemError, match="releases of torch") as refused:
        releases_of(asked)
    assert f"{text(FIRST)}..{text(LAST)}" in refused.value.allowed


@thorough
def test_without_a_network_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that nothing answers at: no environment is left behind, and the release is said."""
    monkeypatch.setenv("AOTI_DEBUG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(INDEX, "http://127.0.0.1:9/simple")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    made = Environments(context_in(tmp_path / "job"), Path(sys.executable), "cpu")
    with pytest.raises(ProblemError, match=r"torch 2\.9 cannot be installed without a network"):
        anyio.run(made.python, (2, 9), 120.0)
    assert list(made.root.iterdir()) == []


def test_a_kept_environment_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started for a release that is there."""
    monkeypatch.setenv("AOTI_DEBUG_CACHE", str(tmp_path / "cache"))
    context = context_in(tmp_path / "job")
    made = Environments(context, Path(sys.executable), "cpu")
    (made.place((2, 9)) / "bin").mkdir(parents=True)
    (made.place((2, 9)) / "bin" / "python").touch()
    assert anyio.run(made.python, (2, 9), 1.0) == made.place((2, 9)) / "bin" / "python"
    assert list(context.directory.iterdir()) == []


@thorough
@pytest.mark.slow
def test_an_environment_is_made_with_its_own_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The release that was asked for, and after it what the interpreter of the workload has."""
    monkeypatch.setenv("AOTI_DEBUG_CACHE", str(tmp_path / "cache"))
    release = release_of(version("torch"))
    assert release is not None
    made = Environments(context_in(tmp_path / "job"), Path(sys.executable), "cpu")
    python = anyio.run(made.python, release, 900.0)
    code = "import torch, yaml; print(torch.__version__, torch.__file__, yaml.__file__)"
    argv = [str(python), "-c", code]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    found, of_torch, of_yaml = done.stdout.split()
    assert release_of(found) == release
    assert of_torch.startswith(str(made.root)) and not of_yaml.startswith(str(made.root))
