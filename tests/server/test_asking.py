"""Where a call would be refused for want of an answer, a client that can ask its user is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_types import ElicitRequestParams, ElicitResult

from mcp_server.jobs.store import Store
from mcp_server.server.app import make_server
from tests.conftest import ZooPackage


def called(directory: Path, arguments: dict[str, Any], answer: ElicitResult | None) -> tuple[Any, list[str]]:
    """The result of inspect_package, and what was asked; without `answer` nobody can be asked."""
    questions: list[str] = []

    async def reply(_: object, params: ElicitRequestParams) -> ElicitResult:
        questions.append(params.message)
        assert answer is not None
        return answer

    async def talk() -> Any:
        options: dict[str, Any] = {"elicitation_callback": reply} if answer else {}
        async with Client(make_server(Store(directory / "jobs")), mode="legacy", **options) as client:
            return await client.call_tool("inspect_package", arguments)

    return anyio.run(talk), questions


def test_the_answer_of_the_user_is_taken(zoo: ZooPackage, tmp_path: Path) -> None:
    """A model that the package does not hold: the user names one that it holds, and the call goes on."""
    arguments = {"package": str(zoo("ranker")), "model_name": "other"}
    accepted = ElicitResult(action="accept", content={"model_name": "model"})
    result, questions = called(tmp_path, arguments, accepted)
    assert not result.is_error
    assert len(questions) == 1
    assert "has no model of this name" in questions[0]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        ElicitResult(action="decline"),
        ElicitResult(action="accept", content={"model_name": 7}),
        ElicitResult(action="accept", content={"model_name": "third"}),
    ],
    ids=["nobody to ask", "declined", "unfit", "wrong again"],
)
def test_without_a_fit_answer_the_call_is_refused(
    zoo: ZooPackage, tmp_path: Path, answer: ElicitResult | None
) -> None:
    """The refusal is the one that a client without questions gets, and nobody is asked twice."""
    arguments = {"package": str(zoo("ranker")), "model_name": "other"}
    result, questions = called(tmp_path, arguments, answer)
    assert result.is_error
    assert "has no model of this name" in result.content[0].text
    assert len(questions) == (answer is not None)
