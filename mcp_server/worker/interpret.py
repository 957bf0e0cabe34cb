"""Runs the exported program operator by operator, and checks custom operators against their fake functions.

`interpret` finds operators that raise or make values that are not finite, results whose layout differs from
that of the fake function, and integers that do not fit their dtype.

A package reads the result of a custom operator in the layout that its fake function gave at export, without
a check. The package calls the operator through the dispatcher, so that the dispatch mode `Operators` sees it.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from functools import partial
from typing import Any, Callable, Iterator

import torch
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from . import events
from .compare import Tensors, compare_all, equal
from .encode import raised_in
from .events import Broken, Layout
from .loading import arguments, load, load_with_inputs
from .process import call_padded, synchronize
from .protocol import ExportedRequest
from .report import Frame, Report, encode_frames, facts
from .run import Expected, call, expectation, watching
from .tensors import checksum, dtype_name, first_outside, is_plain, leaf_facts, only_tensors, span, unequal

# A frame of a stack trace: file, line, function, and text.
FRAME = re.compile(r'File "([^"]+)", line (\d+), in ([^\n]*)\n\s*([^\n]*)')
MOST_EVENTS = 20
MOST_RESULTS = 1000  # results of one operator whose memory is remembered
RUNS = 8  # runs in float64 with random roundings


def operate(request: ExportedRequest, report: Report) -> None:
    """Run the exported program node by node, and report each node that raises or is not finite.

    Events: `guard_failed`, `node_raised`, `node_non_finite`, `fake_mismatch`; `interpreted` at the end.
    After `node_overflow`, `node_strided` or `node_training`, `compared_form` compares the outputs with the
    file `expect`. With `package`, the package makes the same call on inputs that are read again, since the
    program may change them. Event `compared` compares the results. `rounding` says whether rounding explains
    their difference, and the difference that the user's check saw.
    """
    program, *inputs = load_with_inputs(request, report)
    leaves = _pytree.tree_leaves(inputs)
    watcher = Watcher(program.module(), leaves, report)
    with torch.no_grad(), watching(request.get("operators"), report):
        result = watcher.run(*leaves, enable_io_processing=False)
    report.event(events.Interpreted(watcher.count, leaf_facts(result)))
    forms = _forms(watcher, request)
    # With these, the user's check may have compared the outputs.
    checked = expectation(request.get("expect")) if forms or request.get("package") else None
    if checked is not None:
        _compare_forms(forms, only_tensors(result), checked, request, report)
    if request.get("package"):
        loader = load(request, report)
        flat = only_tensors(arguments(program, request))
        got = only_tensors(call(partial(loader.run, flat), 0, report))
        compared_with = compare_all(only_tensors(result), got)
        report.event(compared_with)
        identical = [*map(checksum, only_tensors(result))] == [*map(checksum, got)]
        if not compared_with.equal or (checked and not identical):
            from .compare import judge
            from .eager_values import FEWEST, expectations  # not needed for equal outputs

            again = _pytree.tree_leaves(load_with_inputs(request, report)[1:])
            wanted = expectations(program.module(), again, report, rounded=RUNS)
            if wanted.steady and all(len(each.runs) > FEWEST for each in wanted.outputs):
                judge(wanted.outputs, got, checked or [], report)


Form = Callable[[Any], torch.fx.Interpreter]


def _forms(watcher: Watcher, request: ExportedRequest) -> dict[str, Form]:
    """Other forms of the program, of which the user may have meant one."""
    forms: dict[str, Form] = {}
    if watcher.overflowed:
        forms["int64"] = lambda program: Formed(program.module(), exact, watcher.overflowed)
    if watcher.event_counts[events.NodeFromEnd]:
        forms["absent"] = lambda program: Formed(program.module(), absent)
    if watcher.lossy:
        forms["summed"] = lambda program: Formed(program.module(), summed, watcher.lossy)
    if watcher.event_counts[events.NodeStrided]:
        forms["contiguous"] = lambda program: Formed(program.module(), contiguously)
    if watcher.training:
        forms["evaluation"] = lambda program: _evaluated(program.module(), watcher.training)
    if weights := request.get("weights"):
        forms["weights"] = lambda program: _with_weights(program, weights)
    return forms


def _compare_forms(
    forms: dict[str, Form], outputs: Tensors, expected: Expected, request: ExportedRequest, report: Report
) -> None:
    """Report event `compared_form` for each form."""
    for form, changed in forms.items():
        found = [equal(expected.among(outputs), outputs, expected.limits)]
        for form_of in (changed, lambda program: torch.fx.Interpreter(program.module())):
            program, *inputs = load_with_inputs(request, report)
            with torch.no_grad():
                result = form_of(program).run(*_pytree.tree_leaves(inputs), enable_io_processing=False)
            made = only_tensors(result)
            found.append(equal(expected.among(made), made, expected.limits))
        report.event(events.ComparedForm(form, (found[0], found[1], found[2])))


def _with_weights(program: Any, path: str) -> torch.fx.Interpreter:
    """An interpreter of the program with weights from a file."""
    with torch.no_grad():
        for name, value in torch.load(path, weights_only=True).items():
            if name in program.state_dict and program.state_dict[name].shape == value.shape:
                program.state_dict[name].copy_(value)
    return torch.fx.Interpreter(program.module())


def _evaluated(module: Any, nodes: set[str]) -> torch.fx.Interpreter:
    """An interpreter of the program with the operators of `nodes` in evaluation mode."""
    for node in module.graph.nodes:
        if node.name in nodes:
            args, kwargs = list(node.args), dict(node.kwargs)
            for place, argument in enumerate(node.target._schema.arguments):
                if argument.name in MODES and place < len(args):
                    args[place] = False
                elif argument.name in MODES:
                    kwargs[argument.name] = False
            node.args, node.kwargs = tuple(args), kwargs
    return torch.fx.Interpreter(module)


MODES = ("training", "train")  # parameters of batch norms, dropouts and recurrent layers


def in_training(node: torch.fx.Node) -> bool:
    """Whether a node calls an operator in training mode."""
    schema = getattr(node.target, "_schema", None)
    for place, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.name in MODES:
            given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            return given is True
    return False


class Watcher(torch.fx.Interpreter):
    """Runs the nodes in order and checks each result."""

    def __init__(self, module: Any, leaves: list[Any], report: Report) -> None:
        super().__init__(module)
        self.report = report
        self.count = 0
        self.symbols = bind(module, leaves)
        self.event_counts: Counter[object] = Counter()
        self.bad: set[str] = set()
        self.exact: torch.Tensor | None = None
        self.overflowed: set[str] = set()
        self.training: set[str] = set()
        self.differs = False  # whether a user's operator depends on the layout of its arguments
        self.negative: tuple[int, torch.Tensor] | None = None
        self.lossy: set[str] = set()
        self.twice: dict[str, list[int]] | None = None

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        self.exact = exact(target, args, kwargs)
        self.twice = twice(target, args)  # before the call, which may write into its argument
        result = (checked if of_user(target) else super().call_function)(target, args, kwargs)
        self.differs = depends_on_layout(target, args, kwargs, only_tensors(result))
        self.negative = negative(target, args)
        return result

    def run_node(self, n: torch.fx.Node) -> Any:
        try:
            result = super().run_node(n)
            synchronize()  # raises an error of the operator's kernels here
        except Exception as error:
            if "guard" in str(n.target):
                self._report(events.GuardFailed, n, **facts(error))
                if _OF_RANGE.search(str(error)):  # go on, to see results outside the range, too
                    return None
            else:
                wrapped = sorted(self._behind(n) & self.overflowed)
                inside = raised_in(error) if of_user(n.target) else []  # the lines in the operator
                stack = [*encode_frames((frame.f_code, line) for frame, line in inside), *stack_of(n)]
                self._report(events.NodeRaised, n, stack=stack, overflowed=wrapped, **facts(error))
            raise
        if n.op == "call_function":
            self.count += 1
            self._look(n, result)
            if in_training(n):
                self.training.add(n.name)
                self._report(events.NodeTraining, n)
            if self.negative is not None:
                place, index = self.negative
                at = (index < 0).nonzero()[0].tolist()
                of, value = str(n.args[1][place]), int(index[tuple(at)])
                self._report(events.NodeFromEnd, n, of=of, index=at, value=value)
            if self.twice is not None:
                self.lossy.add(n.name)
                self._report(events.NodeRepeated, n, of=of_index(n), **self.twice)
            if self.differs:
                self._report(events.NodeStrided, n)
            wide = self.exact
            found = overflowed(result, wide) if wide is not None else None
            if wide is not None and found is not None:
                self.overflowed.add(n.name)
                # Rounding to a float counts as intended: it does harm only if large values are subtracted.
                modular = wide.is_floating_point() or any(
                    word in str(user.target) for user in n.users for word in MODULAR
                )
                source = n.args[0].meta.get("val") if isinstance(n.args[0], torch.fx.Node) else None
                undefined = wide.dtype is torch.int64 and source is not None and source.is_floating_point()
                self._report(events.NodeOverflow, n, modular=modular, undefined=undefined, **found)
        elif n.op in ("placeholder", "get_attr") and _not_finite(result):
            self.bad.add(n.name)
        return result

    def _behind(self, node: torch.fx.Node) -> set[str]:
        """The nodes from which the integer inputs of `node` are computed."""
        seen: set[torch.fx.Node] = set()
        left = [one for one in node.all_input_nodes if _holds_integers(one)]
        while left:
            one = left.pop()
            if one not in seen:
                seen.add(one)
                left.extend(one.all_input_nodes)
        return {one.name for one in seen}

    def _look(self, node: torch.fx.Node, result: Any) -> None:
        odd = _not_finite(result)
        if odd:
            fed = [arg.name for arg in node.all_input_nodes if arg.name in self.bad]
            nan = any(bool(torch.isnan(each).any()) for each in odd)
            # Attention masks hold -inf, and no +inf.
            masked = not nan and not any(bool((each == float("inf")).any()) for each in odd)
            dtype = dtype_name(odd[0].dtype)
            found = {"bad_inputs": fed, "nan": nan, "masked": masked, "dtype": dtype}
            self._report(events.NodeNonFinite, node, **found)
            self.bad.add(node.name)
        for promised, real in zip(only_tensors(node.meta.get("val")), only_tensors(result)):
            broken = difference(promised, real, self.symbols)
            if broken is None:
                continue
            strides_only = _but_strides(broken.promised) == _but_strides(broken.returned)
            if not (strides_only and str(node.target).startswith("aten.")):  # aten may choose strides
                self._report(events.FakeMismatch, node, **vars(broken))

    def _report(self, kind: Callable[..., events.Event], node: torch.fx.Node, **more: Any) -> None:
        self.event_counts[kind] += 1
        if self.event_counts[kind] <= MOST_EVENTS:
            told = {"stack": stack_of(node), **more}
            self.report.event(kind(node=node.name, op=str(node.target), **told))


def bind(module: Any, leaves: list[Any]) -> dict[Any, int]:
    """The values of the shape symbols in this call, from the sizes of the inputs."""
    found: dict[Any, int] = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, leaf in zip(placeholders, leaves):
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor) and isinstance(leaf, torch.Tensor):
            for size, actual in zip(fake.shape, leaf.shape):
                if not isinstance(size, int) and size.node.expr.is_symbol:
                    found[size.node.expr] = int(actual)
    return found


def stack_of(node: torch.fx.Node) -> list[Frame]:
    """The frames that created the node, innermost first, without those of installed packages."""
    found = [match.groups() for match in FRAME.finditer(node.meta.get("stack_trace") or "")]
    return [
        Frame(file, int(line), function, code)
        for file, line, function, code in reversed(found)
        if "/site-packages/" not in file
    ]


def difference(promised: Any, real: torch.Tensor, symbols: dict[Any, int]) -> Broken | None:
    """Return both layouts if they differ. Ignore strides of dimensions of size 1, and data-dependent shapes.

    `promised` is a fake tensor; `symbols` maps its shape symbols to their values in this call.
    """
    wanted, got = layout(promised, symbols), layout(real, symbols)
    if None in wanted.shape:
        return None
    strides = zip(real.shape, wanted.stride, got.stride)
    differ = _but_strides(wanted) != _but_strides(got) or any(
        size > 1 and want is not None and want != have for size, want, have in strides
    )
    return Broken(wanted, got) if differ else None


def _but_strides(layout: Layout) -> tuple[object, ...]:
    return (layout.shape, layout.dtype, layout.device)


def layout(tensor: Any, symbols: dict[Any, int]) -> Layout:
    def number(size: Any) -> int | None:
        if isinstance(size, int):
            return size
        value = size.node.expr.subs(symbols)
        return int(value) if value.is_number else None

    shape, stride = [number(size) for size in tensor.shape], [number(step) for step in tensor.stride()]
    return Layout(shape, stride, str(tensor.dtype), tensor.device.type)


def _holds_integers(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()


def _not_finite(value: Any) -> list[torch.Tensor]:
    numbers = (each for each in only_tensors(value) if each.is_floating_point() or each.is_complex())
    return [each for each in numbers if not bool(torch.isfinite(each).all())]


# Namespaces of torch, whose fake functions are trusted.
OWN = frozenset(
    {"aten", "prims", "prim", "inductor", "quantized", "_c10d_functional", "c10d", "higher_order"}
)


def of_user(target: Any) -> bool:
    return getattr(target, "namespace", "aten") not in OWN


def depends_on_layout(target: Any, args: Any, kwargs: Any, result: Tensors) -> bool:
    """Whether a user's operator gives other values for contiguous arguments, but the same when repeated."""
    schema = getattr(target, "_schema", None)
    if schema is None or target.namespace in OWN or schema.is_mutable:
        return False
    if all(_contiguous(tensor) is tensor for tensor in only_tensors([args, kwargs])):
        return False
    copied = only_tensors(_with_copies(target, args, kwargs))
    return not equal(result, copied) and equal(result, only_tensors(target(*args, **kwargs)))


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous() if tensor.layout is torch.strided else tensor


def _with_copies(target: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = _pytree.tree_map_only(torch.Tensor, _contiguous, (tuple(args), kwargs))
    return target(*args, **kwargs)


class Formed(torch.fx.Interpreter):
    """Runs the program. `made` gives the result of an operator, of `nodes` if given, or None to run it."""

    def __init__(self, module: Any, made: Callable[..., Any], nodes: set[str] | None = None) -> None:
        super().__init__(module)
        self.made, self.nodes, self.changed = made, nodes, True

    def run_node(self, n: torch.fx.Node) -> Any:
        self.changed = self.nodes is None or n.name in self.nodes
        result, promised = super().run_node(n), n.meta.get("val")
        # A result computed in a wider dtype, such as a difference of times, gets the model's dtype again.
        if self.changed or getattr(n.target, "is_view", True) or not isinstance(result, torch.Tensor):
            return result
        return result.to(promised.dtype) if isinstance(promised, torch.Tensor) else result

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if self.nodes is not None and "_assert_tensor_metadata" in str(target):
            return None  # the assertion would compare the original dtype
        found = self.made(target, args, kwargs) if self.changed else None
        return super().call_function(target, args, kwargs) if found is None else found


def contiguously(target: Any, args: Any, kwargs: Any) -> Any:
    """The result of a user's operator for contiguous copies."""
    return _with_copies(target, args, kwargs) if of_user(target) else None


def negative(target: Any, args: Any) -> tuple[int, torch.Tensor] | None:
    """The only index of an indexing operator, with its place, if any of its values is negative."""
    indices = args[1] if target is torch.ops.aten.index.Tensor else ()
    found = [(place, index) for place, index in enumerate(indices) if index is not None]
    whole = len(found) == 1 and found[0][1].dtype in (torch.int32, torch.int64)
    return found[0] if whole and bool((found[0][1] < 0).any()) else None


def absent(target: Any, args: Any, kwargs: Any) -> Any:
    """The result of an indexing, with zeros where its index is negative."""
    if (found := negative(target, args)) is None:
        return None
    place, index = found
    result = target(*args, **kwargs)
    rest = (1,) * (result.dim() - place - index.dim())
    return result.masked_fill((index < 0).reshape(*index.shape, *rest), 0)


MOST_WRITTEN = 1 << 20  # elements of an index that are compared


def written(target: Any, args: Any) -> tuple[list[torch.Tensor], torch.Tensor] | None:
    """The indices and values of a write by index that adds nothing up. None for other operators."""
    name = str(target).replace("_.", ".")
    if name == "aten.index_put.default" and not any(args[3:]):
        indices = [each for each in args[1] if each is not None and each.dtype in (torch.int32, torch.int64)]
        return (list(torch.broadcast_tensors(*indices)), args[2]) if len(indices) == len(args[1]) else None
    if name == "aten.scatter.src" and args[2].dim() and 0 < args[2].numel() <= MOST_WRITTEN:
        grid = list(torch.ones_like(args[2]).nonzero().view(*args[2].shape, -1).unbind(-1))
        grid[args[1]] = args[2]
        return grid, args[3][tuple(map(slice, args[2].shape))]
    return None


def twice(target: Any, args: Any) -> dict[str, list[int]] | None:
    """Two elements of an index that name one place, if it matters which value is written last."""
    found = written(target, args)
    if found is None or found[0][0].dim() == 0 or found[0][0].numel() > MOST_WRITTEN:
        return None
    (grid, values), into = found, args[0]
    flat = [each.flatten() % max(size, 1) for each, size in zip(grid, into.shape)]  # -1 is the last place
    places, which, counts = torch.stack(flat, 1).unique(dim=0, return_inverse=True, return_counts=True)
    if not (counts > 1).any():
        return None
    values = values.expand(*grid[0].shape, *into.shape[len(grid) :]).flatten(0, grid[0].dim() - 1)
    last = into.index_put(flat, values)[tuple(flat)]
    first = into.index_put([each.flip(0) for each in flat], values.flip(0))[tuple(flat)]
    differ = unequal(last, first)
    lost = (differ.flatten(1).any(1) if differ.dim() > 1 else differ) & (counts[which] > 1)
    if not lost.any():
        return None
    most = int(which[lost][0])
    same = [torch.unravel_index(at, grid[0].shape) for at in (which == most).nonzero().flatten()[:2]]
    index, other = ([int(number) for number in each] for each in same)
    return {"index": index, "other": other, "place": places[most].tolist()}


def of_index(node: torch.fx.Node) -> str:
    """The names of the indices with which a node writes."""
    indices = node.args[1] if isinstance(node.args[1], (list, tuple)) else [node.args[2]]
    return ", ".join(str(each) for each in indices)


def summed(target: Any, args: Any, _kwargs: Any) -> Any:
    """The result of a write by index in which all values of one place add up."""
    if (found := written(target, args)) is None:
        return None
    grid, values = found
    into = args[0] if "_." in str(target) else args[0].clone()
    return into.index_put_(grid, values - into[tuple(grid)], accumulate=True)


_ALONG = re.compile(r"aten::(gather|scatter\w*|index_(select|add|copy|fill|reduce))_?")


class Indices(TorchDispatchMode):
    """Raises before an operator of torch gets an index outside its tensor, which a GPU only reports later."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        along = bool(_ALONG.fullmatch(func._schema.name))
        every = func._schema.name in ("aten::index", "aten::index_put", "aten::index_put_")
        for dim, index in [(args[1], args[2])] if along else enumerate(args[1] if every else ()):
            size = args[0].shape[dim] if args[0].dim() else 1
            odd = first_outside(index, 0 if along else -size, size) if index is not None else None
            if odd is not None:
                text = "{}: index {}{} is out of bounds for dimension {} with size {}"
                raise IndexError(text.format(func, odd.value, odd.place, dim, size))
        return func(*args, **(kwargs or {}))


def checked(target: Any, args: Any, kwargs: Any) -> Any:
    """Run a user's operator under `Indices`, which sees inside only if the kernel is called directly."""
    keys = {each.device.type.upper() for each in only_tensors([args, kwargs])}
    known = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    if _get_current_dispatch_mode() is not None or len(keys) != 1 or not known(target.name(), min(keys)):
        return target(*args, **kwargs)
    with Indices():
        key = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, min(keys)))
        return target.redispatch(key, *args, **kwargs)


class Operators(TorchDispatchMode):
    """Reports `operator` for each call that breaks its schema or fake function, and may repair the result."""

    def __init__(self, report: Report, repair: bool) -> None:
        super().__init__()
        self.report = report
        self.repair = repair
        self.calls = 0
        self.events = 0
        self.returned: dict[str, list[StorageWeakRef]] = {}  # storages that each operator returned

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace in OWN:
            return func(*args, **kwargs)
        self.calls += 1
        promised = self._promised(func, args, kwargs)
        if self.repair:  # the operator gets copies of arguments that the schema declares read-only
            named = _named(func, args, kwargs)
            mutable = {id(tensor) for declared, tensor in named if declared.alias_info is not None}
            args, kwargs = _pytree.tree_map_only(
                torch.Tensor,
                lambda leaf: leaf if id(leaf) in mutable else leaf.clone(),
                (tuple(args), kwargs),
            )
        read_only = {
            declared.name: (tensor, checksum(tensor))
            for declared, tensor in _named(func, args, kwargs)
            if declared.alias_info is None and tensor.layout is torch.strided
        }
        result, overrun = call_padded(func, args, kwargs)
        layouts = [difference(fake, real, {}) for fake, real in zip(promised, only_tensors(result))]
        mutated = [name for name, (tensor, digest) in read_only.items() if checksum(tensor) != digest]
        broken = [layout for layout in layouts if layout is not None]
        aliases = _aliases(func, args, kwargs, result)
        kept = not aliases and self._kept(func, only_tensors(result))
        if (broken or mutated or aliases or overrun or kept) and self.events < MOST_EVENTS:
            self.events += 1
            stack = _returning(func) if kept else []
            found = events.Operator(str(func), self.calls, broken, mutated, aliases, overrun, kept, stack)
            self.report.event(found)
        if not self.repair:
            return result
        fakes = iter(promised)
        return _pytree.tree_map_only(torch.Tensor, lambda leaf: as_promised(leaf, next(fakes, None)), result)

    def _kept(self, func: Any, result: Tensors) -> bool:
        """Whether a result has the memory of an earlier result, which the operator then has kept.

        A weak reference does not keep the memory alive, but no other storage gets the same `_cdata`.
        """
        if any(one.alias_info is not None for one in func._schema.returns):
            return False
        known = self.returned.setdefault(str(func), [])
        storages = [each.untyped_storage() for each in result if is_plain(each) and each.numel()]
        found = any(each._cdata == ref.cdata for each in storages for ref in known)
        if not found and len(known) < MOST_RESULTS:
            known += map(StorageWeakRef, storages)
        return found

    def _promised(self, func: Any, args: Any, kwargs: Any) -> list[Any]:
        """The fake results for these inputs. Empty if there is no fake function or it fails."""
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        fake = partial(mode.from_tensor, static_shapes=True)
        try:
            fake_args, fake_kwargs = _pytree.tree_map_only(torch.Tensor, fake, (tuple(args), kwargs))
            with mode:
                return only_tensors(func(*fake_args, **fake_kwargs))
        except Exception as error:
            self.report.phase("no_fake", "{}: {}".format(func, str(error)[:1000]))
            return []


def as_promised(real: torch.Tensor, fake: Any) -> torch.Tensor:
    """A copy in the promised layout, cut or padded with zeros if the shapes differ."""
    known = fake is not None and all(isinstance(number, int) for number in (*fake.shape, *fake.stride()))
    if not known or difference(fake, real, {}) is None:
        return real.clone()
    memory = torch.zeros(span(fake.shape, fake.stride()), dtype=fake.dtype, device=real.device)
    made = memory.as_strided(tuple(fake.shape), tuple(fake.stride()))
    if made.dim() == real.dim():
        shared = tuple(slice(0, min(pair)) for pair in zip(made.shape, real.shape))
        made[shared] = real[shared].to(made.dtype)
    elif made.numel() == real.numel():
        made.copy_(real.reshape(made.shape))
    return made.to(fake.device.type)


def _returning(func: Any) -> list[Frame]:
    """The `return` lines of an operator that `torch.library.custom_op` made. Empty for others."""
    function = getattr(OPDEFS.get(func.name().partition(".")[0]), "_init_fn", None)
    try:
        lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    except (OSError, TypeError):  # not a Python function, or its file is gone
        return []
    places = ((first + place, line.strip()) for place, line in enumerate(lines))
    file = str(inspect.getsourcefile(function))  # type: ignore[arg-type]
    return [Frame(file, place, "", code) for place, code in places if code.startswith("return ")]


def _named(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, torch.Tensor]]:
    """Yield each tensor argument with its declaration in the schema; tensors of a list one by one."""
    schema = func._schema.arguments
    named = ((one, kwargs[one.name]) for one in schema if one.name in kwargs)
    for declared, value in [*zip(schema, args), *named]:
        for tensor in only_tensors(value):
            yield declared, tensor


def _aliases(func: Any, args: Any, kwargs: Any, result: Any) -> list[str]:
    """Arguments whose memory the result shares although the schema declares no alias."""
    if any(one.alias_info is not None for one in func._schema.returns):
        return []
    made = {tensor.untyped_storage().data_ptr() for tensor in only_tensors(result) if tensor.numel()}
    return [
        declared.name
        for declared, tensor in _named(func, args, kwargs)
        if tensor.numel() and tensor.untyped_storage().data_ptr() in made
    ]


# Torch silently wraps integers of these dtypes, in eager mode as in a package.
NARROW = (torch.int8, torch.int16, torch.int32, torch.uint8)
# Torch also rounds integers silently: float32 represents every integer only up to 2**24.
ROUNDED = (torch.float16, torch.bfloat16, torch.float32)
_ARITHMETIC = ("add", "sub", "rsub", "mul", "pow", "square", "neg", "__lshift__", "bitwise_left_shift")
_REDUCTIONS = ("sum", "cumsum", "prod", "cumprod", "mm", "bmm", "matmul", "mv", "dot")
OPERATORS = frozenset("aten::" + name for name in (*_ARITHMETIC, *_REDUCTIONS, "to", "_to_copy"))
# If one of these uses a result that wrapped, the wrap may be intended, as in a hash.
MODULAR = ("bitwise_", "__and__", "__or__", "__xor__", "remainder", "fmod", "__rshift__")
LARGE = 2.0**62  # a float beyond it cannot be an int64
MOST_EXACT = 1 << 22  # elements of an operator's inputs; larger operators are not computed again


def exact(target: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
    """Compute an integer operator again in int64, or in float64 if it converts to a narrower float.

    Do the same for a conversion of floats to narrow integers. None for other operators.
    """
    schema = getattr(target, "_schema", None)
    name = schema.name if schema is not None else ""
    if name not in OPERATORS and name[:-1] not in OPERATORS:
        return None
    given = only_tensors([args, kwargs])
    if not given or sum(one.numel() for one in given) > MOST_EXACT:
        return None
    if any(one.is_floating_point() or one.is_complex() for one in given):
        types = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.dtype)]
        if not types or types[0] not in NARROW or given[0].is_complex():
            return None
        return given[0].double().nan_to_num(0).clamp(-LARGE, LARGE).to(torch.int64)

    def wide(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(torch.int64, copy=True)  # a copy, because an in-place operator writes its operand
        return torch.int64 if value in NARROW else torch.float64 if value in ROUNDED else value

    try:
        wide_args, wide_kwargs = _pytree.tree_map(wide, (tuple(args), kwargs))
        result = target(*wide_args, **wide_kwargs)
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    made = isinstance(result, torch.Tensor) and result.dtype in (torch.int64, torch.float64)
    return result if made else None


def overflowed(result: Any, wide: torch.Tensor) -> dict[str, object] | None:
    """The first element that does not fit its dtype, with the `count` of all. None if all fit."""
    if not isinstance(result, torch.Tensor) or result.dtype not in (*NARROW, *ROUNDED):
        return None
    bad = result.to(wide.dtype) != wide
    if not bool(bad.any()):
        return None
    index = tuple(int(place) for place in bad.nonzero()[0])
    return {
        "dtype": dtype_name(result.dtype),
        "count": int(bad.sum()),
        "index": list(index),
        "value": int(result[index]),
        "exact": int(wide[index]),
    }


# The message of a guard when a dynamic size leaves its range (torch 2.8-2.15).
_OF_RANGE = re.compile(r"Guard failed: .*(?:<=|>=) ?\d+\s*$", re.M)
