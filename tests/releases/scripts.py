"""Failing programs of the corpus, run and diagnosed under a release. Answers are read after the verdict."""

from __future__ import annotations

import shutil
from functools import partial

import anyio

from benchmarks.corpus.answers import PROGRAMS, Answer
from benchmarks.corpus.judge import judge
from benchmarks.corpus.validate import select
from mcp_server.diagnosis.diagnose import diagnose
from mcp_server.model import ScriptWorkload
from tests.releases.trial import Outcome, Release, Trials

# One of an index, of what a caller gives, and of an operator's fake function.
NAMES = ["lag_features", "fraud_window", "tile_rotate"]


def diagnosed(release: Release, answer: Answer) -> Outcome:
    """The category and the guilty party are those of the answer."""
    home = release.directory / "scripts" / answer.name
    home.mkdir(parents=True, exist_ok=True)
    script = home / f"{answer.name}.py"
    shutil.copyfile(PROGRAMS / script.name, script)
    workload = ScriptWorkload(script=script, cwd=home, python=release.python)
    verdict = anyio.run(diagnose, release.context(), workload)
    score = judge(answer, "script", verdict.model_dump(mode="json"), script)
    told = f"{score.outcome} {score.category}, {score.guilty}: {score.summary}"
    return "" if score.right else told


def trials(release: Release) -> Trials:
    return {answer.name: partial(diagnosed, release, answer) for answer in select("cpu", NAMES)}
