"""Models of one package that are the same under several names."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.package.archive import open_package
from mcp_server.package.defects import same_models
from tests.conftest import ZooPackage
from tests.package.archives import Members, changed, name_ending


def twice(members: Members) -> None:
    """The one model again, under the name `coast`."""
    again = {name.replace("/model/", "/coast/"): data for name, data in members.items()}
    members.update(again)


def twice_with_other_weights(members: Members) -> None:
    """The same, with a library of the same size and other bytes."""
    twice(members)
    library = name_ending(members, "wrapper.so").replace("/model/", "/coast/")
    members[library] = members[library][:-1] + bytes([members[library][-1] ^ 1])


@pytest.mark.parametrize(("change", "found"), [(twice, ("coast",)), (twice_with_other_weights, ())])
def test_models_that_are_the_same_byte_for_byte(
    zoo: ZooPackage, tmp_path: Path, change: object, found: tuple[str, ...]
) -> None:
    """They are reported as a note, since it may be intended. One different byte makes two models."""
    assert callable(change)
    package = open_package(changed(zoo("ranker"), tmp_path / "two.pt2", change), "model")
    assert same_models(package) == found
    assert [d.fatal for d in package.defects if d.slug == "same_model"] == [False] * len(found)


def test_a_single_model_has_no_twin(zoo: ZooPackage) -> None:
    """It is one under one name."""
    assert same_models(open_package(zoo("ranker"))) == ()
