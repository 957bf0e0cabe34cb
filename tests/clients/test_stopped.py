"""A diagnosis that its client stops in the middle: nothing runs on, and what had finished is taken up again.

Skipped unless `make test-clients` installed the clients.
"""

from __future__ import annotations

import json
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.clients.agents import AGENTS, CUTTING, finish, gone, started, stop, written
from tests.clients.conftest import Clients
from tests.clients.model import Model
from tests.conftest import ZooPackage

pytestmark = [pytest.mark.clients, pytest.mark.slow]

LIMIT_S = 30  # for one call; until then the program has run, also on a busy machine

PROGRAM = """
    import sys
    import torch
    from torch._inductor import aoti_load_package

    with open(__file__ + ".runs", "a") as runs:
        runs.write("run\\n")
    aoti_load_package(sys.argv[1])(torch.full((4, 6), 97))
"""

# The interpreter; the worker that comes after the program's own run leaves a daemon behind and waits, once.
INTERPRETER = """#!/bin/sh
case "$*" in
*fork_server.py*) exit 1;;
*worker/main.py*) if [ ! -e {ids} ]; then
  setsid sleep 300 & echo "$$ $!" > {ids}.part; mv {ids}.part {ids}; exec sleep 300
fi;;
esac
exec {python} "$@"
"""


def workload(zoo: ZooPackage, directory: Path) -> dict[str, Any]:
    """The arguments of a diagnosis that gets as far as the program's own run, and waits there."""
    script, python = directory / "serve.py", directory / "python"
    script.write_text(textwrap.dedent(PROGRAM))
    python.write_text(INTERPRETER.format(ids=directory / "ids", python=sys.executable))
    python.chmod(0o755)
    arguments = [str(zoo("ranker"))]
    return {"script": str(script), "script_args": arguments, "python": str(python), "wait_s": 45}


def check_taken_up(name: str, clients: Clients, directory: Path) -> None:
    """The model names the job, and is given the verdict; the program was not run a second time."""
    (job,) = (Path(clients.environment()["AOTI_DEBUG_STATE"]) / "jobs").iterdir()
    assert json.loads((job / "01-capture" / "step.json").read_text())["finished"]["ending"] == "exit"
    model = Model(("diagnose", {"log": job.name, "wait_s": 45}))
    with started(name, clients, model) as process:
        finish(process)
    verdict = model.data()[-1]
    assert (verdict["category"], verdict["confidence"]) == ("index_out_of_bounds", "proven")
    assert (directory / "serve.py.runs").read_text().split() == ["run"]


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal(
    name: str, number: signal.Signals, clients: Clients, zoo: ZooPackage, tmp_path: Path
) -> None:
    """Ctrl-C and SIGTERM to the client end the diagnosis; the next conversation goes on with it."""
    with started(name, clients, Model(("diagnose", workload(zoo, tmp_path)))) as process:
        pids = written(tmp_path / "ids")
        stop(name, process, number)
        assert gone(pids)
    check_taken_up(name, clients, tmp_path)


@pytest.mark.parametrize("name", CUTTING)
def test_the_clients_own_limit(name: str, clients: Clients, zoo: ZooPackage, tmp_path: Path) -> None:
    """A call that the client cuts ends the diagnosis as well, while the client itself goes on to its end."""
    model = Model(("diagnose", workload(zoo, tmp_path)))
    with started(name, clients, model, limit_s=LIMIT_S) as process:
        assert gone(written(tmp_path / "ids"), within_s=2 * LIMIT_S)
        finish(process)
    check_taken_up(name, clients, tmp_path)
