"""A request for memory whose size is a value of the data (`.item()`, say): who gave that value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.interventions.base import Intervention
from mcp_server.diagnosis.interventions.input import Leaf, keep_in_range
from mcp_server.diagnosis.parties import launch_party
from mcp_server.diagnosis.quoting import said
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.facts import ErrorFact, LogFacts
from mcp_server.evidence.journal import ITEM_SIZES
from mcp_server.model import Evidence, Fix, Party
from mcp_server.package.arithmetic import evaluate, names_in
from mcp_server.package.buffers import Buffer
from mcp_server.package.ranges import symbol_values
from mcp_server.package.signature import CompiledInput
from mcp_server.package.symbols import Symbol, origins

# The last argument of `aoti_torch_empty_strided` and its like (torch 2.8-2.15).
_MADE = re.compile(r"&(\w+)_handle$")
MODEST = 1024  # that integers of the data are kept to in the call that is to pass


@dataclass(frozen=True)
class _Grown:
    """A buffer that is as large as the request if the size `symbol`, read from `source`, is `value`."""

    buffer: Buffer
    symbol: str
    source: Symbol
    value: int


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis, where it is known which buffer was to be made, or one value explains any."""
    for _, facts in case.logs:
        error = facts.root
        if error is None or "out_of_memory" not in error.candidates:
            continue
        asked = error.fields.get("bytes", "")
        grown = list(_explaining(int(asked), case)) if asked.isdigit() else []
        named = [one for one in grown if one.buffer.name in _named(facts)] or grown
        if len({(one.symbol, one.value) for one in named}) == 1:
            yield _suspect(named[0], error, case)
            return


def _named(facts: LogFacts) -> set[str]:
    """The buffers that failed calls of the runtime were to make."""
    calls = [error.fields["arguments"] for error in facts.errors if error.family.id == "shim_call"]
    return {name for arguments in calls for name in _MADE.findall(arguments)}


def _explaining(asked: int, case: Case) -> Iterator[_Grown]:
    if case.view is None or case.package is None or case.given is None:
        return
    sizes = symbol_values(case.package.signature, case.given.tensors)
    for buffer in case.view.wrapper.buffers.values():
        names = {name for each in buffer.sizes or () for name in names_in(each)} - sizes.keys()
        symbols = case.view.wrapper.symbols
        open_ones = [name for name in names if name in symbols and symbols[name].unbacked]
        source = next((s for s in origins(" ".join(open_ones), symbols) if s.tensor), None)
        if buffer.kind != "allocated" or len(names) != 1 or source is None:
            continue
        value = _value(buffer, open_ones[0], sizes, asked)
        if value is not None:
            yield _Grown(buffer, open_ones[0], source, value)


def _value(buffer: Buffer, name: str, sizes: dict[str, int], asked: int) -> int | None:
    """What the one open size has to be, where the buffer's size is a multiple of it."""
    once, twice = (_bytes(buffer, {**sizes, name: number}) for number in (1, 2))
    if once is None or twice is None or once < 1 or twice != 2 * once or asked % once:
        return None
    return asked // once


def _bytes(buffer: Buffer, sizes: dict[str, int]) -> int | None:
    values = [evaluate(each, sizes) for each in buffer.sizes or ()]
    known = [int(value) for value in values if value is not None]
    item = ITEM_SIZES.get(buffer.dtype or "")
    return prod(known) * item if item and len(known) == len(values) else None


def _suspect(grown: _Grown, error: ErrorFact, case: Case) -> Suspect:
    asked = error.fields["bytes"]
    launch, item = _writer(grown, case), _input(grown, case)
    fact = (
        f"{grown.buffer.name} needs {asked} bytes where {grown.symbol}, a value of the data, is {grown.value}"
    )
    behind = f" It is computed from {item.label}." if item is not None else ""
    return Suspect(
        category="out_of_memory",
        guilty=_party(grown, launch, item, case),
        summary=f"There is no memory for {asked} bytes: {fact}.{behind}",
        level=CausalLevel.CALL,
        evidence=(said(error), Evidence(step="inspect_package", fact=fact)),
        fix=Fix(action="check the values that become a size before the call, and refuse what is too large"),
        intervention=_modest(item, case),
    )


def _writer(grown: _Grown, case: Case) -> int | None:
    """The launch that computes the value; None where an input is read as it is."""
    assert case.view is not None and grown.source.tensor is not None
    return next(iter(case.view.writers_of_name.get(grown.source.tensor, ())), None)


def _input(grown: _Grown, case: Case) -> CompiledInput | None:
    """The only input that the value is computed from."""
    assert case.view is not None and case.package is not None
    launch = _writer(grown, case)
    labels = case.view.inputs_behind(launch) if launch is not None else []
    names = {grown.source.tensor} if launch is None else set()
    found = [item for item in case.package.inputs if item.label in labels or item.name in names]
    return found[0] if len(found) == 1 else None


def _party(grown: _Grown, launch: int | None, item: CompiledInput | None, case: Case) -> Party:
    assert case.view is not None
    made = (
        launch_party(launch, case.view.wrapper.launches[launch].kernel, case) if launch is not None else None
    )
    lines = made.model_locations[:3] if made is not None else []
    value = f"makes {grown.symbol} {grown.value}"
    places = [*lines, *case.call_locations[:1]]
    if item is not None:
        return Party(
            kind="input",
            name=item.path or item.name,
            input_index=item.index,
            value=value,
            model_locations=places,
        )
    party = made if made is not None else Party(kind="call", name="the call's inputs")
    return party.model_copy(update={"value": value, "model_locations": places})


def _modest(item: CompiledInput | None, case: Case) -> Intervention | None:
    """The call with small values there. It can only confirm: they may be needed for another reason."""
    if item is None or not (item.dtype or "").startswith(("int", "uint")):
        return None
    test = keep_in_range(Leaf(item.index, item.path or item.name), -MODEST, MODEST)
    trial = case.trials.get(test.key)
    return test if trial is None or trial.proves else None
