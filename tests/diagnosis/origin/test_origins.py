"""Origins of faults of real packages: compiled, run with launch probes, walked back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from mcp_server.diagnosis.origin import Origin
from mcp_server.diagnosis.origin.find import Fault, behind, find_origin
from mcp_server.diagnosis.origin.values import ProbedValues
from mcp_server.interpreter import default_python
from mcp_server.model import PackageWorkload
from mcp_server.package.assertion import read_assertion
from mcp_server.package.terms.asserts import find_asserts
from mcp_server.package.terms.program import read_program
from mcp_server.package.view import view_package
from mcp_server.runtime.context import Context
from mcp_server.tools.dump_kernel_io import dump_kernel_io
from mcp_server.tools.kernel_io import Choice, KernelIO
from tests.served import served
from tests.support.origins import build
from tests.zoo.names import thorough

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


@thorough
def test_a_bucket_beyond_the_table(origin: FindOrigin) -> None:
    """Expression, offending element and condition of a clamped distance; the table's rows are the bound."""
    found = origin("buckets")
    assert found.expression == "floor(sqrt((clamp(x, 1, 500) - 1) / 499) * 64)"
    assert (found.bad_value, found.allowed) == ("64", "0 to 63 (the rows of table.weight)")
    assert elements(found) == ["args[1][2] = 731"]
    assert found.condition is not None
    assert (found.condition.low, found.condition.high, found.condition.good) == (500, None, 499)
    assert found.condition.text == "the expression is 64 for x >= 500 and 63 for 499"


@thorough
def test_a_logarithm_is_worded(origin: FindOrigin) -> None:
    """A folded `log1p(64)` is shown as the model has it."""
    found = origin("log_buckets")
    assert found.expression == "int(log1p(x) / log1p(64) * 32)"
    assert found.condition is not None and found.condition.low == 64


@thorough
def test_a_sort_and_a_gather_only_carry(origin: FindOrigin) -> None:
    """The launch that computed the index is named, not the sort; the element is followed through both."""
    found = origin("carried")
    assert found.kernel.startswith("cpp_fused_gather_mul_sub")
    assert found.expression == "x * 3 - 2"
    assert [len(found.carriers), found.bad_value] == [1, "49"]
    assert elements(found) == ["args[1][2, 5] = 17"]
    assert found.condition is not None and (found.condition.low, found.condition.good) == (14, 13)


def test_a_fully_masked_row(origin: FindOrigin) -> None:
    """The NaN of a softmax over nothing: the operation that made it, and the mask of the row, all false."""
    found = origin("masked")
    assert "softmax" in found.kernel
    assert found.explanation == (
        "-inf - -inf is nan: all that the maximum is taken of is -inf; "
        "args[1][2, 0] to [2, 5], all 6 that decide it, are False"
    )
    assert elements(found) == [f"args[1][2, {column}] = False" for column in range(6)]


def test_an_operator_that_is_no_carrier_names_its_element(origin: FindOrigin) -> None:
    """A band is of the age at its place: the operator's result is seen, and what it read."""
    found = origin("edges")
    assert found.expression.startswith("bucketize(args[1], ")
    assert (found.bad_value, elements(found)) == ("4", ["args[1][2] = 74"])


@thorough
def test_a_running_sum_names_what_it_adds(origin: FindOrigin) -> None:
    """All lengths up to the end that lies behind the rows, the largest first."""
    found = origin("ends")
    assert (found.expression, found.bad_value) == ("cumsum(args[1])", "5")
    assert elements(found) == ["args[1][1] = 3", "args[1][0] = 1", "args[1][2] = 1"]


def test_a_product_that_leaves_float16(origin: FindOrigin) -> None:
    """The sum as it is in double precision, its largest addends, and how large the row may be."""
    found = origin("half_product")
    total = 128 * sum(range(1, 97)) * 0.125
    assert (
        found.explanation
        == f"addmm adds up 96 products to {total:.7g}, too large for float16, which ends at 65504"
    )
    assert elements(found)[:2] == ["args[0][2, 95] = 12288", "args[0][2, 94] = 12160"]
    assert found.overflow is not None and found.overflow.bound is not None
    assert (found.overflow.input_index, found.overflow.rows) == (0, [2])
    assert 0.9 * 65504 < found.overflow.bound * 96 * 0.125 < 65504


@thorough
def test_a_sum_that_leaves_float16(origin: FindOrigin) -> None:
    """The kernel adds up in float32, and the conversion of the sum makes the infinity."""
    found = origin("half_sum")
    total = 64 * sum(range(1, 97))
    assert found.explanation == f"a sum of 96 elements is {total}, too large for float16, which ends at 65504"
    assert found.overflow is not None and found.overflow.bound is not None
    assert (found.overflow.input_index, found.overflow.rows) == (0, [3])
    assert 0.9 * 65504 < found.overflow.bound * 96 < 65504
    assert all(each.startswith("args[0][3, ") for each in elements(found))


@thorough
def test_a_window_that_starts_too_late(origin: FindOrigin) -> None:
    """The last row of the window decides: a start of 4 reaches beyond the table as well."""
    found = origin("window")
    assert found.expression.startswith("x * 4 + 1")
    assert elements(found) == ["args[1][2] = 5"]
    assert found.condition is not None and (found.condition.low, found.condition.good) == (4, 3)


@thorough
def test_one_of_two_elements_is_to_blame(origin: FindOrigin) -> None:
    """An index of two elements: the one behind most of the failing points is named first and varied."""
    found = origin("relative")
    assert found.expression == "x[0] - x[5] + 8"
    assert elements(found)[0] == "args[1][5] = 11"
    assert found.condition is not None
    assert (
        found.condition.text == "the expression is -1 or less for x[5] >= 9 and 0 for 8 (with x[0] as here)"
    )


@thorough
def test_one_layer_of_twelve(origin: FindOrigin) -> None:
    """The layer's name, the constant in which it differs, and where the same check lies dormant."""
    found = origin("layers")
    assert found.layer == "layers.7"
    assert found.sibling_difference == (
        "/ log1p(64) where the 11 other layers have log1p(128), log1p(160), log1p(192), log1p(256)"
    )
    passes = {each.layer: each.passes for each in found.dormant}
    assert len(passes) == 11
    assert passes["layers.0"] == "good for args[1] from 0 to 127 only"
    assert passes["layers.3"] == "good for args[1] from 0 to 255 only"


@thorough
def test_a_window_of_zero_in_one_layer(origin: FindOrigin) -> None:
    """A NaN of one layer: its comparison has a 0 where the other layers have a window."""
    found = origin("windows")
    assert found.layer == "layers.2"
    assert found.explanation == "-inf - -inf is nan: all that the maximum is taken of is -inf"
    assert found.sibling_difference == "< 0 where the 3 other layers have 3, 5, 9"


@pytest.mark.parametrize("name", ["buckets", pytest.param("window", marks=thorough)])
def test_an_access_without_a_check_has_the_same_origin(origin: FindOrigin, tmp_path: Path, name: str) -> None:
    """From the load that missed the table: what a kernel compiled without index checks leaves to go by."""
    package = build(name)
    view = view_package(package)
    checked = origin(name)
    launch = view.wrapper.launches[checked.fault_launch]
    table = next(each for each in view.package.constants if each.fqn and "table" in each.fqn)
    parameter = next(each.name for each in launch.tensors if each.target == table.name)
    fault = Fault(launch.index, "access", parameter=parameter, shape=table.shape, stride=table.stride)
    workload = PackageWorkload(package=package, inputs=package.with_name(f"{name}.bad.pt"))
    context = Context(directory=tmp_path, python=default_python({}))
    kept = Choice(launches=behind(view, fault))
    seen = anyio.run(partial(dump_kernel_io, context, workload, kept, save=True, shown=1000))
    found = find_origin(view, fault, ProbedValues(seen.launches))
    assert found is not None
    assert (found.expression, found.allowed) == (checked.expression, checked.allowed)
    assert (found.elements, found.condition) == (checked.elements, checked.condition)


@pytest.mark.parametrize(
    ("name", "why", "corrected"),
    [
        ("buckets", "it goes up to 64 by its own limits", ".clamp(max=63)"),
        pytest.param("log_buckets", "it is one past the end", ".clamp(max=31)", marks=thorough),
        ("layers", "it differs from its siblings", ".clamp(max=15)"),
        pytest.param("window", "", "", marks=thorough),
        pytest.param("relative", "", "", marks=thorough),
        ("carried", "", ""),
    ],
)
def test_an_expression_is_at_fault_or_its_operands(
    origin: FindOrigin, name: str, why: str, corrected: str
) -> None:
    """An expression that leaves its table by itself is corrected; one that any table fits is not accused."""
    found = origin(name)
    assert found.of_model.startswith(why) and bool(found.of_model) == bool(why)
    text = found.correction.text if found.correction is not None else ""
    assert text == (f"({found.expression}){corrected}" if corrected else "")


def test_the_launches_behind_the_fault_are_enough(tmp_path: Path) -> None:
    """With the fault known, one run that keeps only what is behind it leads to the same origin."""
    package = build("carried")
    view = view_package(package)
    assertion = read_assertion("index out of bounds: 0 <= tmp2 < 40L")
    assert assertion is not None
    (candidate,) = view.tracer.trace(assertion)
    fault = Fault.of_candidate(candidate)
    context = Context(directory=tmp_path, python=default_python({}))
    workload = PackageWorkload(package=package, inputs=package.with_name("carried.bad.pt"))
    kept = Choice(launches=behind(view, fault))
    seen = anyio.run(partial(dump_kernel_io, context, workload, kept, save=True, shown=1000))
    found = find_origin(view, fault, ProbedValues(seen.launches))
    assert found is not None and found.expression == "x * 3 - 2"


def test_only_what_the_walk_needs_is_kept() -> None:
    """The matrix product whose result only orders the keys is behind the index; other layers are not."""
    view = view_package(build("carried"))
    asserts = (check for kernel in view.wrapper.kernels.values() for check in find_asserts(kernel.source))
    check = next(check for check in asserts if "40" in check.text)
    assert behind(view, Fault(4, "check", check.line)) == [1, 2, 3, 4]
    layers = view_package(build("layers"))
    checked = next(k for k in layers.wrapper.kernels.values() if k.name.endswith("_8"))
    assert behind(layers, Fault(16, "check", read_program(checked).checks[0].line)) == [16]


def test_without_values_the_code_is_worded() -> None:
    """Nothing ran: the expression of the check and what passes it are reported, and no element."""
    view = view_package(build("buckets"))
    assertion = read_assertion("index out of bounds: 0 <= tmp17 < 64L")
    assert assertion is not None
    (candidate,) = view.tracer.trace(assertion)
    found = find_origin(view, Fault.of_candidate(candidate))
    assert found is not None
    assert found.expression == "floor(sqrt((clamp(x, 1, 500) - 1) / 499) * 64)"
    assert (found.bad_value, found.elements) == ("", [])
    assert found.condition is not None and found.condition.text == "good for x <= 499 only"


def test_a_fault_that_is_none_has_no_origin(origin: FindOrigin) -> None:
    """A launch that does not exist, and a line without a check, lead nowhere."""
    origin("buckets")
    view = view_package(build("buckets"))
    assert find_origin(view, Fault(99, "check", 1)) is None
    assert find_origin(view, Fault(2, "check", 1)) is None
