"""Changes of a generated kernel: its text, its binary, and calls of a real package without its source."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import anyio
import pytest

from mcp_server.diagnosis.interventions import input as inputs
from mcp_server.diagnosis.interventions.base import Effect, Intervention
from mcp_server.diagnosis.interventions.kernel import edit_kernel, replace_launch
from mcp_server.errors import ProblemError
from mcp_server.package.archive import open_package
from mcp_server.package.kernels import Kernel, KernelKind
from mcp_server.package.wrapper import read_wrapper
from mcp_server.probes import changed_kernel as interposing
from mcp_server.probes.rewrite import (
    compiled_form,
    replaced_once,
    with_bounds_kept,
    with_finite_mask,
    with_limits,
    with_zeros,
)
from mcp_server.worker.compiling import code_of
from tests.interventions.support import offered, the_call, tried
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


PARTED = """extern "C" void k(float* out_ptr0) {
    if(C10_LIKELY(x0 >= 0 && x0 < 16)) {
        auto tmp2 = tmp0 - tmp1;
    }
    if(C10_UNLIKELY(x0 >= 16 && x0 < 24)) {
        auto tmp2 = tmp0 - tmp1;
    }
}"""


def test_a_statement_of_vectors_and_of_their_rest_is_one() -> None:
    """Both are replaced; two statements of one part are not one."""
    assert replaced_once(kernel(PARTED), "tmp0 - tmp1", "0.5f").count("= 0.5f;") == 2
    with pytest.raises(ProblemError, match="occurs 2 times"):
        replaced_once(kernel(PARTED.replace("C10_UNLIKELY", "C10_LIKELY")), "tmp0 - tmp1", "0.5f")


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


MINUS_INFINITY = "-std::numeric_limits<float>::infinity()"


def kernel_of(package: Path) -> str:
    opened = open_package(package)
    return next(iter(read_wrapper(opened.wrapper_text, opened.kernel_text).kernels))


def replaced(directory: Path, package: Path, given: str, old: str, new: str) -> Intervention:
    async def run() -> Intervention:
        call = the_call(package, package.with_name(given))
        return await edit_kernel(context_in(directory), call, kernel_of(package), old, new)

    return anyio.run(run)


def relaunched(directory: Path, package: Path, given: str, how: str, launch: int = 0) -> Intervention:
    async def run() -> Intervention:
        call = the_call(package, package.with_name(given))
        return await replace_launch(context_in(directory), call, launch, how)

    return anyio.run(run)


@thorough
@pytest.mark.slow
def test_a_finite_mask_mends_the_softmax_of_a_masked_row_and_no_other(masked: Path, tmp_path: Path) -> None:
    """By text or by launch; zeros in place of the result are a side effect; the package stays as it was."""
    before = hashlib.sha256(masked.read_bytes()).hexdigest()
    call = the_call(masked, masked.with_name("masked.nan.pt"))
    text = replaced(tmp_path, masked, "masked.nan.pt", MINUS_INFINITY, "-1e30f")
    launch = relaunched(tmp_path, masked, "masked.nan.pt", "finite-mask")
    zeros = relaunched(tmp_path, masked, "masked.nan.pt", "skip")
    trials = tried(tmp_path, call, [text, launch, zeros])
    assert [trial.effect for trial in trials] == [Effect.GONE] * 3
    assert [offered(trial) for trial in trials] == [True, True, False]
    assert trials[2].side_effects.rows == (0, 1, 3, 4, 5)
    assert trials[0].after.facts is not None and trials[0].after.facts.compared is not None
    assert trials[0].after.facts.compared.outputs[0].rows == (2,)
    assert hashlib.sha256(masked.read_bytes()).hexdigest() == before


@pytest.mark.slow
def test_a_bounds_guard_lets_the_call_pass_and_changes_the_offending_row_only(
    masked: Path, tmp_path: Path
) -> None:
    """Held against calls in which nothing but the offending id is replaced."""
    call = the_call(masked, masked.with_name("masked.index.pt"))
    guard = relaunched(tmp_path, masked, "masked.index.pt", "guard")
    clamp = inputs.keep_in_range(inputs.Leaf(0, "args[0]"), 0, 11)
    by_input, by_kernel = tried(
        tmp_path,
        call,
        [clamp, Intervention(guard.key, guard.kind, guard.what, (), guard.options, minimal=clamp.minimal)],
    )
    assert offered(by_input) and offered(by_kernel) and by_kernel.side_effects.known
    assert by_input.after.facts is not None and by_kernel.after.facts is not None
    assert [o.checksum for o in by_input.after.facts.outputs] == [
        o.checksum for o in by_kernel.after.facts.outputs
    ]


@pytest.mark.slow
def test_an_edit_that_does_not_compile_names_the_line(masked: Path, tmp_path: Path) -> None:
    """The compiler's first error, with the line of the package's own kernel.cpp and its code."""
    with pytest.raises(ProblemError, match=r"does not compile: line \d+: .*not declared.*tmpX") as refused:
        replaced(tmp_path, masked, "masked.nan.pt", MINUS_INFINITY, "tmpX")
    number = int(str(refused.value).partition("line ")[2].partition(":")[0])
    line = open_package(masked).kernel_text.split("\n")[number - 1]
    assert MINUS_INFINITY in line


@pytest.mark.slow
@thorough
def test_a_library_that_calls_the_kernel_directly_gets_another_wrapper(
    masked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower way gives the same outputs."""
    monkeypatch.setattr(interposing, "calls_through_relocation", lambda _library, _symbol: False)
    slow = replaced(tmp_path, masked, "masked.nan.pt", MINUS_INFINITY, "-2e30f")
    monkeypatch.undo()
    quick = replaced(tmp_path, masked, "masked.nan.pt", MINUS_INFINITY, "-1e30f")
    call = the_call(masked, masked.with_name("masked.nan.pt"))
    one, other = tried(tmp_path, call, [slow, quick])
    assert offered(one) and offered(other)
    assert one.after.facts is not None and other.after.facts is not None
    assert one.after.facts.outputs[0].checksum == other.after.facts.outputs[0].checksum


@pytest.mark.slow
def test_what_a_package_cannot_do_is_said(masked: Path, tmp_path: Path) -> None:
    """No such kernel, launch or way; an eager launch needs the exported program."""
    with pytest.raises(ProblemError, match="no such launch"):
        relaunched(tmp_path, masked, "masked.nan.pt", "skip", 99)
    with pytest.raises(ProblemError, match="no such way"):
        relaunched(tmp_path, masked, "masked.nan.pt", "backwards")
    assert "exported program" in relaunched(tmp_path, masked, "masked.nan.pt", "eager").unavailable

    async def unknown() -> None:
        call = the_call(masked, masked.with_name("masked.nan.pt"))
        await edit_kernel(context_in(tmp_path), call, "cpp_nothing", "a", "b")

    with pytest.raises(ProblemError, match="no such kernel"):
        anyio.run(unknown)


def test_code_is_the_same_whatever_the_path_of_the_source(tmp_path: Path) -> None:
    """Objects of one source at two paths, with line tables, differ as files and have the same code."""
    binaries = []
    for name, text in (("a", "+"), ("another_name", "+"), ("b", "-")):
        source, target = tmp_path / f"{name}.c", tmp_path / f"{name}.o"
        source.write_text(f"int f(int x) {{ return x {text} 3; }}\n")
        subprocess.run(["gcc", "-g", "-O1", "-c", str(source), "-o", str(target)], check=True)
        binaries.append(target.read_bytes())
    one, other, different = binaries
    assert one != other and code_of(one) == code_of(other) != code_of(different)
    assert code_of(one)[".text"]


@pytest.mark.parametrize("binary", [b"", b"\x7fELF\x02", b"\x7fELF\x02" + b"\xff" * 100, b"no binary" * 20])
def test_what_is_no_binary_has_no_code(binary: bytes) -> None:
    """A cut or foreign file gives nothing, and no error."""
    assert code_of(binary) == {}
