"""Work that may cost time, changes that may save it, and the verdicts on them.

A signal is work that a package shows without a run. A lever is a change that is timed.
"""

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from mcp_server.model import (
    Component,
    Confirmed,
    Cost,
    Evidence,
    Fix,
    FixRun,
    ModelLocation,
    Outcome,
    Verdict,
)
from mcp_server.package.launches import Launch
from mcp_server.package.view import PackageView

ISA_OK = "TORCHINDUCTOR_VEC_ISA_OK"  # skips the test of the processor's vector instructions
LEAST_WIN = 1.15  # the lower quartile of the paired ratios must be at least this


@dataclass(frozen=True)
class Lever:
    """A change that may save time: its description (`with one thread`), what to write, and what it costs."""

    what: str
    fix: str
    code: str = ""
    note: str = ""


@dataclass(frozen=True)
class Win:
    """A change that saved time: seconds before, with and after it. `spread` says how sure the win is."""

    lever: Lever
    before: float
    after: float
    again: float
    spread: str
    subject: Literal["call", "load", "build"] = "call"
    same: str = ""
    unit: str = ""  # follows the seconds: " of processor time"

    @property
    def fix(self) -> Fix:
        ran = FixRun(result=f"the {self.subject} is {self.spread}", command="")
        return Fix(text=self.lever.fix, after=self.lever.code, ran=ran)

    @property
    def confirmed(self) -> Confirmed:
        return Confirmed(
            what=self.lever.what,
            subject=self.subject,
            before=f"took {told(self.before)}{self.unit}",
            after=f"took {told(self.after)}{self.unit}{self.same}",
            again=f"took {told(self.again)}{self.unit}",
            side_effects=self.lever.note,
        )


def told(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def loss(
    headline: str,
    summary: str,
    party: Component,
    how: Win | Fix,
    cost: Cost,
    evidence: Sequence[Evidence] = (),
    unproven: str = "",
) -> Verdict:
    """Build the verdict for a loss: proven with a `Win`, else likely; `unproven` says what a proof needs."""
    won = how if isinstance(how, Win) else None
    return Verdict(
        outcome="fault",
        category="cost",
        confidence="proven" if won is not None else "likely",
        headline=headline,
        summary=summary,
        guilty=party,
        evidence=list(evidence),
        fix=how.fix if isinstance(how, Win) else how,
        confirmed=won.confirmed if won is not None else None,
        remarks=[f"Not proven: {unproven}"] if unproven else [],
        cost=cost,
    )


def no_loss(
    summary: str, cost: Cost, evidence: Sequence[Evidence] = (), outcome: Outcome = "no_fault"
) -> Verdict:
    """Build the verdict for no loss; `inconclusive` if too little could be timed."""
    return Verdict(
        outcome=outcome, confidence="possible", summary=summary, evidence=list(evidence), cost=cost
    )


LARGE = 4096  # elements; a smaller tensor is not worth keeping
MANY = 48  # launches of one operator: so many are worth combining into one
_NO_VECTORS = "INVALID_VEC_ISA"
_SORTS = re.compile(r"_(?:sort|argsort|sort_stable|topk|kthvalue)(?:_|$)")
_PRODUCTS = re.compile(r"_(?:mm|addmm|bmm|baddbmm|linear)(?:_|$)")
_SMALL = re.compile(_PRODUCTS.pattern + r"|convolution")
_BATCHED = re.compile(r"_(?:bmm|baddbmm)(?:_|$)")
_ONE_HOT = re.compile(r"_(?:one_hot|arange_eq|scatter)(?:_|$)")
_FUSED = re.compile(r"(?<=_)[a-z]+(?=_)")  # operators in a kernel's name: cpp_fused_clone_permute_0
_MOVES = frozenset({"clone", "permute", "transpose", "view", "unsafe", "copy", "contiguous", "t"})


@dataclass(frozen=True)
class Signal:
    """A kind of work that a package shows.

    `find` returns its launches. `configs` are options of a build that may avoid the work; None if there are
    none. `change` names a change of the program that avoids it (worker/timing.py). Without a timed build, the
    signal is reported if its launches take `share` of a call, but only in a remark if it is not `certain`.
    """

    name: str
    headline: str
    find: Callable[[PackageView], list[Launch]]
    fix: str
    code: str = ""
    configs: dict[str, object] | None = None
    change: str = ""
    share: float = 0.3
    certain: bool = True
    note: str = ""

    @property
    def builds(self) -> bool:
        return self.configs is not None or bool(self.change)

    @property
    def lever(self) -> Lever:
        """The change: a build with these options, or of the changed program."""
        return Lever(f"with {self.name}", self.fix, self.code, self.note)


@dataclass(frozen=True)
class Found:
    """A signal, its launches, and the lines of the program that a change replaced."""

    signal: Signal
    launches: list[Launch] = field(default_factory=list)
    lines: tuple[ModelLocation, ...] = ()


def work_on_constants(view: PackageView) -> list[Launch]:
    """Launches that depend on no input: they make a mask or positions, or convert weights.

    Such work in a kernel that also reads an input is only found in the program (PRECOMPUTED).
    """
    large = {each.name for each in view.package.constants if math.prod(each.shape) > LARGE}
    alone = (each for each in view.wrapper.launches if not view.flow.backward_from(each.index).inputs)
    return [
        each
        for each in alone
        if large.intersection(each.reads) or any(_elements(view, name) > LARGE for name in each.writes)
    ]


def _copies(view: PackageView) -> list[Launch]:
    """Kernels that only move elements to another place."""
    kernels = [
        (x, set(_FUSED.findall(x.kernel)) - {"fused"}) for x in view.wrapper.launches if x.kind == "cpp"
    ]
    return [launch for launch, fused in kernels if fused and fused <= _MOVES]


def _own_operators(view: PackageView) -> list[Launch]:
    """Calls of operators that are not torch's."""
    called = [(each, view.package.proxy_target(each.proxy_index)) for each in view.wrapper.launches]
    return [each for each, name in called if name and not name.startswith("aten::")]


def _too_many_threads(view: PackageView) -> list[Launch]:
    """Kernels for which the build fixed more threads than this machine has processors."""
    fixed = re.compile(r"\bnum_threads\((?P<count>\d{1,6})\)")
    kernels = [(each, view.wrapper.kernel_named(each.kernel)) for each in view.wrapper.launches]
    counts = [
        (each, [int(found["count"]) for found in fixed.finditer(kernel.source)])
        for each, kernel in kernels
        if kernel is not None
    ]
    return [each for each, found in counts if max(found, default=0) > (os.cpu_count() or 1)]


def _double(view: PackageView) -> list[Launch]:
    """Kernels in double precision. Empty if an input is double: the caller then wants it."""
    inputs = view.package.signature.inputs
    wide = any(each.dtype == "float64" for each in inputs)
    return [] if wide else _in_source(r"\bdouble\s*\*")(view)


def _elements(view: PackageView, name: str) -> int:
    """The number of elements of a buffer. 0 if a size is not a number."""
    sizes = view.wrapper.buffers[name].sizes if name in view.wrapper.buffers else None
    if sizes is None or not all(size.rstrip("L").isdecimal() for size in sizes):
        return 0
    return math.prod(int(size.rstrip("L")) for size in sizes)


def _in_source(pattern: str) -> Callable[[PackageView], list[Launch]]:
    """A function that finds launches of kernels whose source matches the pattern."""
    wanted = re.compile(pattern)

    def find(view: PackageView) -> list[Launch]:
        kernels = [(each, view.wrapper.kernel_named(each.kernel)) for each in view.wrapper.launches]
        return [each for each, kernel in kernels if kernel is not None and wanted.search(kernel.source)]

    return find


def _without_vectors(view: PackageView) -> list[Launch]:
    is_plain = _NO_VECTORS in view.package.metadata.isa and view.package.device_type == "cpu"
    return [each for each in view.wrapper.launches if each.kind == "cpp"] if is_plain else []


def _attention_in_steps(view: PackageView) -> list[Launch]:
    """A softmax between two batched products, which writes and reads the scores of all pairs."""
    launches = view.wrapper.launches
    products = [each.index for each in launches if _BATCHED.search(each.callee)]
    first, last = min(products, default=0), max(products, default=0)
    found = [each for each in launches if "softmax" in each.kernel and first < each.index < last]
    return [each for each in launches if found and (each in found or each.index in products)]


def _one_hot_products(view: PackageView) -> list[Launch]:
    """Products, if a kernel before them may make a one-hot matrix."""
    made = any(_ONE_HOT.search(each.kernel) for each in view.wrapper.launches if each.kind == "cpp")
    return _called(_PRODUCTS)(view) if made else []


def _called(pattern: re.Pattern[str], least: int = 1) -> Callable[[PackageView], list[Launch]]:
    """A function that finds launches of matching operators, if there are at least `least`."""

    def find(view: PackageView) -> list[Launch]:
        found = [each for each in view.wrapper.launches if pattern.search(each.callee)]
        return found if len(found) >= least else []

    return find


SAME_WORK = "the same work in every call, from weights alone"
PRECOMPUTED = Signal(
    "that work done once",
    SAME_WORK,
    work_on_constants,
    "compute it once, in __init__, and keep the result as a buffer",
    'self.register_buffer("done", value)  # and use self.done in forward',
    change="precomputed",
    share=0.15,
    note="the package then has the results among its weights",
)
CUT_EARLY = Signal(
    "only the rows that are used",
    "a product computes rows that nothing uses",
    lambda _view: [],
    "take the rows before the product, not after it",
    "self.head(x[:, -1])  # not self.head(x)[:, -1]",
    change="cut_early",
)
DEFAULTS = Signal(
    "the default options",
    "options of the build make the call slow",
    lambda _view: [],
    "leave out the options of this build",
    configs={},
)
SIGNALS = (
    Signal(
        "folded constants",
        SAME_WORK,
        work_on_constants,
        "compile with folding of constants: a launch computes from weights alone in every call",
        'inductor_configs={"aot_inductor.use_runtime_constant_folding": True}',
        {"aot_inductor.use_runtime_constant_folding": True},
        share=0.15,
    ),
    PRECOMPUTED,
    Signal(
        "vector instructions",
        "kernels without vector instructions",
        _without_vectors,
        "build again where the compiler's test of vector instructions passes: this build found none",
        configs={},
    ),
    Signal(
        "no more threads than processors",
        "kernels with more threads than processors",
        _too_many_threads,
        "build with the number of threads that the calls use: the build fixed the number in each kernel",
        "torch.set_num_threads(n)  # or OMP_NUM_THREADS, before the compile",
        configs={},
    ),
    Signal(
        "decomposed tanh",
        "tanh computed one number at a time",
        _in_source(r"\btanh\("),
        "compile tanh as a decomposition, which the compiler turns into vector code",
        'inductor_configs={"cpp.use_decompose_tanh": True}',
        {"cpp.use_decompose_tanh": True},
        share=0.6,
    ),
    Signal(
        "plain operators",
        "an operator that cannot be fused",
        _own_operators,
        "write the operator with plain torch operators, which the compiler fuses",
        change="inlined",
    ),
    Signal(
        "topk instead of the sort",
        "a sort takes most of the call",
        _called(_SORTS),
        "if only the largest or smallest values are used, ask for those alone",
        "x.topk(k, dim)  # or x.amax(dim)",
        change="topk",
        certain=False,
    ),
    Signal(
        "rows looked up",
        "a product with a one-hot matrix",
        _one_hot_products,
        "take the rows by their numbers: the product multiplies almost only zeros",
        "torch.nn.functional.embedding(index, weight)  # weight[index]",
        change="looked_up",
        certain=False,
    ),
    Signal(
        "one attention operator",
        "attention computed in several steps",
        _attention_in_steps,
        "compute it with one operator, which keeps no scores of all pairs (is_causal=True for a causal mask)",
        "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)",
        certain=False,
    ),
    Signal(
        "single precision",
        "kernels compute in double precision",
        _double,
        "keep buffers and numbers in float32: one float64 tensor makes what follows double",
        "tensor.float()",
        change="float32",
        share=0.4,
        note="the results have the precision of float32",
    ),
    Signal(
        "one layout",
        "copies from one layout to another",
        _copies,
        "keep one layout from operator to operator: leave out permute(...).contiguous() where it is undone",
    ),
    Signal(
        "many small products",
        "many small launches for one operation",
        _called(_SMALL, MANY),
        "do all passes at once: stack the weights, and multiply in one batch, or convolve in groups",
        "torch.bmm(x, torch.stack(weights))  # or conv1d(x, torch.stack(weights), groups=n)",
        share=0.4,
    ),
)


def signals_of(view: PackageView) -> list[Found]:
    """The signals of a package, in the order of the table."""
    launches = {find: find(view) for find in {signal.find for signal in SIGNALS}}  # signals may share `find`
    found = (Found(signal, launches[signal.find]) for signal in SIGNALS)
    return [each for each in found if each.launches]
