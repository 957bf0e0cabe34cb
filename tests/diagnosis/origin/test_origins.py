"""Origins of faults of real packages: compiled, run with launch probes, walked back."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_server.diagnosis.origin import Origin
from mcp_server.diagnosis.origin.find import Fault, behind, find_origin
from mcp_server.diagnosis.origin.values import ProbedValues
from mcp_server.interpreter import default_python
from mcp_server.model import PackageWorkload
from mcp_server.package.assertion import read_assertion
from mcp_server.package.terms.sizes import find_asserts
from mcp_server.package.view import view_package
from mcp_server.runtime.context import Context
from mcp_server.tools.dump_kernel_io import dump_kernel_io
from mcp_server.tools.kernel_io import KernelIO
from tests.served import served
from tests.support.programs import build
from tests.zoo.names import nightly, thorough

pytestmark = pytest.mark.slow

FindOrigin = Callable[[str], Origin]


@pytest.fixture(scope="session")
def origin(tmp_path_factory: pytest.TempPathFactory) -> FindOrigin:
    """The origin of the fault that a model's bad inputs have; each call is run once."""
    known: dict[str, Origin] = {}

    def find(name: str) -> Origin:
        if name not in known:
            package = build(name)
            context = Context(directory=tmp_path_factory.mktemp(name), python=default_python({}))
            workload = PackageWorkload(package=package, inputs=package.with_name(f"{name}.bad.pt"))
            seen = served(dump_kernel_io, context, workload, save=True, shown=1000)
            found = find_origin(view_package(package), fault_of(seen, package), ProbedValues(seen.launches))
            assert found is not None
            known[name] = found
        return known[name]

    return find


def fault_of(seen: KernelIO, package: Path) -> Fault:
    """The first bad value, or the check that failed."""
    if seen.first_bad is not None and (fault := Fault.of_first_bad(seen.first_bad)) is not None:
        return fault
    assertion = read_assertion(Path(seen.log.path).read_text(errors="replace"))
    assert assertion is not None
    (candidate,) = view_package(package).tracer.trace(assertion)
    return Fault.of_candidate(candidate)


def elements(found: Origin) -> list[str]:
    return [each.text() for each in found.elements if each.kind == "input"]


CLAMPED = "floor(sqrt((clamp(x, 1, 500) - 1) / 499) * 64)"
# By model: what its origin says. All are tried by `make test-thorough`, those of `QUICK` by `make test`.
QUICK = {"carried"}
ORIGINS: dict[str, dict[str, object]] = {
    "buckets": {
        "expression": CLAMPED,
        "bad_value": "64",
        "allowed": "0 to 63 (the rows of table.weight)",
        "elements": ["args[1][2] = 731"],
        "condition.text": "the expression is 64 for x >= 500 and 63 for 499",
        "condition.low": 500,
        "condition.high": None,
        "condition.good": 499,
    },
    # The launch that computed the index is named, not the sort that carried it.
    "carried": {
        "kernel": "cpp_fused_gather_mul_sub",
        "expression": "x * 3 - 2",
        "bad_value": "49",
        "elements": ["args[1][2, 5] = 17"],
        "condition.low": 14,
        "condition.good": 13,
    },
    # A softmax over nothing: the operation that made the NaN, and the mask of the row.
    "masked": {
        "kernel": "softmax",
        "explanation": "-inf - -inf is nan: every element is -inf, and so is their maximum; "
        "args[1][2, 0] to [2, 5], all 6 that decide it, are False",
        "elements": [f"args[1][2, {column}] = False" for column in range(6)],
    },
    # The results of operators are seen, and what they read; of a product the largest addends come first.
    "edges": {"expression": "bucketize(args[1], ", "bad_value": "4", "elements": ["args[1][2] = 74"]},
    "ends": {
        "expression": "cumsum(args[1])",
        "bad_value": "5",
        "elements": ["args[1][1] = 3", "args[1][0] = 1", "args[1][2] = 1"],
    },
    # The kernel adds up in float32, and the conversion of the sum makes the infinity.
    # One element of a reduction by which it overflows: with a usual one in its place it does not.
    # The last row of a window decides: a start of 4 reaches beyond the table as well.
    "window": {
        "expression": "x * 4 + 1",
        "elements": ["args[1][2] = 5"],
        "condition.low": 4,
        "condition.good": 3,
    },
    # Of two elements the one behind most of the failing points is named first and varied.
    "relative": {
        "expression": "x[0] - x[5] + 8",
        "elements": ["args[1][5] = 11"],
        "condition.text": "the expression is -1 or less for x[5] >= 9 and 0 for 8, if the other elements "
        "that it reads stay the same",
    },
    # The value is that of the kernel: in another order of additions the root is a number.
    "layers": {
        "layer": "layers.7",
    },
}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=thorough) for name in ORIGINS]
)
def test_an_origin(origin: FindOrigin, name: str) -> None:
    """Expression, offending elements, and when it goes wrong; of kernels and expressions a part is enough."""
    found = origin(name)
    for path, expected in ORIGINS[name].items():
        value: object = elements(found) if path == "elements" else operator.attrgetter(path)(found)
        if isinstance(expected, list):
            assert isinstance(value, list) and value[: len(expected)] == expected, path
        elif path in ("kernel", "expression"):
            assert str(expected) in str(value), path
        else:
            assert value == expected, path


@pytest.mark.parametrize(
    ("name", "why", "corrected"),
    [
        ("carried", "", ""),
        *nightly(
            ("buckets", "it goes up to 64 by its own limits", ".clamp(max=63)"),
            ("layers", "it is one past the end", ".clamp(max=15)"),
            ("window", "", ""),
            ("relative", "", ""),
        ),
    ],
)
def test_an_expression_is_at_fault_or_its_operands(
    origin: FindOrigin, name: str, why: str, corrected: str
) -> None:
    """An expression that leaves its table by itself is corrected; one that any table fits is not accused."""
    found = origin(name)
    assert found.of_model.startswith(why) and bool(found.of_model) == bool(why)
    assert ("65 rows" in found.advice) == ("up to 64" in why), "one for each index"
    text = found.correction.text if found.correction is not None else ""
    assert text == (f"({found.expression}){corrected}" if corrected else "")


def test_only_what_the_walk_needs_is_kept() -> None:
    """The matrix product whose result only orders the keys is behind the index."""
    view = view_package(build("carried"))
    asserts = (check for kernel in view.wrapper.kernels.values() for check in find_asserts(kernel.source))
    check = next(check for check in asserts if "40" in check.text)
    assert behind(view, Fault(4, "check", check.line)) == [1, 2, 3, 4]
