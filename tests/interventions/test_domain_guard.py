"""Operands kept in the domain of their operation, in the text of kernels and in calls of real packages."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, Options
from mcp_server.diagnosis.interventions.kernel import replace_launch, with_constant_of_siblings
from mcp_server.diagnosis.interventions.run import TriedCall
from mcp_server.diagnosis.origin import OddConstant, Origin
from mcp_server.errors import ProblemError
from mcp_server.package.archive import open_package
from mcp_server.package.kernels import Kernel, KernelKind
from mcp_server.probes.changed_kernel import kernel_named, with_kernel
from mcp_server.probes.domain_guard import with_domain_guarded, with_exponents_shifted
from tests.conftest import ZooPackage
from tests.interventions.support import offered, the_call, tried
from tests.served import served
from tests.support.origins import recorded
from tests.worker.support import context_in, saved
from tests.zoo.names import thorough

CPP = """\
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
TRITON = """\
@triton.jit
def triton_poi_fused_0(in_ptr0, out_ptr0, XBLOCK : tl.constexpr):
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    tmp1 = (tmp0 / tmp2)
    tmp3 = libdevice.acos(tmp1)
    tmp4 = tl_math.log(tmp3)
    tl.store(out_ptr0 + (x0), tmp4, xmask)
"""
INFINITE = "std::numeric_limits<double>::infinity()"


def changed(source: str, family: str, kind: KernelKind = "cpp") -> list[str]:
    """The lines that a guard changed."""
    guarded = with_domain_guarded(Kernel("k", kind, "k", (), 1, source, 40), family)
    lines = zip(source.split("\n"), guarded.split("\n"), strict=True)
    return [new.strip() for old, new in lines if old != new]


@pytest.mark.parametrize(
    ("family", "lines"),
    [
        (
            "div",
            [
                "auto tmp0 = in_ptr0[static_cast<int64_t>(x0 / aoti_debug_nonzero(2L))];",
                "auto tmp1 = tmp0 / aoti_debug_nonzero(tmp2);",
            ],
        ),
        ("sqrt", [f"auto tmp3 = 1 / std::sqrt(aoti_debug_within(tmp1, 0.0, {INFINITE}, true));"]),
        ("acos", ["auto tmp4 = std::acos(aoti_debug_within(tmp3 - tmp0, -1.0, 1.0, false));"]),
        (
            "log",
            [
                f"auto tmp5 = aoti_debug_within(aoti_debug_within(tmp4, 0.0, {INFINITE}, true).log(), -1.0, "
                f"{INFINITE}, true).log1p();"
            ],
        ),
        ("pow", [f"auto tmp6 = aoti_debug_within(tmp5, 0.0, {INFINITE}, false).pow(tmp0);"]),
    ],
)
def test_the_operand_that_decides_is_guarded(family: str, lines: list[str]) -> None:
    """As a function, a method or an operator; the other operand and other operations stay."""
    assert changed(CPP, family) == lines


def test_the_divisor_of_a_remainder_is_one() -> None:
    """Vector code divides by it and multiplies with it: both are guarded, so that it is that of 1."""
    line = "auto tmp6 = tmp2 - (div_floor_floating_vec(tmp2, tmp3)) * tmp3;"
    one = "aoti_debug_nonzero(tmp3)"
    assert changed(line, "div") == [f"auto tmp6 = tmp2 - (div_floor_floating_vec(tmp2, {one})) * {one};"]


def test_a_triton_kernel_is_guarded_as_python() -> None:
    """`tl.where` keeps a NaN as it is; the text stays a program."""
    assert changed(TRITON, "div", "triton") == ["tmp1 = (tmp0 / tl.where(tmp2 == 0, 1.0, tmp2))"]
    (acos,) = changed(TRITON, "acos", "triton")
    assert acos == "tmp3 = libdevice.acos(tl.where(tmp1 > 1.0, 1.0, tl.where(tmp1 < -1.0, -1.0, tmp1)))"
    (log,) = changed(TRITON, "log", "triton")
    assert ast.parse(log) and "tmp3 < 1.1754943508222875e-38" in log


def test_a_kernel_as_a_wrapper_embeds_it_is_guarded(tmp_path: Path) -> None:
    """Recorded on CUDA: indented, with `%` in its indices, which stays as it is."""
    view = recorded("logarithm", tmp_path)
    kernel = next(each for each in view.wrapper.kernels.values() if "log" in each.name)
    assert changed(kernel.source, "log", "triton") == [
        "tmp5 = tl_math.log(tl.where(tmp4 < 1.1754943508222875e-38, 1.1754943508222875e-38, tmp4))"
    ]
    with pytest.raises(ProblemError):
        with_domain_guarded(kernel, "div")


@pytest.mark.parametrize("kind", ["cpp", "triton"])
def test_a_kernel_without_the_operation_is_refused(kind: KernelKind) -> None:
    """The error lists the operations that the guard is for."""
    with pytest.raises(ProblemError, match=r"no operation to guard.*acos, asin") as refused:
        changed("auto tmp0 = in_ptr0[0];", "acos", kind)
    assert "acos" in str(refused.value)


@pytest.mark.slow
def test_a_logarithm_is_guarded_by_launch(zoo: ZooPackage, tmp_path: Path) -> None:
    """The row of the negative number is finite with it, the others are as before."""
    package = zoo("logarithm")
    call = the_call(package, package.with_name("logarithm.bad-nan.pt"))
    guard = served(replace_launch, context_in(tmp_path), call, 1, "guard-log")
    (trial,) = tried(tmp_path, call, [guard])
    assert offered(trial) and trial.side_effects.known, trial


def faulty_norm(zoo: ZooPackage, directory: Path) -> tuple[Path, TriedCall, Intervention]:
    """A stack of layer norms whose first has an epsilon that float32 takes for 0, and a constant row."""
    package = zoo("norms")
    kernel = open_package(package).wrapper.run.launches[0].kernel
    constant = OddConstant(value=1e-5, usual=1e-50)
    origin = Origin(
        launch_index=0, kernel=kernel, fault_launch=0, expression="", layer="norms.0", odd_constant=constant
    )
    rows = torch.randn(21, 24, generator=torch.Generator().manual_seed(0))
    rows[3] = 0.0
    inputs = saved(directory, "rows.pt", [rows])
    made = served(with_constant_of_siblings, context_in(directory), the_call(package, inputs), origin)
    assert made.options.package is not None
    return package, the_call(made.options.package, inputs), made


@thorough
@pytest.mark.slow
def test_a_root_and_a_constant_that_make_a_norm_finite_again(zoo: ZooPackage, tmp_path: Path) -> None:
    """Guarded, or with the constant of the other layers, the row without variance is finite; others stay."""
    package, call, made = faulty_norm(zoo, tmp_path)
    assert (made.before_code, made.after_code) == ("1e-05", "1e-50")
    assert made.action == "use 1e-50 in norms.0 as the other layers do"
    opened = open_package(package)
    kernel = kernel_named(opened, opened.wrapper.run.launches[0].kernel)
    source = with_domain_guarded(replace(kernel, source=kernel.source.replace("1e-05", "1e-50")), "sqrt")
    guarded = served(lambda context: with_kernel(opened, kernel, source, context), context_in(tmp_path))
    changes = [
        Intervention(f"{place}", Kind.KERNEL, "the call with another kernel", options=Options(package=path))
        for place, path in enumerate((guarded, package))
    ]
    guard, usual = tried(tmp_path, call, changes)
    assert offered(guard) and offered(usual)
    zeros = Intervention(
        "same", Kind.KERNEL, "the call as it is", options=Options(package=Path(str(call.request["package"])))
    )
    (same,) = tried(tmp_path, call, [zeros])
    assert same.effect is Effect.SAME


@pytest.mark.parametrize(
    ("kind", "line", "shifted"),
    [
        ("cpp", "auto tmp4 = tmp3.exp();", "auto tmp4 = (tmp3 - decltype(tmp3)(30.0)).exp();"),
        ("cpp", "auto tmp4 = std::exp(tmp3);", "auto tmp4 = std::exp(tmp3 - decltype(tmp3)(30.0));"),
        ("triton", "tmp4 = libdevice.exp(tmp3)", "tmp4 = libdevice.exp(tmp3 - 30.0)"),
        ("triton", "tmp4 = tl_math.exp(tmp3)", "tmp4 = tl_math.exp(tmp3 - 30.0)"),
    ],
)
def test_every_exponential_of_a_kernel_is_shifted(kind: KernelKind, line: str, shifted: str) -> None:
    """Vectors, single numbers and Triton; a kernel without one is refused."""
    kernel = Kernel("k", kind, "k", (), 1, f"{line}\n{line}")
    assert with_exponents_shifted(kernel, 30) == f"{shifted}\n{shifted}"
    with pytest.raises(ProblemError):
        with_exponents_shifted(replace(kernel, source="tmp4 = tmp3.expm1()"), 30)
