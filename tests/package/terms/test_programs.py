"""C++ and Triton kernels read as programs compute what the model or the author means."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from mcp_server.package.kernels import Kernel, Parameter
from mcp_server.package.pytorch.program import write_program
from mcp_server.package.terms.accesses import index_checks, position_of
from mcp_server.package.terms.evaluate import Evaluator
from mcp_server.package.terms.parts import number, say
from mcp_server.package.terms.program import Program, Store, read_program
from mcp_server.package.terms.term import Element, Scalar, Term
from mcp_server.package.wrapper import read_wrapper
from tests.package.terms.made import unread
from tests.recorded import RECORDINGS
from tests.support.programs import recorded

WRAPPERS = sorted((RECORDINGS / "wrappers").glob("*.cpp"))


def kernels(path: Path) -> Mapping[str, Kernel]:
    """The kernels of a recorded wrapper, including C++ kernels if their file was recorded."""
    sources = RECORDINGS / "kernels" / path.name
    text = sources.read_text() if sources.exists() else ""
    return read_wrapper(path.read_text(), text).kernels


def program(wrapper: str, kernel: str) -> Program:
    return read_program(kernels(RECORDINGS / "wrappers" / wrapper)[kernel])


def stored(
    found: Program, parameter: str, offset: int, tensors: Mapping[str, Sequence[Scalar]], **sizes: int
) -> Scalar:
    """Compute the value that a program stores at an offset, from whole tensors."""

    def read(element: Element, place: int) -> Scalar:
        if found.stores_to(element.parameter, element.line):
            return stored(found, element.parameter, place, tensors, **sizes)
        return tensors[element.parameter][place]

    for store in found.stores_to(parameter):
        position = position_of(store.index, offset, store.ranges, sizes, read)
        if position is not None:
            return Evaluator(position, sizes, read).value(store.value)
    raise AssertionError(f"nothing is stored at {offset}")


@pytest.mark.parametrize("path", WRAPPERS, ids=lambda path: path.name)
def test_all_of_the_code_is_understood(path: Path) -> None:
    """Every store and check of every recorded kernel is read, except a sort inside a kernel."""
    for kernel in kernels(path).values():
        found = read_program(kernel)
        assert found.stores or not kernel.source, kernel.name
        terms: list[Term] = [*(s.value for s in found.stores), *(c.value for c in found.checks)]
        left = {unread(term) for term in terms} - {""}
        assert not left or "sort" in kernel.name, (kernel.name, left)


@pytest.mark.parametrize(
    ("value", "operators", "text"),
    [
        (4.174387454986572, {"log1p"}, "log1p(64)"),
        (4.174387454986572, {"log"}, "log(65)"),
        (4.859812259674072, set(), "4.859812"),
        (2.0794415416798357, {"log"}, "log(8)"),
        (64.0, set(), "64"),
        (0.125, set(), "0.125"),
    ],
)
def test_constants_are_worded(value: float, operators: set[str], text: str) -> None:
    """A folded logarithm is written as one if the launch has that operator."""
    assert number(value, "float32", operators) == text


AT = "out_ptr0[static_cast<int64_t>(x0_tail)]"


def test_a_load_under_a_mask_is_zero_where_the_mask_is_not_set() -> None:
    """This is how padding is read. The mask does not add a value."""
    load = "at::vec::VecMask<float,1>::from(x > 2).template loadu<float,1>(in_ptr0 + x)"
    (store,) = cpp(f"out_ptr0[0] = {load};").stores
    found = [Evaluator({}, {"x": x}, lambda _each, _offset: 0.5).value(store.value) for x in (3, 2)]
    assert found == [0.5, 0.0]


def cpp(body: str) -> Program:
    """Read a C++ kernel with these lines."""
    names = {"in_ptr0": "const float*", "x": "int64_t", "out_ptr0": "float*"}
    parameters = tuple(Parameter(name, type_, "read") for name, type_ in names.items())
    head = ", ".join(f"{type_} {name}" for name, type_ in names.items())
    text = f'extern "C" void k({head})\n{{\n{body}\n}}\n'
    return read_program(Kernel("k", "cpp", "k", parameters, 1, text))


def test_a_lambda_that_returns_in_a_branch_is_a_choice() -> None:
    """The last return is the value only if the condition is false."""
    line = "auto y = [&] { if (in_ptr0[0] > 0) { return in_ptr0[1]; } return in_ptr0[2]; } ();"
    body = (
        line.replace("{", "{\n").replace(";", ";\n").replace("} return", "}\nreturn").replace("} ()", "}\n()")
    )
    (store,) = cpp(f"{body}\nout_ptr0[0] = y;").stores
    for given, wanted in (([2.0, 10.0, 20.0], 10.0), ([-2.0, 10.0, 20.0], 20.0)):

        def loaded(_element: object, at: int, given: list[float] = given) -> float:
            return given[at]

        assert Evaluator({}, {}, loaded).value(store.value) == wanted


# Triton kernels as people write them, compared with the same computation in torch.

N, BLOCK = 24, 16
HEAD = """@triton_heuristics.user_autotune(triton_meta={
    'signature': {'x': '*fp32', 'out': '*fp32', 'n': 'i32', 'B': 'constexpr'}, 'constants': {'B': 16}})
"""
TWICE = "@triton.jit\ndef twice(p, m):\n    v = tl.load(p, mask=m, other=1.0)\n    return v * 2\n"
AT = "at = tl.program_id(0) * B + tl.arange(0, B)\n"
ROW = "row = tl.program_id(0)\nat = tl.arange(0, B)\nacc = tl.zeros([B], dtype=tl.float32)\n"
GRID = "i = tl.arange(0, B)\nat = i[:, None] * B + i[None, :]\n"


def kernel(body: str, before: str = "", parameters: str = "x, out, n, B: tl.constexpr") -> Kernel:
    """Make a kernel of four programs with blocks of 16 lanes; `n` is 24."""
    lines = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    source = f"{before}{HEAD}@triton.jit\ndef k({parameters}):\n{lines}"
    return Kernel("k", "user_triton", "k", (), 1, source, 1, ("4", "1", "1"))


KERNELS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "a mask": (
        AT + "tl.store(out + at, tl.load(x + at, mask=at < n, other=0.0), mask=at < n)",
        lambda x: x[:N],
    ),
    "a branch": (
        AT
        + "v = tl.load(x + at)\nif tl.program_id(0) > 1:\n    v = v * 2\nelse:\n    v = -v\n"
        + "tl.store(out + at, v)",
        lambda x: torch.cat([-x[:32], x[32:64] * 2]),
    ),
    "an early return": (
        AT + "if tl.program_id(0) >= 2:\n    return\ntl.store(out + at, tl.load(x + at))",
        lambda x: x[:32],
    ),
    "a function": (AT + "tl.store(out + at, twice(x + at, at < n), mask=at < n)", lambda x: x[:N] * 2),
    "a pointer that moves": (
        ROW + "p = x + row * 48 + at\nfor k in range(3):\n    acc += tl.load(p)\n    p += B\n"
        "tl.store(out + row * B + at, acc)",
        lambda x: x[:192].view(4, 3, 16).sum(1).flatten(),
    ),
    "a sum over a loop": (
        ROW
        + "for k in range(0, n, B):\n    acc += tl.load(x + row * n + k + at, mask=k + at < n, other=0.0)\n"
        "tl.store(out + row, tl.sum(acc, axis=0))",
        lambda x: x[: 4 * N].view(4, N).sum(-1),
    ),
    "a softmax": (
        ROW + "v = tl.load(x + row * B + at)\ne = tl.exp(v - tl.max(v, axis=0))\n"
        "tl.store(out + row * B + at, e / tl.sum(e, axis=0))",
        lambda x: x[:64].view(4, 16).softmax(-1).flatten(),
    ),
    "one range on two axes": (GRID + "tl.store(out + at, tl.load(x + at) * 2)", lambda x: x[:256] * 2),
    "a sum over an axis": (
        GRID + "tl.store(out + i, tl.sum(tl.load(x + at), axis=1))",
        lambda x: x[:256].view(16, 16).sum(1),
    ),
    "a turn that is left out": (
        AT
        + "for k in range(2):\n    if k == 0:\n        continue\n"
        + "    tl.store(out + (k - 1) * 64 + at, tl.load(x + k * 64 + at))",
        lambda x: x[64:128],
    ),
    "atomic adds": (AT + "tl.atomic_add(out + at % 8, tl.load(x + at))", lambda x: x[:64].view(8, 8).sum(0)),
}


@dataclass
class Read:
    """A program that was read, on the tensors before its kernel ran."""

    program: Program
    before: Mapping[str, Sequence[Scalar]]
    sizes: Mapping[str, int]

    def element(self, element: Element, offset: int) -> Scalar:
        """What a load gives: what the kernel stored before it, or the original value."""
        return self.value(self.program.stores_to(element.parameter, element.line), element.parameter, offset)

    def value(self, stores: Sequence[Store], parameter: str, offset: int) -> Scalar:
        """An element after these stores, the last one first."""
        added: list[Scalar] = []
        for store in stores:
            if store.mode == "add":
                here = (at for at in self.points(store) if at.value(store.index) == offset)
                added += [at.value(store.value) for at in here]
                continue
            place = position_of(store.index, offset, store.ranges, self.sizes, self.element)
            at = Evaluator(place or {}, self.sizes, self.element)
            if place is not None and (store.test is None or at.value(store.test)):
                return sum(added, at.value(store.value)) if added else at.value(store.value)
        return sum(added, self.before[parameter][offset]) if added else self.before[parameter][offset]

    def points(self, store: Store) -> Iterator[Evaluator]:
        """Yield every point of the loops around a store."""
        for place in Evaluator({}, self.sizes, self.element).places(store.ranges):
            yield Evaluator(place, self.sizes, self.element)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_computes_what_was_read(name: str) -> None:
    """The kernel stores the expected values, and nothing else."""
    body, meaning = KERNELS[name]
    program = read_program(kernel(body, TWICE))
    assert program.is_understood
    x = torch.randn(400, generator=torch.Generator().manual_seed(0))
    read = Read(program, {"x": x.tolist(), "out": [0.0] * 400}, {"n": N})
    expected, stored = meaning(x), set[int]()
    for store in program.stores:
        made = [at for at in read.points(store) if store.test is None or at.value(store.test)]
        stored |= {int(at.value(store.index)) for at in made}
    assert stored == set(range(len(expected)))
    for place in range(0, len(expected), 3):
        value = read.value(program.stores_to("out"), "out", place)
        assert value == pytest.approx(expected[place].item(), abs=1e-5), place


@pytest.mark.parametrize(
    "body",
    [
        "s = 0.0\nfor k in range(n):\n    s = s * 0.5 + tl.load(x + k)\ntl.store(out, s)",
        "i = 0\nwhile i < n:\n    i += 1\ntl.store(out, tl.load(x + i))",
        "v = tl.inline_asm_elementwise('x', '=r', [n], tl.int32, True, 1)\ntl.store(out, v)",
        "for k in range(n):\n    if k > 3:\n        break\n    tl.store(out + k, 1.0)",
        "old = tl.atomic_add(out, 1.0)\ntl.store(out + 1, old)",
        "for k in range(n):\n    tl.store(out, tl.load(out) + tl.load(x + k))",
        "for k in range(1, n):\n    tl.store(out + k, tl.load(out + k - 1) + tl.load(x + k))",
        "v = tl.dot(tl.load(x), tl.load(x))\ntl.store(out, v)",
    ],
)
def test_what_is_not_read_is_not_understood(body: str) -> None:
    """Recurrences in a name or in memory, `while`, `break`, device code and atomics' results are not read."""
    assert not read_program(kernel(body)).is_understood


@pytest.mark.parametrize(("place", "apart"), [("r0_index + r0_numel*xindex", True), ("xindex", False)])
def test_a_generated_loop_may_store_where_it_loads(place: str, apart: bool) -> None:
    """Each iteration has its own locations, as in an in-place softmax."""
    source = f"""@triton_heuristics.reduction(triton_meta={{
    'signature': {{'in_out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32'}}}})
@triton.jit
def k(in_out_ptr0, xnumel, r0_numel, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        tmp0 = tl.load(in_out_ptr0 + ({place}), r0_index < r0_numel)
        tl.store(in_out_ptr0 + ({place}), tmp0 * 2 + r0_index, r0_index < r0_numel)
"""
    assert read_program(Kernel("k", "triton", "k", (), 1, source)).is_understood is apart


def test_an_index_that_was_computed_is_checked_whole() -> None:
    """Row `2 * id + 1` of a table is checked although the id is in range: only the stride is removed."""
    found = program("computed_index.torch-2.13-cpu.cpp", "cpp_fused_add_embedding_mul_0")
    (check,) = index_checks(found, "in_ptr1", (40, 8), (8, 1))
    assert check.upper is not None and (say(check.value), say(check.upper)) == ("in_ptr0 * 2 + 1", "40")


@pytest.mark.parametrize("only", [None, [0], [2]])
def test_what_a_launch_computes_for_an_unwritten_one_is_kept(tmp_path: Path, only: list[int] | None) -> None:
    """The next launch is unreadable or was not asked for, but the body is complete and returns its result."""
    view = recorded("jagged", tmp_path, {"aoti_torch_cuda_mm_out(": "aoti_torch_cuda_unknown_out("})
    found = write_program(view, only=only)
    functions = [found.text_of([each.index]) for each in found.launches if each.name]
    assert functions and all("return " in each for each in functions), functions
