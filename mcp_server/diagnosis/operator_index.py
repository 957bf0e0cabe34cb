"""Index arguments of operators that refused one: which input elements they are, and their bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.index_parts import IndexPart
from mcp_server.evidence.facts import ErrorFact, LogFacts
from mcp_server.package.launches import Argument, Launch

# Names of index arguments and of the tensors that they index, in ATen's schemas.
_INDICES = frozenset({"indices", "index", "target"})
_INDEXED = ("weight", "self", "out")


@dataclass(frozen=True)
class OperatorIndex:
    """An index argument of a launch; `part` is set where it is an input as the caller gave it."""

    launch: Launch
    argument: Argument
    bound: int
    part: IndexPart | None
    producers: tuple[int, ...]


def refused_index(case: Case) -> ErrorFact | None:
    """The text with which an operator of the call refused an index."""
    for _, facts in case.logs:
        if facts.root is not None and facts.root.family.id == "aten_index":
            return facts.root
    return None


def operator_indices(case: Case) -> list[OperatorIndex]:
    """The index arguments that the refused one can be; empty when no operator refused one."""
    error = refused_index(case)
    if error is None or case.view is None:
        return []
    names = {name for _, facts in case.logs for name in _shims(facts)}
    launches = [launch for launch in case.view.wrapper.launches if launch.kind in ("fallback_shim", "extern")]
    return [found for launch in launches for found in _of(launch, names, error, case)]


def _shims(facts: LogFacts) -> Iterator[str]:
    """The operator calls of the generated code that reported an error."""
    return (error.fields["call"] for error in facts.errors if error.family.id == "shim_call")


def _of(launch: Launch, names: set[str], error: ErrorFact, case: Case) -> Iterator[OperatorIndex]:
    if names and launch.callee not in names:
        return
    bound = _bound(launch, error, case)
    for argument in launch.arguments:
        if argument.name in _INDICES and argument.is_tensor and argument.target and bound is not None:
            producers = _producers(launch, argument, case)
            part = None if producers else _part(argument, bound, case)
            yield OperatorIndex(launch, argument, bound, part, producers)


def _bound(launch: Launch, error: ErrorFact, case: Case) -> int | None:
    """From the text, else the first size of the constant that is indexed."""
    text = error.fields.get("bound", "")
    if text.isdigit():
        return int(text)
    indexed = next((a for name in _INDEXED for a in launch.arguments if a.name == name), None)
    if indexed is None or indexed.kind != "constant" or case.package is None or indexed.view is not None:
        return None
    constant = next((c for c in case.package.constants if c.name == indexed.target), None)
    return constant.shape[0] if constant is not None and constant.shape else None


def _producers(launch: Launch, argument: Argument, case: Case) -> tuple[int, ...]:
    assert case.view is not None
    writers = case.view.writers_of_name.get(argument.target or "", ())
    return tuple(number for number in writers if number < launch.index)


def _part(argument: Argument, bound: int, case: Case) -> IndexPart | None:
    inputs = case.package.inputs if case.package is not None else ()
    index = next((item.index for item in inputs if item.name == argument.target), None)
    return IndexPart(index, 0, 1, 0, bound - 1) if index is not None else None
