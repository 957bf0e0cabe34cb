"""A diagnosis that was stopped, or ran out of budget, says what it knows, and continues where it was."""

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.diagnosis.diagnose import diagnose
from mcp_server.jobs.gpus import Waits, leased
from mcp_server.jobs.manager import Job, Manager
from mcp_server.jobs.store import Store
from mcp_server.jobs.supervisor import children_of
from mcp_server.model import CommandWorkload, PackageWorkload, Record, ScriptWorkload, Verdict, Workload
from mcp_server.operations.arguments import DiagnoseArguments, validated
from mcp_server.operations.table import DIAGNOSE
from mcp_server.operations.work import remember, resumed
from mcp_server.runtime.context import Context
from mcp_server.runtime.steps import StepCache, in_words
from mcp_server.server.running import answered
from tests.conftest import Zoo
from tests.server.clients import data_of
from tests.zoo.names import THOROUGH, thorough

# A stopped diagnosis.


def test_a_stopped_job_answers_with_what_it_knew(tmp_path: Path) -> None:
    """The partial result comes with the handle, now and from the disk, and with the call that continues."""
    known = Verdict(outcome="inconclusive", summary="the run failed; its cause is not known yet")

    async def work(job: Job) -> Verdict:
        job.knows(known)
        await anyio.sleep_forever()
        raise AssertionError

    async def stopped() -> list[dict[str, Any]]:
        store = Store(tmp_path)
        async with Manager.open(store) as manager:
            job = manager.start("diagnose", work)
            remember(job.path, "diagnose", DiagnoseArguments(script="serve.py"))
            await manager.wait(job.id, 0.05)
            now = await manager.stop(job.id)
        async with Manager.open(store) as manager:
            return [data_of(await answered(now)), data_of(await answered(await manager.wait(job.id, 0)))]

    now, later = anyio.run(stopped)
    assert now["state"] == "stopped" and now["result"]["summary"] == known.summary
    assert {**later, "wall_s": 0} == {**now, "wall_s": 0}
    (step,) = now["next_steps"]
    given: Any = validated(DIAGNOSE.arguments, step["arguments"])
    assert given.log == now["job_id"]
    more: Any = resumed(Store(tmp_path), given.model_copy(update={"symptom": "nan"}))[0]
    assert (more.script, more.symptom) == ("serve.py", "nan"), "the call that continues may add arguments"


# Budgets, and resumed jobs.


def context_of(job: Path, **more: object) -> Context:
    """Make a context of a job's directory, with the steps that earlier runs kept."""
    job.mkdir(exist_ok=True)
    return Context(directory=job, python=Path(sys.executable), kept=StepCache.read(job), **more)  # type: ignore[arg-type]


def bad_index(zoo: Zoo) -> PackageWorkload:
    package = zoo("ranker")
    return PackageWorkload(package=package, inputs=package.with_name("ranker.bad-index.pt"))


def diagnosed(context: Context, workload: Workload, budget_s: float = 120) -> Verdict:
    async def work() -> Verdict:
        return await diagnose(context, workload, budget_s=budget_s)

    return anyio.run(work)


def stopped_at(step: str, context: Context, workload: Workload) -> Verdict:
    """What a diagnosis knows that is cancelled when `step` begins."""
    known: list[Record] = []

    async def work() -> None:
        with anyio.CancelScope() as scope:
            context.progress = lambda line: scope.cancel() if line.endswith(in_words(step)) else None
            context.knows = known.append
            await diagnose(context, workload)

    anyio.run(work)
    (verdict,) = known
    assert isinstance(verdict, Verdict)
    return verdict


@pytest.mark.slow
@pytest.mark.usefixtures("no_shared_processes")
@pytest.mark.parametrize("budget_s", [5, 20] if THOROUGH else [5])
def test_the_budget_holds(tmp_path: Path, budget_s: float) -> None:
    """A program that takes longer is ended in time. The verdict says so, and accuses nobody of hanging."""
    script = tmp_path / "slow.py"
    script.write_text("import time\ntime.sleep(600)\n")
    began = time.monotonic()
    found = diagnosed(context_of(tmp_path / "job"), ScriptWorkload(script=script, cwd=tmp_path), budget_s)
    assert time.monotonic() - began < budget_s + 20
    assert (found.outcome, found.category) == ("inconclusive", None)
    messages = [found.summary, *found.decisions, *(e.fact for e in found.evidence)]
    assert any("budget" in line for line in messages), messages
    assert children_of(os.getpid()) == []
    assert f"The budget of {budget_s} s ended at step 1: running slow.py (in" in found.summary
    assert found.next_steps[0].arguments == {"log": "job", "budget_s": 120}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "doing", "budget_s"), [("slow.py", "exporting", 20), ("torch.py", "importing torch", 5)]
)
def test_a_program_that_still_builds_is_slow(file: str, doing: str, budget_s: float, tmp_path: Path) -> None:
    """An import or export that uses the processor gets the budget a second time. Then the verdict says so."""
    endless = "while True: sum(range(10000))\n"
    script, other = tmp_path / "slow.py", tmp_path / file
    script.write_text(
        "import torch\nclass Slow(torch.nn.Module):\n    def forward(self, x):\n"
        f"        {endless}torch.export.export(Slow(), (torch.ones(3),))\n"
    )
    if other != script:
        other.write_text(endless)
    began = time.monotonic()
    found = diagnosed(context_of(tmp_path / "job"), ScriptWorkload(script=script, cwd=tmp_path), budget_s)
    assert budget_s < time.monotonic() - began < 2 * budget_s + 20
    assert (found.outcome, found.category, found.bystanders) == ("inconclusive", None, [])
    assert re.search(rf"still {doing} .* after \d+ s\. It had worked on that for \d+ s", found.summary)
    assert found.next_steps[0].arguments == {"log": "job", "budget_s": 120}


@pytest.mark.slow
def test_waiting_for_a_gpu_spends_no_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that waits for twice the budget gets its verdict. The wait is in the cost."""
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr("mcp_server.runtime.context.DEVICES", tmp_path)
    monkeypatch.setattr("mcp_server.jobs.gpus.lease_root", lambda: tmp_path / "leases")
    messages: list[str] = []
    context = context_of(tmp_path / "job", progress=messages.append)
    found: list[Verdict] = []

    async def other_job(started: anyio.Event) -> None:
        async with leased(["0"], Waits("diagnose job_0000000a")):
            started.set()
            await anyio.sleep(6)

    async def work() -> None:
        started = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other_job, started)
            await started.wait()
            program = CommandWorkload(argv=["sh", "-c", "echo broken >&2; exit 3"], cwd=tmp_path)
            found.append(await diagnose(context, program, budget_s=3))

    began = time.monotonic()
    anyio.run(work)
    wall_s = time.monotonic() - began
    cost = found[0].cost
    assert cost.runs == 1 and "budget" not in found[0].summary
    # The cost is in whole milliseconds, so rounding can make it longer than what this test measured.
    assert 5 < cost.waited_s <= cost.wall_s <= wall_s + 0.001 < cost.waited_s + 60
    assert "waiting for GPU 0, in use by diagnose job_0000000a" in messages
    assert found[0].next_steps, "nothing names the cause, so that something has to be done next"


@pytest.mark.slow
def test_a_stopped_diagnosis_says_what_it_knows(zoo: Zoo, tmp_path: Path) -> None:
    """The failure was seen, but not its cause. No more is claimed, and the verdict says where it stopped."""
    found = stopped_at("index-values", context_of(tmp_path / "job"), bad_index(zoo))
    assert found.confidence != "proven" and found.cost.runs == 1
    assert found.decisions[-1] == "stopped during look_at_indices"
    assert "was stopped at step" in found.summary and found.next_steps[0].arguments == {"log": "job"}


@thorough
def test_going_on_gathers_nothing_twice(zoo: Zoo, tmp_path: Path) -> None:
    """A resumed diagnosis gives the same verdict, and does not repeat the run."""
    job = tmp_path / "job"
    stopped_at("index-values", context_of(job), bad_index(zoo))
    found = diagnosed(context_of(job), bad_index(zoo))
    assert (found.category, found.confidence) == ("index_out_of_bounds", "proven")
    assert any("index-values" in path.name for path in job.iterdir())
    again = diagnosed(context_of(job), bad_index(zoo))
    assert again.cost.runs == 0
    assert again.evidence and [e.fact for e in again.evidence] == [e.fact for e in found.evidence]


@thorough
def test_other_inputs_are_other_evidence(zoo: Zoo, tmp_path: Path) -> None:
    """Another content at the same path is examined again."""
    inputs = tmp_path / "batch.pt"
    package = zoo("ranker")
    workload = PackageWorkload(package=package, inputs=inputs)
    inputs.write_bytes(package.with_name("ranker.bad-index.pt").read_bytes())
    assert diagnosed(context_of(tmp_path / "job"), workload).outcome == "fault"
    inputs.write_bytes(package.with_name("ranker.inputs.pt").read_bytes())
    found = diagnosed(context_of(tmp_path / "job"), workload)
    assert (found.outcome, found.cost.runs > 0) == ("no_fault", True)
