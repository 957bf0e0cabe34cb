"""Writes a value as an expression of the model's tensors, across launches that compute elementwise."""

from dataclasses import dataclass, field

from mcp_server.diagnosis.origin import Operand
from mcp_server.diagnosis.origin.walk import (
    Computed,
    Given,
    Place,
    Produced,
    Source,
    Walker,
    argument_of,
    operator_label,
    value_of,
)
from mcp_server.package.launches import Launch
from mcp_server.package.terms.evaluate import Evaluator, UnknownValue
from mcp_server.package.terms.parts import parts, rebuilt, say, uncast
from mcp_server.package.terms.term import Apply, Element, Number, Position, Scalar, Size, Term
from mcp_server.package.view import PackageView
from mcp_server.plurals import listed

_DEEPEST = 12
_LARGEST = 400
_INLINED = 2000
MOST_INPUTS = 3  # inputs that are named for an operand


@dataclass(frozen=True, eq=False)
class Leaf:
    """An element at which the expression ends: its source, and its value."""

    source: Source
    value: Scalar | None
    index: tuple[int, ...] | None = None

    @property
    def key(self) -> tuple[object, ...]:
        match self.source:
            case Given(kind=kind, name=name, index=index, place=place):
                return kind, name, index if index is not None else place.offset
            case Produced(launch=launch, argument=argument, offset=offset):
                return launch.index, argument.name, offset
        return (id(self),)


@dataclass
class Expression:
    """A term over `leaves`, by parameter name. Elements inside a reduction are named `LAUNCH:PARAMETER`."""

    term: Term
    leaves: dict[str, Leaf]
    atens: tuple[str, ...]
    walker: Walker
    names: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """Format the expression with a letter for each tensor, indexed if it reads several elements of it."""
        return say(self.term, lambda each: self.names.get(each.parameter, each.parameter), self.atens)

    def evaluator(self, changed: dict[str, Scalar] | None = None) -> Evaluator:
        """An evaluator of the term, with other values for some leaves."""
        changed = changed or {}

        def read(element: Element, offset: int) -> Scalar | None:
            if element.parameter in changed:
                return changed[element.parameter]
            if element.parameter in self.leaves:
                return self.leaves[element.parameter].value
            number, _, parameter = element.parameter.partition(":")
            launch = self.walker.view.wrapper.launches[int(number)]
            inner = Element(parameter, element.index, element.dtype, element.line)
            return self.walker.element(launch, inner, offset)

        return Evaluator({}, {}, read)

    def value_with(self, term: Term, name: str, value: Scalar) -> Scalar:
        """The value of a term for another value of the leaf `name`."""
        return self.evaluator({name: value}).value(term)


class Closing:
    """Replaces what a launch loads by the expressions of earlier launches, back to inputs and operators."""

    def __init__(self, walker: Walker) -> None:
        self.walker = walker
        self.leaves: dict[str, Leaf] = {}
        self._by_key: dict[tuple[object, ...], str] = {}
        self._atens: dict[str, None] = {}
        self._size = 0

    def close(self, computed: Computed) -> Expression:
        """The expression of what a launch computes at one point of its loops."""
        term = self._closed(computed, 0)
        expression = Expression(term, self.leaves, tuple(self._atens), self.walker)
        expression.names = _names(expression)
        return expression

    def _closed(self, computed: Computed, depth: int) -> Term:
        launch, evaluator = computed.launch, computed.evaluator
        provenance = self.walker.view.provenance(launch)
        names = (*launch.atens, *provenance.post_grad, *provenance.pre_grad, *launch.kernel.split("_"))
        self._atens.update(dict.fromkeys(names))
        self._size += sum(1 for _ in parts(computed.term))

        def change(term: Term) -> Term | None:
            if isinstance(term, Element):
                return self._element(launch, term, evaluator, depth)
            if isinstance(term, Apply) and term.op == "where":
                test, *both = term.args
                of_place = not any(isinstance(each, Element) for each in parts(test))
                holds = value_of(test, evaluator) if of_place else None
                branch = both[0 if holds else 1] if holds is not None else None
                if branch is not None and not isinstance(uncast(branch), Number):
                    return rebuilt(branch, change)
            return _number(term, evaluator)

        return rebuilt(computed.term, change)

    def _element(self, launch: Launch, element: Element, evaluator: Evaluator, depth: int) -> Term:
        try:
            offset = int(evaluator.value(element.index))
            inner = self.walker.stored(launch, element.parameter, offset, element.line)
        except UnknownValue:
            return self._inside(launch, element, evaluator)
        if inner is not None and self._size < _INLINED:
            return self._closed(inner, depth + 1)
        if inner is not None:
            return self._inside(launch, element, evaluator)
        # Use the expression that computed the element if it is short, else a leaf.
        place = Place(launch, argument_of(launch, element.parameter), offset)
        value = self.walker.element(launch, element, offset)
        source = self.walker.back(place).source if value is not None else self.walker.source(place)
        if isinstance(source, Computed):
            if depth < _DEEPEST and self._size + sum(1 for _ in parts(source.term)) <= _LARGEST:
                return self._closed(source, depth + 1)
            source = Produced(source.launch, place.argument, place.offset)
        return self.leaf(source, element.dtype, value)

    def leaf(self, source: Source, dtype: str, value: Scalar | None) -> Term:
        """An element at which the expression ends."""
        index = source.index if isinstance(source, Given) else None
        if isinstance(source, Produced):
            made = self.walker.values.tensor(source.launch.index, source.argument, "after")
            index = made.index(source.offset) if made else None
        leaf = Leaf(source, value, index)
        name = self._by_key.setdefault(leaf.key, f"leaf{len(self._by_key)}")
        self.leaves[name] = leaf
        return Element(name, Number(0, "int64"), dtype)

    def _inside(self, launch: Launch, element: Element, evaluator: Evaluator) -> Term:
        """An element inside a reduction: a different element at each point of the loop."""

        def change(term: Term) -> Term | None:
            if isinstance(term, Element) and ":" not in term.parameter:
                index = rebuilt(term.index, change)
                return Element(f"{launch.index}:{term.parameter}", index, term.dtype, term.line)
            return _number(term, evaluator)

        return rebuilt(element, change)


def _number(term: Term, evaluator: Evaluator) -> Number | None:
    """The value of a loop variable or size at the evaluator's point. None if unknown."""
    known = evaluator.positions if isinstance(term, Position) else evaluator.sizes
    if isinstance(term, Position | Size) and term.name in known:
        return Number(known[term.name], "int64")
    return None


def by_tensor(leaves: dict[str, Leaf], walker: Walker) -> dict[str, list[str]]:
    """The names of leaves, grouped by their tensors."""
    tensors: dict[str, list[str]] = {}
    for name, leaf in leaves.items():
        tensors.setdefault(tensor_of(leaf, walker), []).append(name)
    return tensors


def _names(expression: Expression) -> dict[str, str]:
    """A letter for each tensor, with the index if several of its elements are read."""
    tensors = by_tensor(expression.leaves, expression.walker)
    letters = dict(zip(tensors, "xyzuvwabcdefg", strict=False))
    found = {}
    for tensor, names in tensors.items():
        for name in names:
            letter = letters.get(tensor, tensor)
            found[name] = letter if len(names) == 1 else f"{letter}{index_text(expression.leaves[name])}"
    for each in parts(expression.term, inside_indices=True):
        if isinstance(each, Element) and ":" in each.parameter:
            number, _, parameter = each.parameter.partition(":")
            launch = expression.walker.view.wrapper.launches[int(number)]
            target = argument_of(launch, parameter).target
            found[each.parameter] = label_of(target or parameter, expression.walker)
    return found


def tensor_of(leaf: Leaf, walker: Walker) -> str:
    """A readable name for the tensor of a leaf."""
    match leaf.source:
        case Given(name=name):
            return label_of(name, walker)
        case Produced(argument=argument):
            return argument.target or argument.name
    return "value"


def label_of(name: str, walker: Walker) -> str:
    """`args[1]` for an input, `layers.7.bias.weight` for a constant."""
    package = walker.view.package
    inputs = (item.path or item.label for item in package.inputs if item.name == name)
    constants = (constant.fqn for constant in package.constants if constant.name == name)
    return next(filter(None, (*inputs, *constants)), name)


def index_text(leaf: Leaf) -> str:
    """The index such as `[2, 17]`. Empty for a scalar, and `[...]` if the index is unknown."""
    if leaf.index is None:
        return "[...]"
    return f"[{', '.join(map(str, leaf.index))}]" if leaf.index else ""


def operands(expression: Expression) -> list[Operand]:
    """The tensors that an expression reads, by their letters."""
    found = []
    for tensor, (name, *more) in by_tensor(expression.leaves, expression.walker).items():
        leaf = expression.leaves[name]
        label = tensor + (index_text(leaf) if not more else "")
        launch = leaf.source.launch if isinstance(leaf.source, Produced) else None
        made_by = _made_by(launch, expression.walker.view) if launch is not None else ""
        called = expression.names[name].partition("[")[0]
        if called.isidentifier():  # otherwise, the text of an operator call names its arguments
            found.append(Operand(name=called, label=label, made_by=made_by))
    return found


def _made_by(launch: Launch, view: PackageView) -> str:
    """Name the launch, and the model inputs that it depends on if they are few."""
    inputs = [view.label(name) for name in view.flow_of(launch).backward_from(launch.index).inputs]
    given = f" from {listed(inputs)}" if 0 < len(inputs) <= MOST_INPUTS else ""
    return f"computed by launch {launch.index} ({operator_label(launch, view)}){given}"


def shown(value: Scalar | None) -> str:
    """Format a value; `?` if it was not seen."""
    if value is None:
        return "?"
    return f"{value:.7g}" if isinstance(value, float) else str(value)
