"""Changes of a generated kernel: its text, its binary, and calls of real packages."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.interventions import input as inputs
from mcp_server.diagnosis.interventions.base import Effect, Intervention
from mcp_server.diagnosis.interventions.kernel import edit_kernel, replace_launch
from mcp_server.errors import ProblemError
from mcp_server.package.archive import open_package
from mcp_server.package.kernels import Kernel
from mcp_server.package.wrapper import read_wrapper
from mcp_server.probes import changed_kernel as interposing
from mcp_server.probes.domain_guard import with_domain_guarded, with_exponents_shifted
from mcp_server.probes.rewrite import replaced_once
from tests.conftest import Zoo
from tests.interventions.support import offered, the_call, tried
from tests.served import served
from tests.worker.support import context_in
from tests.zoo.names import thorough

CPP = """\
extern "C"  void  cpp_fused_0(const int64_t* in_ptr0, float* out_ptr0, float* in_out_ptr0)
{
    auto tmp0 = in_ptr0[static_cast<int64_t>(x0)];
    auto tmp1 = tmp0;
    auto tmp2 = c10::convert<int64_t>(tmp1);
    AOTI_TORCH_CHECK((0 <= tmp2) & (tmp2 < 32L), "index out of bounds: 0 <= tmp2 < 32L");
    auto tmp3 = -std::numeric_limits<float>::infinity();
    auto tmp4 = std::exp(tmp3 - tmp5);
    own_helper(tmp4);
    out_ptr0[static_cast<int64_t>(x0)] = tmp4;
    tmp4.store(out_ptr0 + static_cast<int64_t>(x1));
    in_out_ptr0[static_cast<int64_t>(x0)] = tmp4;
}"""

TRITON = """\
@triton.jit
def triton_poi_fused_0(in_ptr0, out_ptr0, XBLOCK : tl.constexpr):
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    tmp1 = tl.where(tmp0, 1.0, float("-inf"))
    tl.store(out_ptr0 + (x0), tmp1, xmask)
"""


def kernel(source: str = CPP, kind: Any = "cpp") -> Kernel:
    return Kernel("cpp_fused_0", kind, "cpp_fused_0", (), 1, source, 40)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("tmp99", "0", "does not occur"),
        ("tmp3-tmp5", "0", "line 47 matches except for spaces: tmp3 - tmp5"),
        ("tmp0", "0", "occurs 2 times in cpp_fused_0: line 42: auto tmp0"),
        ("", "0", "is empty"),
        ("tmp3 - tmp5", "tmp3 = tmp5", "assigns"),
        ("tmp3 - tmp5", "tmp3 += tmp5", "assigns"),
        ("tmp3 - tmp5", "x0++", "assigns"),
        ("tmp3 - tmp5", "system(1)", "calls system"),
        ("tmp3 - tmp5", "std::system(1)", "calls system"),
        ("tmp3 - tmp5", "(unlink)(1)", "parenthesised"),
        ("tmp3 - tmp5", "0; out_ptr0[0]", "holds ';'"),
        ("tmp3 - tmp5", '"text"', "holds"),
        ("tmp3 - tmp5", "[]{ return 0; }()", "holds"),
        ("tmp3 - tmp5", "throw 1", "more than an expression"),
        ("tmp3 - tmp5", "*new float", "more than an expression"),
        ("tmp3 - tmp5", "", "empty"),
    ],
)
def test_what_is_no_pure_expression_is_refused(old: str, new: str, what: str) -> None:
    """The error says what is wrong, and in which line."""
    with pytest.raises(ProblemError) as refused:
        replaced_once(kernel(), old, new)
    assert what in str(refused.value)


IMPURE = ("tl.store(out_ptr0, 0)", "tl.atomic_add(out_ptr0, 1)", "open('x')", "(a := 1)", "x = 1")


@pytest.mark.parametrize("new", ["tl.maximum(tmp0, 0.0)", "-1e30", "tmp0.to(tl.float32)", *IMPURE])
def test_a_triton_expression_is_read_as_python(new: str) -> None:
    """Functions of tl that only compute are accepted. Stores, atomics and other modules are not."""
    if new not in IMPURE:
        assert new in replaced_once(kernel(TRITON, "triton"), 'float("-inf")', new)
    else:
        with pytest.raises(ProblemError):
            replaced_once(kernel(TRITON, "triton"), 'float("-inf")', new)


MINUS_INFINITY = "-std::numeric_limits<float>::infinity()"


def replaced(directory: Path, package: Path, new: str, kernel: str = "") -> Intervention:
    """Replace minus infinity in a kernel, by default the first."""
    opened, call = open_package(package), the_call(package, package.with_name("masked.nan.pt"))
    name = kernel or next(iter(read_wrapper(opened.wrapper_text, opened.kernel_text).kernels))
    return served(edit_kernel, context_in(directory), call, name, MINUS_INFINITY, new)


def relaunched(directory: Path, package: Path, given: str, how: str, launch: int = 0) -> Intervention:
    call = the_call(package, package.with_name(given))
    return served(replace_launch, context_in(directory), call, launch, how)


@thorough
def test_a_finite_mask_mends_the_softmax_of_a_masked_row_and_no_other(
    masked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By text or by launch. Zero in place of the mask has side effects. The package is not changed.

    A library that calls the kernel directly gets another wrapper, with the same outputs.
    """
    before = hashlib.sha256(masked.read_bytes()).hexdigest()
    with monkeypatch.context() as patch:
        patch.setattr(interposing, "calls_through_relocation", lambda _library, _symbol: False)
        direct = replaced(tmp_path, masked, "-2e30f")
    text = replaced(tmp_path, masked, "-1e30f")
    launch = relaunched(tmp_path, masked, "masked.nan.pt", "finite-mask")
    zeros = replaced(tmp_path, masked, "0.0f")
    call = the_call(masked, masked.with_name("masked.nan.pt"))
    trials = tried(tmp_path, call, [direct, text, launch, zeros])
    assert [trial.effect for trial in trials] == [Effect.GONE] * 4
    assert [offered(trial) for trial in trials] == [True, True, True, False]
    assert trials[3].side_effects.rows == (0, 1, 3, 4, 5)
    one, other = (trial.after.facts for trial in trials[:2])
    assert one is not None and other is not None and one.compared is not None
    assert one.compared.outputs[0].rows == (2,) and one.outputs[0].checksum == other.outputs[0].checksum
    assert hashlib.sha256(masked.read_bytes()).hexdigest() == before


@pytest.mark.slow
def test_a_bounds_guard_changes_the_offending_row_only(masked: Path, tmp_path: Path) -> None:
    """The guard equals calls in which only the offending id is replaced."""
    call = the_call(masked, masked.with_name("masked.index.pt"))
    guard = relaunched(tmp_path, masked, "masked.index.pt", "guard")
    clamp = inputs.keep_in_range(inputs.Leaf(0, "args[0]"), 0, 11)
    guarded = Intervention(guard.key, guard.kind, guard.what, (), guard.options, minimal=clamp.minimal)
    by_input, by_kernel = tried(tmp_path, call, [clamp, guarded])
    assert offered(by_input) and offered(by_kernel) and by_kernel.side_effects.known
    assert by_input.after.facts is not None and by_kernel.after.facts is not None
    one, other = by_input.after.facts.outputs, by_kernel.after.facts.outputs
    assert [output.checksum for output in one] == [output.checksum for output in other]


@pytest.mark.slow
def test_an_edit_that_does_not_compile_names_the_line(masked: Path, tmp_path: Path) -> None:
    """The error has the compiler's first error, with its line in the package's kernel.cpp and the code."""
    with pytest.raises(ProblemError, match=r"does not compile: line \d+: .*not declared.*tmpX") as refused:
        replaced(tmp_path, masked, "tmpX")
    number = int(str(refused.value).partition("line ")[2].partition(":")[0])
    line = open_package(masked).kernel_text.split("\n")[number - 1]
    assert MINUS_INFINITY in line


# Operands kept in the domain of their operation.


OPERATIONS_CPP = """\
extern "C" void k(const float* in_ptr0, float* out_ptr0)
{
    auto tmp0 = in_ptr0[static_cast<int64_t>(x0 / 2L)];
    auto tmp1 = tmp0 / tmp2;
    auto tmp3 = 1 / std::sqrt(tmp1);
    auto tmp4 = std::acos(tmp3 - tmp0);
    auto tmp5 = tmp4.log().log1p();
    auto tmp6 = tmp5.pow(tmp0);
    tmp6.store(out_ptr0 + static_cast<int64_t>(x0));
}"""
# Indented as in a wrapper.
OPERATIONS_TRITON = """\
    @triton.jit
    def triton_poi_fused_0(in_ptr0, out_ptr0, XBLOCK : tl.constexpr):
        tmp0 = tl.load(in_ptr0 + (x0 % 16), xmask)
        tmp1 = (tmp0 / tmp2)
        tmp3 = libdevice.acos(tmp1)
        tmp4 = tl_math.log(tmp3)
        tl.store(out_ptr0 + (x0), tmp4, xmask)
"""
INFINITE = "INFINITY"


def changed(source: str, family: str, kind: Any = "cpp") -> list[str]:
    """The lines that a guard changed."""
    guarded = with_domain_guarded(Kernel("k", kind, "k", (), 1, source, 40), family)
    lines = zip(source.split("\n"), guarded.split("\n"), strict=True)
    return [new.strip() for old, new in lines if old != new]


def within(operand: str, low: str, high: str, opened: str) -> str:
    return f"aoti_debug_within({operand}, {low}, {high}, {opened})"


LOG = within("tmp4", "0.0", INFINITE, "true")
ACOS = within("tmp3 - tmp0", "-1.0", "1.0", "false")
REMAINDER = "auto tmp6 = tmp2 - (div_floor_floating_vec(tmp2, tmp3)) * tmp3;"
SMALLEST = "1.1754943508222875e-38"


@pytest.mark.parametrize(
    ("source", "family", "lines"),
    [
        (
            OPERATIONS_CPP,
            "div",
            [
                "auto tmp0 = in_ptr0[static_cast<int64_t>(x0 / aoti_debug_nonzero(2L))];",
                "auto tmp1 = tmp0 / aoti_debug_nonzero(tmp2);",
            ],
        ),
        (OPERATIONS_CPP, "sqrt", [f"auto tmp3 = 1 / std::sqrt({within('tmp1', '0.0', INFINITE, 'true')});"]),
        (OPERATIONS_CPP, "acos", [f"auto tmp4 = std::acos({ACOS});"]),
        (OPERATIONS_CPP, "log", [f"auto tmp5 = {within(f'{LOG}.log()', '-1.0', INFINITE, 'true')}.log1p();"]),
        (OPERATIONS_CPP, "pow", [f"auto tmp6 = {within('tmp5', '0.0', INFINITE, 'true')}.pow(tmp0);"]),
        # Vector code divides by it and multiplies with it. Both are guarded, for the remainder of 1.
        (REMAINDER, "div", [REMAINDER.replace("tmp3", "aoti_debug_nonzero(tmp3)")]),
        # `tl.where` keeps a NaN, and the text stays a program.
        (OPERATIONS_TRITON, "div", ["tmp1 = (tmp0 / tl.where(tmp2 == 0, 1.0, tmp2))"]),
        (
            OPERATIONS_TRITON,
            "acos",
            ["tmp3 = libdevice.acos(tl.where(tmp1 > 1.0, 1.0, tl.where(tmp1 < -1.0, -1.0, tmp1)))"],
        ),
        (OPERATIONS_TRITON, "log", [f"tmp4 = tl_math.log(tl.where(tmp3 < {SMALLEST}, {SMALLEST}, tmp3))"]),
    ],
)
def test_the_operand_that_decides_is_guarded(source: str, family: str, lines: list[str]) -> None:
    """It may be in a function, a method or an operator. Other operands and operations stay."""
    assert changed(source, family, "triton" if source is OPERATIONS_TRITON else "cpp") == lines


@pytest.mark.parametrize("kind", ["cpp", "triton"])
def test_a_kernel_without_the_operation_is_refused(kind: Any) -> None:
    """The error lists the operations of the guard."""
    with pytest.raises(ProblemError, match=r"no operation to guard.*acos, asin"):
        changed("auto tmp0 = in_ptr0[0];", "acos", kind)


@pytest.mark.slow
def test_a_logarithm_is_guarded_by_launch(zoo: Zoo, tmp_path: Path) -> None:
    """The row of the negative number becomes finite, and other rows stay."""
    package = zoo("logarithm")
    call = the_call(package, package.with_name("logarithm.bad-nan.pt"))
    guard = served(replace_launch, context_in(tmp_path), call, 1, "guard-log")
    (trial,) = tried(tmp_path, call, [guard])
    assert offered(trial) and trial.side_effects.known, trial


@pytest.mark.parametrize(
    ("kind", "line", "shifted"),
    [
        ("cpp", "auto tmp4 = tmp3.exp();", "auto tmp4 = (tmp3 - decltype(tmp3)(30.0)).exp();"),
        ("cpp", "auto tmp4 = std::exp(tmp3);", "auto tmp4 = std::exp(tmp3 - decltype(tmp3)(30.0));"),
        ("triton", "tmp4 = libdevice.exp(tmp3)", "tmp4 = libdevice.exp(tmp3 - 30.0)"),
        ("triton", "tmp4 = tl_math.exp(tmp3)", "tmp4 = tl_math.exp(tmp3 - 30.0)"),
    ],
)
def test_every_exponential_of_a_kernel_is_shifted(kind: Any, line: str, shifted: str) -> None:
    """Vectors, single numbers and Triton are changed. A kernel without an exponential is rejected."""
    kernel = Kernel("k", kind, "k", (), 1, f"{line}\n{line}")
    assert with_exponents_shifted(kernel, 30) == f"{shifted}\n{shifted}"
    with pytest.raises(ProblemError):
        with_exponents_shifted(replace(kernel, source="tmp4 = tmp3.expm1()"), 30)
