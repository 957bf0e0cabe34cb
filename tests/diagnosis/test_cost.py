"""Slow calls, loads and builds, and memory: a faster change is proven once timed, before that likely."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mcp_server.cost.signals import signals_of
from mcp_server.package.view import view_package
from tests.conftest import ROOT, Zoo
from tests.support.command import CLI, environment, output_of
from tests.zoo.names import thorough

pytestmark = pytest.mark.slow


class Table(torch.nn.Module):  # type: ignore[misc]
    """Multiplies two tables that depend on its weights only."""

    weights: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(256, 256)
        self.register_buffer("weights", torch.randn(900, 900))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self.weights.sin() @ self.weights.cos()
        result: torch.Tensor = self.linear(x) + product[0, :256]
        return result


def diagnosed(tmp_path: Path, *words: str) -> dict[str, Any]:
    argv = [*CLI, "diagnose", *words, "--json"]
    env = environment(tmp_path)
    done = output_of(argv, cwd=ROOT, env=env, timeout=400)
    return json.loads(done.stdout) if done.stdout else {"error": done.stderr}


class Rows(torch.nn.Module):  # type: ignore[misc]
    """Divides a whole table by the length of its rows, and uses four rows, in one kernel."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(512, 4000))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        table = self.table.t().contiguous()
        result: torch.Tensor = (table / table.norm(dim=1, keepdim=True))[rows]
        return result


class Chosen(Rows):
    """Multiplies a one-hot matrix with a table."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        ones = torch.nn.functional.one_hot(rows, 4000).to(self.table.dtype)
        return ones @ self.table.t()


class Ranked(torch.nn.Module):  # type: ignore[misc]
    """Sorts rows, and uses the first values or all."""

    def __init__(self, used: int) -> None:
        super().__init__()
        self.used = used

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sort(dim=1, descending=True)[0][:, : self.used]


class LastRow(Table):
    """Multiplies all rows, and uses the last one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.linear(x.sin()).relu()
        return rows[:, -1]


class Halved(torch.nn.Module):  # type: ignore[misc]
    """A number in double precision makes everything after it double."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.rand(512, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.sigmoid(x * self.scale)
        return x


def timed(tmp_path: Path, model: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    """Compile the model, and diagnose its slow call."""
    package, exported, inputs = (tmp_path / name for name in ("m.pt2", "m.ep.pt2", "in.pt"))
    program = torch.export.export(model.eval(), given)
    torch.export.save(program, exported)
    torch._inductor.aoti_compile_and_package(program, package_path=str(package))
    torch.save(given, inputs)
    words = (str(package), "--inputs", str(inputs), "--symptom", "slow", "--budget-s", "24")
    return diagnosed(tmp_path, *words, "--exported", str(exported))


TABLE, ROWS = (torch.randn(2, 256),), (torch.randint(0, 4000, (4,)),)
WORK = "the same work in every call, from weights alone"


@thorough
@pytest.mark.filterwarnings("ignore")  # of the compile
@pytest.mark.parametrize(
    ("model", "given", "headline", "line"),
    [
        (Table, TABLE, WORK, "self.weights.cos()"),
        (Rows, ROWS, WORK, "table.norm"),
        (Chosen, (torch.randint(0, 4000, (200,)),), "a product with a one-hot matrix", "ones @"),
        (lambda: Ranked(3), (torch.randn(64, 8192),), "a sort takes most of the call", "x.sort"),
        (LastRow, (torch.randn(4, 900, 256),), "a product computes rows that nothing uses", "self.linear("),
        (Halved, (torch.randn(2048, 512),), "kernels compute in double precision", "torch.sigmoid"),
    ],
)
def test_a_loss_is_proven_by_a_build_without_it(
    tmp_path: Path, model: Any, given: tuple[torch.Tensor, ...], headline: str, line: str
) -> None:
    """The changed program is compiled and timed, and the model's line is named."""
    torch.manual_seed(0)
    proven = timed(tmp_path, model(), given)
    assert (proven["category"], proven["confidence"]) == ("cost", "proven"), proven["summary"]
    assert proven["headline"] == headline
    assert any(line in each["code"] for each in proven["guilty"]["model_locations"])
    assert "returned the same outputs" in proven["confirmed"]["after"]


@thorough
@pytest.mark.filterwarnings("ignore")  # of the compile
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_the_caller_asks_for_is_no_loss(tmp_path: Path, dtype: torch.dtype) -> None:
    """A sort whose result is used completely, and inputs in double precision, are not accused."""
    found = timed(tmp_path, Ranked(8192), (torch.randn(64, 8192, dtype=dtype),))
    assert (found["outcome"], found["guilty"]) == ("no_fault", None), found["summary"]


CALLS = """
import resource, torch
program = torch.export.export(torch.nn.Linear(8, 4096), (torch.randn(1024, 8),))
run = torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(program))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
kept = []
for _ in range(40):
    {keep}
    kept.append(run(torch.randn(1024, 8)))
"""


ONCE = """
import torch
run = torch._inductor.aoti_load_package({package!r})
run(torch.randint(0, 32, (8, 6)))
"""


@thorough
@pytest.mark.parametrize(
    ("keep", "outcome", "summary"),
    [
        ("pass", "fault", "after 32 calls"),
        ("del kept[:-3]", "no_fault", "after 32 calls"),
        ("resource.setrlimit(resource.RLIMIT_AS, [used + 300 * 2**20] * 2)", "fault", "calls are still in"),
    ],
)
def test_outputs_that_pile_up_use_the_memory(tmp_path: Path, keep: str, outcome: str, summary: str) -> None:
    """If more outputs are in use after more calls, they are the cause. A bounded number is not."""
    script = tmp_path / "serve.py"
    script.write_text(CALLS.format(keep=keep))
    found = diagnosed(tmp_path, "--script", str(script), "--symptom", "memory", "--budget-s", "120")
    assert found["outcome"] == outcome and summary in found["summary"].lower(), found["summary"]


def test_a_script_with_few_calls_is_timed(zoo: Zoo, tmp_path: Path) -> None:
    """The last call is timed."""
    script = tmp_path / "once.py"
    script.write_text(ONCE.format(package=str(zoo("ranker"))))
    found = diagnosed(tmp_path, "--script", str(script), "--symptom", "slow", "--budget-s", "24")
    assert "A call takes" in found["summary"], found


@thorough
def test_a_load_is_timed_with_and_without_the_test_of_the_processor(zoo: Zoo, tmp_path: Path) -> None:
    """A load has times. Whether the variable saves time depends on the machine."""
    found = diagnosed(tmp_path, str(zoo("ranker")), "--symptom", "slow-load")
    assert found["outcome"] in ("fault", "no_fault") and "TORCHINDUCTOR_VEC_ISA_OK=1" in found["summary"]
    assert (found["outcome"] == "fault") == (found["confidence"] == "proven")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("plugin", {"decomposed tanh", "plain operators"}),
        pytest.param("select", {"topk instead of the sort"}, marks=thorough),
        ("ranker", set()),
        pytest.param("norms", set(), marks=thorough),
    ],
)
def test_a_package_shows_what_may_cost_time(zoo: Zoo, model: str, expected: set[str]) -> None:
    """Signals are read from the package. A package without such work has none."""
    view = view_package(zoo(model), "model")
    assert {found.signal.name for found in signals_of(view)} == expected


class Unrolled(torch.nn.Module):  # type: ignore[misc]
    """A loop that export unrolls."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = (x * 0.5).sin()
        return x


@pytest.mark.parametrize(("budget", "ends"), [("30", False), pytest.param("300", True, marks=thorough)])
def test_a_build_names_the_line_of_an_unrolled_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: str, ends: bool
) -> None:
    """The line with the most nodes is named with its passes, even if the build does not end in time."""
    exported, compiler = tmp_path / "m.ep.pt2", tmp_path / "g++"
    torch.export.save(torch.export.export(Unrolled(), (torch.randn(8),)), exported)
    if not ends:
        compiler.write_text("#!/bin/sh\nexec sleep 600\n")
        compiler.chmod(0o755)
        monkeypatch.setenv("CXX", str(compiler))
    found = diagnosed(tmp_path, "--exported", str(exported), "--symptom", "slow-build", "--budget-s", budget)
    assert found["category"] == "cost" and found["cost"]["wall_s"] < 1.2 * float(budget), found
    assert any("the C++ compiler: " in each["fact"] for each in found["evidence"]) is ends
    assert any("100% of nodes, 20 passes" in each["fact"] for each in found["evidence"])
    assert ends or ("did not end within 30 s" in found["summary"] and found["confidence"] == "likely")


def test_a_build_needs_its_program(zoo: Zoo, tmp_path: Path) -> None:
    """A package alone cannot be built again, and the error says what to pass."""
    found = diagnosed(tmp_path, str(zoo("ranker")), "--symptom", "slow-build")
    assert "timing a build needs a program to build" in json.dumps(found)


def test_what_is_slow_needs_inputs(zoo: Zoo, tmp_path: Path) -> None:
    """Nothing is timed without a call."""
    found = diagnosed(tmp_path, str(zoo("ranker")), "--symptom", "slow")
    assert "timing a call needs inputs" in json.dumps(found)
