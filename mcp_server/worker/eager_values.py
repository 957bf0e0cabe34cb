"""Runs the exported program in eager mode, in float64, and in float64 with random roundings."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from . import events
from .compare import TF32_EPS, Expected, eps_of
from .report import Report
from .tensors import checksum, only_tensors, widest

PRODUCTS = ("mm", "linear", "matmul", "conv", "attention")  # in the names of operators that sum products
BIAS = {"linear": (2, (0, 1)), "addmm": (0, (1, 2))}  # operator: place of its bias, places of its factors
FEWEST = 4  # runs with random roundings, however long they take
LONGEST_S = 15.0  # beyond this time only the fewest runs are made
MOST_EAGER_S = 5.0  # a slower program is not run many times in float64


def operator_name(node: torch.fx.Node) -> str:
    """The operator, such as `linear` for `aten.linear.default`."""
    return str(node.target).replace("aten.", "", 1).split(".")[0]


@dataclass(frozen=True)
class Expectations:
    """The expected values of chosen nodes and outputs. `steady`: eager mode gives the same outputs twice."""

    nodes: dict[str, list[Expected]]
    outputs: list[Expected]
    steady: bool


def expectations(
    module: Any,
    leaves: list[Any],
    report: Report,
    wanted: frozenset[str] = frozenset(),
    cap: int = 0,
    rounded: int = 1,
) -> Expectations:
    """The values in eager mode, in float64, and in `rounded` runs with random roundings.

    Return only eager values if the program cannot run in float64 or is too slow for many runs.
    """
    report.phase("running_eager")
    eager = Recorder(module, wanted, cap, report)
    begin = time.monotonic()
    result = only_tensors(run_on_copies(eager, leaves))
    slow = rounded > FEWEST and time.monotonic() - begin > MOST_EAGER_S
    again = only_tensors(run_on_copies(Recorder(module, frozenset(), 0, report), leaves))
    same = [*map(checksum, result)] == [*map(checksum, again)]
    report.event(events.EagerRan(same, eager.left_out))
    recorders: list[Recorder] = []
    runs: list[list[torch.Tensor]] = []
    start = time.monotonic()
    for number in range(0 if slow else 1 + rounded):
        recorder = ExactRecorder(module, wanted, cap, report, seed=number)
        made = only_tensors(run_wide(recorder, leaves, report))
        if [one.shape for one in made] != [one.shape for one in result]:
            break
        recorders.append(recorder)
        runs.append(made)
        if number > FEWEST and time.monotonic() - start > LONGEST_S:
            break
    outputs = [
        Expected("output {}".format(place), tensor, tuple(run[place] for run in runs), eager.longest)
        for place, tensor in enumerate(result)
    ]
    return Expectations({name: _of_node(name, eager, recorders) for name in eager.kept}, outputs, same)


def _of_node(name: str, eager: Recorder, exact: list[Recorder]) -> list[Expected]:
    """The values of a node, each with those of the exact runs that kept as many."""
    values = eager.kept[name]
    kept = [found for one in exact if len(found := one.kept.get(name, [])) == len(values)]
    return [
        Expected(name, tensor, tuple(each[place] for each in kept), eager.terms[name])
        for place, tensor in enumerate(values)
    ]


def run_on_copies(recorder: Recorder, leaves: list[Any]) -> Any:
    """Run on copies of the inputs. Then restore the buffers, which the program may change."""

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
    """Keeps results of the `wanted` nodes, up to `cap` bytes. `terms`: how many numbers each element sums."""

    def __init__(self, module: Any, wanted: frozenset[str], cap: int, report: Report) -> None:
        super().__init__(module)
        self.wanted = wanted
        self.left = cap
        self.report = report
        self.kept: dict[str, list[torch.Tensor]] = {}
        self.terms: dict[str, float] = {}
        self.longest = 1.0
        self.left_out = 0

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.op == "call_module" and "guard" in str(n.target):
            try:
                return super().run_node(n)
            except Exception as error:  # go on, because AOTInductor ignores guards
                self.report.event(events.GuardFailed(n.name, str(n.target), [], str(error)[:2000]))
                return None
        result = self.evaluate(n)
        if n.op == "call_function" and n.name in self.wanted:
            self.keep(n, result)
        return result

    def evaluate(self, node: torch.fx.Node) -> Any:
        result = super().run_node(node)
        if node.op == "call_function":
            self.terms[node.name] = self._terms(node, result)
            self.longest = max(self.longest, self.terms[node.name])
        return result

    def keep(self, node: torch.fx.Node, result: Any) -> None:
        for tensor in [*only_tensors(result), *self.without_bias(node)]:
            size = tensor.numel() * tensor.element_size()
            if size > self.left:
                self.left_out += 1
                continue
            self.left -= size
            # A later node may mutate the tensor.
            self.kept.setdefault(node.name, []).append(tensor.detach().clone())

    def _terms(self, node: torch.fx.Node, result: Any) -> float:
        """How many numbers are summed for each element of the result."""
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
        """The product without the bias, which Inductor may add in a later kernel."""
        place, factors = BIAS.get(operator_name(node), (0, ()))
        args = self.fetch_args_kwargs_from_env(node)[0]
        if not factors or len(args) <= max(place, *factors) or len(args) > 3:
            return []
        left, right = (args[i] for i in factors)
        return [left @ (right.t() if place == 2 else right)]


class ExactRecorder(Recorder):
    """Runs the program with every floating-point value in float64, as a reference.

    Parameters are widened for one operator at a time, to save memory. Operators that are not torch's get the
    original dtypes, since a user's kernel may support no others.

    With a `seed`, each result gets a random rounding error of its original dtype, and each factor of a
    product one of TF32, if this process allows TF32 for it. Where large terms cancel, or after many nodes,
    these errors move a result much further than one rounding.
    """

    def __init__(self, module: Any, wanted: frozenset[str], cap: int, report: Report, seed: int = 0) -> None:
        super().__init__(module, wanted, cap, report)
        self.seed = seed
        self.chance: dict[torch.device, torch.Generator] = {}

    def evaluate(self, node: torch.fx.Node) -> Any:
        result = self.exact(node)
        return self.rounded(node, result) if self.seed and node.op == "call_function" else result

    def exact(self, node: torch.fx.Node) -> Any:
        name = str(node.target)
        if "_assert_tensor_metadata" in name:
            return None  # the operator would reject float64
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
        given = _pytree.tree_map(widened, super().fetch_args_kwargs_from_env(n))
        if not (self.seed and n.op == "call_function" and uses_tf32(n)):
            return given
        return _pytree.tree_map_only(torch.Tensor, lambda factor: self.moved(factor, TF32_EPS), given)

    def rounded(self, node: torch.fx.Node, result: Any) -> Any:
        """The result with rounding errors. Views stay as they are, to share memory with their base."""
        shared = {_memory(one) for one in only_tensors(self.fetch_args_kwargs_from_env(node))}

        def perturbed(value: Any, fake: Any) -> Any:
            inexact = isinstance(value, torch.Tensor) and eps_of(value.dtype) and eps_of(fake.dtype)
            if not inexact or value.layout is not torch.strided or _memory(value) in shared:
                return value
            return self.moved(value, eps_of(fake.dtype))

        return _pytree.tree_map(perturbed, result, fakes(node, result))

    def moved(self, value: torch.Tensor, eps: float) -> torch.Tensor:
        """The value with a random relative error of at most `eps` / 2 in each element."""
        device = value.device
        if not eps_of(value.dtype):
            return value
        if device not in self.chance:
            self.chance[device] = torch.Generator(device).manual_seed(self.seed)
        chance = torch.rand(value.shape, generator=self.chance[device], dtype=torch.float64, device=device)
        return value * (1 + eps * (chance - 0.5))


def uses_tf32(node: torch.fx.Node) -> bool:
    """Whether this process lets CUDA round the float32 factors of the node's products to TF32.

    By default, only for convolutions. Torch 2.9 and later have a switch for them (`cudnn.conv`).
    """
    fake, name = node.meta.get("val"), operator_name(node)
    if not (isinstance(fake, torch.Tensor) and fake.is_cuda and fake.dtype == torch.float32):
        return False
    if not any(word in name for word in PRODUCTS):
        return False
    cudnn: Any = torch.backends.cudnn
    switch: Any = getattr(cudnn, "conv", cudnn) if "conv" in name else torch.backends.cuda.matmul
    return bool(switch.fp32_precision == "tf32" if hasattr(cudnn, "conv") else switch.allow_tf32)


def fakes(node: torch.fx.Node, value: Any) -> Any:
    """The fake results of a node, or `value` if they do not have its structure."""
    fake = node.meta.get("val")
    same = _pytree.tree_structure(fake) == _pytree.tree_structure(value)
    return fake if fake is not None and same else value


def widened(value: Any) -> Any:
    """Floating-point tensors as float64, complex ones as complex128, anything else unchanged."""
    inexact = isinstance(value, torch.Tensor) and (value.is_complex() or value.is_floating_point())
    return widest(value) if inexact else value


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)
