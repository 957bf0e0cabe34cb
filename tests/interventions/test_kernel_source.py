"""Changes of a generated kernel's text."""

from __future__ import annotations

import pytest

from mcp_server.errors import ProblemError
from mcp_server.package.kernels import Kernel, KernelKind
from mcp_server.probes.rewrite import (
    compiled_form,
    replaced_once,
    with_bounds_kept,
    with_finite_mask,
    with_limits,
    with_zeros,
)

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


def kernel(source: str = CPP, kind: KernelKind = "cpp") -> Kernel:
    return Kernel("cpp_fused_0", kind, "cpp_fused_0", (), 1, source, 40)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tmp3 - tmp5", "std::max(tmp3, -1e30f) - tmp5"),
        ("tmp3 - tmp5", "(tmp3 == tmp5 ? 0.0f : tmp3 - tmp5)"),
        ("std::exp(tmp3 - tmp5)", "own_helper(static_cast<float>(tmp3))"),
        ("-std::numeric_limits<float>::infinity()", "std::numeric_limits<float>::lowest()"),
        ("32L)", "static_cast<int64_t>(33))"),
    ],
)
def test_an_expression_takes_the_place_of_another(old: str, new: str) -> None:
    """Operators, casts, and functions that are pure or that the kernel calls itself."""
    once = CPP if CPP.count(old) == 1 else CPP.replace(old, "@", CPP.count(old) - 1)
    changed = replaced_once(kernel(once), old, new)
    assert changed == once.replace(old, new) and changed != once


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("tmp99", "0", "does not occur"),
        ("tmp3-tmp5", "0", "with other spaces on line 47: tmp3 - tmp5"),
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
    """The error says what is wrong, and where the text stands."""
    with pytest.raises(ProblemError) as refused:
        replaced_once(kernel(), old, new)
    assert what in str(refused.value)


@pytest.mark.parametrize(
    ("new", "fine"),
    [
        ("tl.maximum(tmp0, 0.0)", True),
        ("-1e30", True),
        ("tmp0.to(tl.float32)", True),
        ("tl.store(out_ptr0, 0)", False),
        ("tl.atomic_add(out_ptr0, 1)", False),
        ("__import__('os').system('true')", False),
        ("open('x')", False),
        ("(a := 1)", False),
        ("x = 1", False),
    ],
)
def test_a_triton_expression_is_read_as_python(new: str, fine: bool) -> None:
    """Functions of tl that only compute are fine; stores, atomics and other modules are not."""
    if fine:
        assert new in replaced_once(kernel(TRITON, "triton"), 'float("-inf")', new)
    else:
        with pytest.raises(ProblemError):
            replaced_once(kernel(TRITON, "triton"), 'float("-inf")', new)


def test_an_index_is_kept_where_it_is_made() -> None:
    """The line that loads it, not the copies that the check looks at."""
    changed = with_bounds_kept(kernel())
    kept = "auto tmp0 = aoti_debug_keep(in_ptr0[static_cast<int64_t>(x0)], 0, 32);"
    assert kept in changed and changed.count("aoti_debug_keep") == 1
    with pytest.raises(ProblemError, match="no index check"):
        with_bounds_kept(kernel("{}"))


def test_a_value_is_limited_where_it_is_defined() -> None:
    """The right-hand side of its line, with one helper for the end that was missed."""
    source = "auto tmp0 = in_ptr0[x0];\nauto tmp1 = tmp0 * 2;\nout_ptr0[x0] = tmp1;"
    changed = with_limits(kernel(source), [2], None, 63)
    assert changed.split("\n")[1] == "auto tmp1 = aoti_debug_at_most(tmp0 * 2, 63L);"
    assert "aoti_debug_at_least" not in compiled_form(changed)
    assert "T aoti_debug_at_most(T value, int64_t end)" in compiled_form(changed).split("\n")[0]
    with pytest.raises(ProblemError, match="not defined"):
        with_limits(kernel("call(x);"), [1], 0, None)


def test_minus_infinity_is_made_finite_and_results_are_made_zero() -> None:
    """What the kernel adds in place stays; a kernel with nothing of the kind is refused."""
    assert "auto tmp3 = -1e30f;" in with_finite_mask(kernel())
    assert "tl.where(tmp0, 1.0, -1e30)" in with_finite_mask(kernel(TRITON, "triton"))
    zeros = with_zeros(kernel())
    assert "out_ptr0[static_cast<int64_t>(x0)] = decltype(tmp4)(0);" in zeros
    assert "decltype(tmp4)(0).store(out_ptr0" in zeros
    assert "in_out_ptr0[static_cast<int64_t>(x0)] = tmp4;" in zeros
    for change in (with_finite_mask, with_zeros):
        with pytest.raises(ProblemError):
            change(kernel("{}"))
