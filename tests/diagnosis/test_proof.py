"""`proof.py`: few lines that need only torch, and print what the verdict claims."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options
from mcp_server.diagnosis.interventions.input import Leaf, cast, exchange, keep_in_range, replace_element
from mcp_server.diagnosis.kept_files import MOST_LINES, change_code
from mcp_server.model import PROOF_FILE
from mcp_server.worker.protocol import Change
from tests.conftest import ZooPackage
from tests.support.verdicts import of_package

MOST_S = 10.0
IDS = Leaf(0, "args[0]")


@pytest.mark.parametrize(
    ("name", "inputs"), [("ranker", "bad-index"), ("ranker", "bad-dtype"), ("logarithm", "bad-nan")]
)
def test_the_proof_of_a_verdict_fails_passes_and_fails(
    zoo: ZooPackage, tmp_path: Path, name: str, inputs: str
) -> None:
    """An index that ends the process, a dtype and a NaN: at most 25 lines, under 10 s, only torch."""
    found = of_package(zoo, tmp_path, name, inputs)
    assert found.confidence == "proven", found
    (proof,) = (each for each in found.artifacts if each.path.name == PROOF_FILE)
    text = proof.path.read_text()
    assert text.count("\n") <= MOST_LINES
    nodes = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Import | ast.ImportFrom)]
    assert {alias.name.partition(".")[0] for each in nodes for alias in each.names} == {"torch"}
    before = processor_seconds()
    done = subprocess.run([sys.executable, proof.path], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["fails", "passes", "fails"], done
    assert processor_seconds() - before < MOST_S, "in seconds of a processor: others use the machine, too"


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize(
    ("tried", "code"),
    [
        (keep_in_range(IDS, 0, 31), "args[0] = args[0].clamp(0, 31)"),
        (replace_element(IDS, (2, 0), 1), "args[0][2, 0] = 1"),
        (cast(IDS, "float32"), "args[0] = args[0].to(torch.float32)"),
        (exchange((1, 0), ("args[0]", "args[1]")), "args[0], args[1] = args[1], args[0]"),
        (Intervention("k", Kind.KERNEL, "", options=Options(package=Path("b.pt2"))), "package = 'b.pt2'"),
        (Intervention("k", Kind.ENVIRONMENT, "", options=Options(env={"A": "1"})), ""),
        (Intervention("k", Kind.INPUT, "", (Change("align", 0),), after_code="args[0]: own-memory"), ""),
        (Intervention("k", Kind.INPUT, "", (Change("align", 0),), after_code="import os"), ""),
        (Intervention("k", Kind.INPUT, "", (Change("align", 0),), after_code="args[0] = load(x)"), ""),
    ],
)
def test_a_change_is_code_or_there_is_no_proof(tried: Intervention, code: str) -> None:
    """Of the call's arguments and torch only; a spelling of `try-fix` is not Python."""
    assert change_code(tried) == code
