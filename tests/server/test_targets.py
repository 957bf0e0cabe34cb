"""What a command works on stands without a name, in every command alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.cli.parameters import arguments_of, targets_of
from mcp_server.errors import ProblemError
from mcp_server.operations.arguments import (
    CheckArguments,
    DumpArguments,
    ExplainArguments,
    PairArguments,
    RepeatArguments,
    TryArguments,
)
from tests.conftest import ZooPackage


@pytest.mark.parametrize("model", [CheckArguments, DumpArguments, PairArguments, RepeatArguments])
def test_a_package_stands_without_a_name(model: type, zoo: ZooPackage) -> None:
    """As the option `--package` would say it; an exported program is told apart by its content."""
    package = str(zoo("ranker"))
    found = arguments_of(model, {"target": package, "rest": []})
    assert found == arguments_of(model, {"package": package})
    if "exported" in model.model_fields:  # type: ignore[attr-defined]
        program = package.replace(".pt2", ".exported.pt2")
        assert arguments_of(model, {"target": program}) == arguments_of(model, {"exported": program})


def test_a_target_that_the_command_does_not_take_is_refused() -> None:
    """The error says what it takes."""
    with pytest.raises(ProblemError, match="does not take a script") as raised:
        arguments_of(CheckArguments, {"target": "serve.py"})
    assert raised.value.allowed == "a package (.pt2)"


def test_a_command_that_runs_nothing_has_no_target() -> None:
    """`explain-error` takes a text or a log, each by its name; `try-fix` has its package already."""
    assert not targets_of(ExplainArguments) and not targets_of(TryArguments)
    with pytest.raises(ProblemError):
        arguments_of(CheckArguments, {"target": str(Path("nothing.txt"))})
