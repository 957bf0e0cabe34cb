"""The exported program node by node in eager mode, and how far rounding alone can move a launch from that.

The tolerance of an element x of a result that sums K products is
    factor * (4 * eps + (16 + 2 * sqrt(K)) * eps32) * (|x| + rms(x))
        + 4 * max(largest error of eager itself, noise * (1 + sqrt(K) * eps32 / eps))
with eps of the coarser of the two dtypes, and eps32 the smaller of it and that of float32, in which narrower
values are summed. The second line comes from the float64 reference and grows with the depth of the program.
`noise` is the effect on the result of rounding every earlier value; it is large where large terms cancel.
Without a reference the tolerance is factor * 16 * eps * sqrt(K) * (|x| + rms(x)).

The error of an element is its distance to the nearer of eager and the reference. If eager overflowed and the
reference did not, overflows in that tensor are no difference, nor is any value where eager has NaN. Integers
must be equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch.utils import _pytree

from . import events
from .events import Closeness
from .report import Report
from .tensors import checksum, only_tensors, unravel, widest

PRODUCTS = ("mm", "linear", "matmul", "conv", "attention")  # in the names of operators that sum products
BIAS = {"linear": (2, (0, 1)), "addmm": (0, (1, 2))}  # operator: place of its bias, places of the factors
MOST = 0.95  # of the elements of a tensor


def operator_name(node: torch.fx.Node) -> str:
    """`linear` of `aten.linear.default`."""
    return str(node.target).replace("aten.", "", 1).split(".")[0]


@dataclass(frozen=True, eq=False)
class Expected:
    """The eager value of one node, its float64 reference `exact`, and the number of `terms` in each sum.

    `noise` is how far rounding of all earlier values moves it.
    """

    node: str
    eager: torch.Tensor
    exact: Optional[torch.Tensor]
    terms: float
    noise: float = 0.0


def expectations(
    module: Any,
    leaves: list[Any],
    wanted: Optional[frozenset[str]],
    cap: int,
    report: Report,
) -> tuple[dict[str, list[Expected]], list[Expected]]:
    """The eager values by node and of the outputs, with float64 references unless that run failed."""
    report.phase("running_eager")
    eager = Recorder(module, wanted, cap, report)
    result = only_tensors(run_on_copies(eager, leaves))
    again = only_tensors(run_on_copies(Recorder(module, frozenset(), 0, report), leaves))
    same = [*map(checksum, result)] == [*map(checksum, again)]
    report.event(events.EagerRan(same, eager.left_out))
    exact = ExactRecorder(module, wanted, cap, report)
    precise = only_tensors(run_wide(exact, leaves, report))
    noisy = NoisyRecorder(module, exact)
    moved = only_tensors(run_wide(noisy, leaves, report)) if precise else []
    fits = len(precise) == len(result)
    outputs = [
        Expected(
            "output {}".format(place),
            tensor,
            precise[place] if fits else None,
            terms,
            spread(moved[place], precise[place]) if fits and len(moved) == len(result) else 0.0,
        )
        for place, (tensor, terms) in enumerate(zip(result, eager.terms_of(result)))
    ]
    nodes: dict[str, list[Expected]] = {}
    for node, values in eager.kept.items():
        references: list[Any] = [tensor for tensor, _ in exact.kept.get(node, [])]
        spreads = noisy.noise.get(node) or [0.0] * len(values)
        if len(references) != len(values):
            references, spreads = [None] * len(values), [0.0] * len(values)
        nodes[node] = [
            Expected(node, tensor, reference, terms, noise)
            for (tensor, terms), reference, noise in zip(values, references, spreads)
        ]
    return nodes, outputs


def run_on_copies(recorder: Recorder, leaves: list[Any]) -> Any:
    """Run on copies of the inputs, and restore the buffers that the program changes."""

    def copied(tree: Any) -> Any:
        return _pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, tree)

    buffers = [(buffer, buffer.clone()) for buffer in recorder.module.buffers()]
    with torch.no_grad():
        outputs = copied(recorder.run(*copied(leaves), enable_io_processing=False))
        for buffer, value in buffers:
            buffer.copy_(value)
    return outputs


def run_wide(exact: ExactRecorder, leaves: list[Any], report: Report) -> Any:
    try:
        return run_on_copies(exact, [widened(leaf) for leaf in leaves])
    except Exception as error:
        report.phase("no_float64", "{}: {}".format(type(error).__name__, error)[:500])
        return None


class Recorder(torch.fx.Interpreter):
    """Records results of chosen nodes, up to `cap` bytes. `kept` maps a node to its (tensor, terms)."""

    def __init__(self, module: Any, wanted: Optional[frozenset[str]], cap: int, report: Report) -> None:
        super().__init__(module)
        self.wanted = wanted
        self.left = cap
        self.report = report
        self.kept: dict[str, list[tuple[torch.Tensor, float]]] = {}
        # The longest sum among what a node, and what each output, is computed from.
        self.longest: dict[torch.fx.Node, float] = {}
        self.ends: list[float] = []
        self.left_out = 0

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.op == "call_module" and "guard" in str(n.target):
            try:
                return super().run_node(n)
            except Exception as error:  # AOTInductor drops guards, and so goes on, too
                self.report.event(events.GuardFailed(n.name, str(n.target), [], str(error)[:2000]))
                return None
        result = self.evaluate(n)
        self.count_terms(n, result)
        if n.op == "call_function" and (self.wanted is None or n.name in self.wanted):
            self.keep(n, result)
        return result

    def evaluate(self, node: torch.fx.Node) -> Any:
        return super().run_node(node)

    def count_terms(self, node: torch.fx.Node, result: Any) -> None:
        before = max((self.longest.get(one, 1.0) for one in node.all_input_nodes), default=1.0)
        own = self._terms(node, result) if node.op == "call_function" else 1.0
        self.longest[node] = max(before, own)
        if node.op == "output":
            leaves = [leaf for leaf in _pytree.tree_leaves(node.args) if isinstance(leaf, torch.fx.Node)]
            self.ends = [self.longest[leaf] for leaf in leaves if isinstance(self.env[leaf], torch.Tensor)]

    def terms_of(self, outputs: list[torch.Tensor]) -> list[float]:
        """How many numbers the longest sum behind each output has."""
        alike = len(self.ends) == len(outputs)
        return self.ends if alike else [max(self.ends, default=1.0)] * len(outputs)

    def keep(self, node: torch.fx.Node, result: Any) -> None:
        terms = self._terms(node, result)
        for tensor in [*only_tensors(result), *self.without_bias(node)]:
            size = tensor.numel() * tensor.element_size()
            if size > self.left:
                self.left_out += 1
                continue
            self.left -= size
            # A copy, since a later node may mutate it.
            self.kept.setdefault(node.name, []).append((tensor.detach().clone(), terms))

    def _terms(self, node: torch.fx.Node, result: Any) -> float:
        """How many numbers each element of the result sums up."""
        inputs = only_tensors(self.fetch_args_kwargs_from_env(node))
        made = only_tensors(result)
        if not inputs or not made:
            return 1.0
        first, name = inputs[0], str(node.target)
        if "cum" in name:
            return float(max(first.shape, default=1))
        if "conv" in name and len(inputs) > 1:
            return inputs[1].numel() / max(inputs[1].shape[0], 1)
        if any(word in name for word in PRODUCTS) and first.dim():
            return float(max(tensor.shape[-1] for tensor in inputs if tensor.dim()))
        return max(1.0, first.numel() / max(made[0].numel(), 1))

    def without_bias(self, node: torch.fx.Node) -> list[torch.Tensor]:
        """The product alone: Inductor may add the bias in a later kernel."""
        place, factors = BIAS.get(operator_name(node), (0, ()))
        args = self.fetch_args_kwargs_from_env(node)[0]
        if not factors or len(args) <= max(place, *factors) or len(args) > 3:
            return []
        left, right = (args[i] for i in factors)
        return [left @ (right.t() if place == 2 else right)]


class ExactRecorder(Recorder):
    """The reference: every floating-point value is widened to float64.

    Parameters are widened for one operator at a time, to save memory. Operators that are not torch's own get
    their original dtypes, since a user's kernel may support no other.
    """

    def count_terms(self, node: torch.fx.Node, result: Any) -> None:
        """Nothing: the eager run counts the terms."""

    def evaluate(self, node: torch.fx.Node) -> Any:
        name = str(node.target)
        if "_assert_tensor_metadata" in name:
            return None  # it checks for the original dtype
        foreign = not name.startswith("aten.") and isinstance(node.target, torch._ops.OperatorBase)
        if node.op == "call_function" and foreign:

            def narrowed(value: Any, fake: Any) -> Any:
                both = isinstance(value, torch.Tensor) and isinstance(fake, torch.Tensor)
                return value.to(fake.dtype) if both else value

            def fetch(source: torch.fx.Node) -> Any:
                return _pytree.tree_map(narrowed, self.env[source], fakes(source, self.env[source]))

            args = torch.fx.node.map_arg(node.args, fetch)
            kwargs = torch.fx.node.map_arg(node.kwargs, fetch)
            return _pytree.tree_map(widened, self.call_function(node.target, args, kwargs))
        result = torch.fx.Interpreter.run_node(self, node)
        if node.op == "get_attr" and isinstance(result, torch.nn.Parameter):
            return result
        return _pytree.tree_map(widened, result)

    def fetch_args_kwargs_from_env(self, n: torch.fx.Node) -> Any:
        return _pytree.tree_map(widened, super().fetch_args_kwargs_from_env(n))


class NoisyRecorder(ExactRecorder):
    """The reference with a random rounding error of the original dtype added to each node's result.

    `noise` maps a node to how far that moves its values from those of `exact`: much further than one rounding
    where large terms cancel, or after many nodes.
    """

    def __init__(self, module: Any, exact: ExactRecorder) -> None:
        super().__init__(module, frozenset(exact.kept), 0, exact.report)
        self.exact = exact
        self.noise: dict[str, list[float]] = {}
        self.chance: dict[torch.device, torch.Generator] = {}

    def evaluate(self, node: torch.fx.Node) -> Any:
        """The result, with views left alone: they must go on sharing memory."""
        result = super().evaluate(node)
        if node.op != "call_function":
            return result
        shared = {_memory(one) for one in only_tensors(self.fetch_args_kwargs_from_env(node))}

        def perturbed(value: Any, fake: Any) -> Any:
            inexact = isinstance(value, torch.Tensor) and _eps(value.dtype) and _eps(fake.dtype)
            if not inexact or value.layout is not torch.strided or _memory(value) in shared:
                return value
            device = value.device
            if device not in self.chance:
                self.chance[device] = torch.Generator(device).manual_seed(0)
            chance = torch.rand(
                value.shape, generator=self.chance[device], dtype=torch.float64, device=device
            )
            return value * (1 + _eps(fake.dtype) * (chance - 0.5))

        return _pytree.tree_map(perturbed, result, fakes(node, result))

    def keep(self, node: torch.fx.Node, result: Any) -> None:
        exact = [tensor for tensor, _ in self.exact.kept[node.name]]
        moved = [*only_tensors(result), *self.without_bias(node)]
        if len(moved) == len(exact):
            self.noise[node.name] = [spread(*pair) for pair in zip(moved, exact)]


def fakes(node: torch.fx.Node, value: Any) -> Any:
    """The fake results of a node if they have the structure of `value`, else `value`."""
    fake = node.meta.get("val")
    same = _pytree.tree_structure(fake) == _pytree.tree_structure(value)
    return fake if fake is not None and same else value


def widened(value: Any) -> Any:
    """Floating-point tensors as float64, complex ones as complex128; anything else as it is."""
    inexact = isinstance(value, torch.Tensor) and (value.is_complex() or value.is_floating_point())
    return widest(value) if inexact else value


def spread(moved: torch.Tensor, exact: torch.Tensor) -> float:
    """How far rounding moves `MOST` of the elements. The others may be flipped decisions, not rounding."""
    if not (exact.is_floating_point() or exact.is_complex()) or moved.shape != exact.shape:
        return 0.0
    away = (moved - exact).abs().reshape(-1)
    finite = away[torch.isfinite(away)]
    if not finite.numel():
        return 0.0
    return float(finite.kthvalue(max(1, math.ceil(MOST * finite.numel()))).values)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)


ROUNDINGS = 16.0
STORED = 4.0  # roundings to the dtype of the result, which may be a narrow one
GROWTH = 2.0  # of the rounding of a sum, with the square root of its length
EAGER_ERRORS = 4.0
SUMMED_EPS = 2.0**-23  # float32: no kernel sums in less
TF32_EPS = 2.0**-10  # 10 bits of mantissa in the products of float32 matrices


def measure(got: torch.Tensor, want: Expected, factor: float) -> Closeness:
    """Errors against the reference, whether they are within the tolerance, and the first element beyond it.

    Both tensors have the same number of elements; they are compared in logical order. `excess` is the largest
    error in units of its tolerance: at most 1 when all is `within`. `within_tf32` takes the eps of TF32.
    `non_finite` counts what is finite on neither side.
    """
    actual, eager = (widest(tensor.detach().reshape(-1)) for tensor in (got, want.eager))
    if not (want.eager.is_floating_point() or want.eager.is_complex()):
        same = not bool((actual != eager).any())
        found = _first_beyond(actual, eager, actual != eager, want)
        found.error, found.allowed = _largest((actual - eager).abs()), 0.0
        found.within = found.within_tf32 = found.equal = same
        return found
    reference = widest(want.exact.detach().reshape(-1)) if want.exact is not None else eager
    own = _error(eager, reference)
    error = torch.minimum(_error(actual, reference), _error(actual, eager))
    representable = torch.isfinite(reference)
    if bool((~torch.isfinite(eager) & representable).any()):
        # Eager overflowed in this tensor, too: the order of a sum then decides which elements overflow.
        overflowed = (~torch.isfinite(actual) | torch.isnan(eager)) & representable
        error = torch.where(overflowed, 0.0, error)
    allowed, coarse = _allowed(reference, own, want, max(_eps(got.dtype), _eps(want.eager.dtype)), factor)
    ratio, coarse_ratio = (
        torch.where(error == 0, 0.0, error / limit.clamp(min=1e-300)) for limit in (allowed, coarse)
    )
    found = _first_beyond(actual, eager, ratio > 1, want)
    found.error, found.allowed, found.excess = _largest(error), _largest(allowed), _largest(ratio)
    found.eager_error = _largest(own) if want.exact is not None else None
    found.within = not bool((ratio > 1).any())
    found.within_tf32 = not bool((coarse_ratio > 1).any())
    found.equal = not bool(_error(actual, eager).any())
    found.non_finite = int((~torch.isfinite(actual) & ~torch.isfinite(eager)).sum())
    return found


def _first_beyond(
    actual: torch.Tensor, eager: torch.Tensor, beyond: torch.Tensor, want: Expected
) -> Closeness:
    """The node, and the first element that is beyond the tolerance, with both values."""
    found = Closeness(want.node, actual.numel(), int(beyond.sum()))
    if found.beyond:
        place = int(beyond.to(torch.uint8).argmax())
        found.first = unravel(place, tuple(want.eager.shape))
        found.values = [str(eager[place].item()), str(actual[place].item())]
    return found


def _allowed(
    reference: torch.Tensor, own: torch.Tensor, want: Expected, eps: float, factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tolerance of each element, and the same where products are rounded to TF32."""
    growth, summed_eps = math.sqrt(max(want.terms, 1.0)), min(eps, SUMMED_EPS)
    unit = ROUNDINGS * eps * growth
    if want.exact is not None:
        unit = STORED * eps + (ROUNDINGS + GROWTH * growth) * summed_eps
    # How far eager itself may be off: its largest error, or the noise of its inputs.
    eager_error = max(_largest(own[torch.isfinite(own)]), want.noise * (1 + growth * summed_eps / eps))
    size = torch.nan_to_num(reference.abs(), nan=0.0, posinf=0.0)
    rms = float((size * size).mean().sqrt()) if size.numel() else 0.0
    units = (unit, ROUNDINGS * TF32_EPS * growth)
    exact, coarse = (one * factor * (size + rms) + EAGER_ERRORS * eager_error for one in units)
    return exact, coarse


def _eps(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps) if dtype.is_floating_point or dtype.is_complex else 0.0


def _error(value: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Absolute differences. Equal infinities, and NaN in both, give 0; NaN in one gives infinity."""
    difference = (value - reference).abs()
    same = (value == reference) | (torch.isnan(value) & torch.isnan(reference))
    return torch.where(same, 0.0, torch.where(torch.isnan(difference), math.inf, difference))


def _largest(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0
