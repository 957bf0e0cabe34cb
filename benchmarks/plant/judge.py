"""Compares a verdict with the answer of a planted program, field by field. Pure: data in, scores out."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Data = dict[str, Any]
ValueAt = Callable[[int, tuple[int, ...]], "float | None"]
LINES_AT_MOST = 2
ELEMENT = re.compile(r"args\[(?P<input>\d+)\]\[(?P<place>[\d, ]+)\]")
CLAIM = re.compile(
    r"^args\[(?P<input>\d+)\]\[(?P<place>[\d, ]+)\] = (?P<value>-?(?:[\d.]+(?:e[+-]?\d+)?|inf|nan))$"
)


@dataclass(frozen=True)
class Answer:
    """The answer: that of `faults.Truth`, with what is needed to check the verdict's other fields."""

    categories: tuple[str, ...] = ()  # empty: healthy
    inputs: tuple[int, ...] = ()
    element: tuple[int, ...] | None = None
    row: bool = False
    constant: str = ""
    dimension: int | None = None
    lines: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    call: int = 1
    first_call: int | None = None  # the first of the failing calls, if not only `call` fails
    source: tuple[str, ...] = ()  # lines of model.py
    program: tuple[str, ...] = ()  # lines of program.py
    constants: tuple[str, ...] = ()


@dataclass(frozen=True)
class Score:
    """A field of None means that there was nothing to judge."""

    outcome: str
    category: str
    confidence: str
    category_right: bool
    component_right: bool | None = None
    element_right: bool | None = None  # the element or the line
    element_named: bool | None = None
    line_named: bool | None = None
    fix_printed: bool | None = None
    fix_right: bool | None = None  # if the printed fix is a change that can be applied
    false_fields: tuple[str, ...] = field(default=())

    @property
    def right(self) -> bool:
        return self.category_right and self.component_right is not False and not self.false_fields

    @property
    def accused(self) -> bool:
        return self.outcome == "fault"


def judge(answer: Answer, verdict: Data, value_at: ValueAt | None = None) -> Score:
    """`value_at` tells what an input has at a place. A healthy program only needs not to be accused."""
    outcome, category = verdict["outcome"], verdict.get("category") or ""
    confidence = verdict.get("confidence") or ""
    if not answer.categories:
        return Score(outcome, category, confidence, category_right=outcome != "fault")
    fault = outcome == "fault"
    party = verdict.get("guilty") or {}
    element = fault and element_named(answer, verdict) if answer.element is not None else None
    line = fault and line_named(answer, party) if answer.lines else None
    named = [mark for mark in (element, line) if mark is not None]
    return Score(
        outcome,
        category,
        confidence,
        category_right=fault and category in answer.categories,
        component_right=fault and component_right(answer, party),
        element_right=any(named) if named else None,
        element_named=element,
        line_named=line,
        fix_printed=bool((verdict.get("fix") or {}).get("text")),
        false_fields=tuple(false_fields(answer, verdict, value_at)),
    )


def component_right(answer: Answer, party: Data) -> bool:
    """Whether the party is an input of the answer, the call with exactly its inputs, its constant, one of
    its kinds, or a line of at most two listed.
    """
    kind = party.get("kind")
    if kind == "input" and party.get("input_index") in answer.inputs:
        return True
    named = {int(number) for number in re.findall(r"\bargs\[(\d+)\]", party.get("value") or "")}
    if kind == "call" and answer.inputs and named == set(answer.inputs):  # exchanged, for example
        return True
    if kind == "constant" and same_name(answer.constant, party.get("name") or ""):
        return True
    if kind in answer.kinds:
        return True
    return line_named(answer, party)


def same_name(one: str, other: str) -> bool:
    """Whether two names are of one constant; packages write underscores for dots."""
    return bool(one) and one.replace(".", "_") == other.replace(".", "_")


def line_named(answer: Answer, party: Data) -> bool:
    found = [
        place["line"] for place in party.get("model_locations") or () if place["file"].endswith("model.py")
    ]
    return 0 < len(found) <= LINES_AT_MOST and any(line in answer.lines for line in found)


def element_named(answer: Answer, verdict: Data) -> bool:
    """Whether the verdict names the element, of an input of the answer or of its constant."""
    party = verdict.get("guilty") or {}
    named = " ".join([*(party.get("elements") or ()), verdict.get("summary") or ""])
    if not answer.inputs:
        return any(fits(answer, place) for place in indices(f"{party.get('value') or ''} {named}"))
    for found in ELEMENT.finditer(named):
        place = tuple(int(part) for part in found["place"].split(","))
        if int(found["input"]) in answer.inputs and fits(answer, place):
            return True
    if party.get("kind") != "input" or party.get("input_index") not in answer.inputs:
        return False
    return any(fits(answer, place) for place in indices(f"{party.get('value') or ''} {named}"))


def indices(text: str) -> list[tuple[int, ...]]:
    """Every index in a text, such as `[1, 13]`."""
    found = re.findall(r"\[(\d+(?:, ?\d+)*)\]", text)
    return [tuple(int(part) for part in place.split(",")) for place in found]


def fits(answer: Answer, place: tuple[int, ...]) -> bool:
    wanted = answer.element or ()
    return place[: len(wanted)] == wanted if answer.row else place == wanted


def false_fields(answer: Answer, verdict: Data, value_at: ValueAt | None) -> Iterator[str]:
    """Statements in machine-readable fields that the program itself refutes."""
    for party in [verdict.get("guilty") or {}, verdict.get("crashing") or {}, *(verdict.get("causes") or ())]:
        for place in party.get("model_locations") or ():
            if place["file"].endswith("model.py"):
                yield from false_line(place, answer.source)
            elif place["file"].endswith("program.py"):
                yield from false_line(place, answer.program)
        if party.get("kind") == "constant" and answer.constants:
            name = party.get("name") or ""
            if not any(same_name(known, name) for known in answer.constants):
                yield f"no constant is called {name}"
        if value_at is not None:
            yield from false_elements(party.get("elements") or (), value_at)
    number = (verdict.get("call") or {}).get("number")
    if number is not None and not (answer.first_call or answer.call) <= number <= answer.call:
        yield f"call {number} is named, and call {answer.call} fails"


def false_line(place: Data, source: Sequence[str]) -> Iterator[str]:
    """A location with other code than the file has at that line."""
    number, code = place["line"], (place.get("code") or "").strip()
    if not 0 < number <= len(source):
        yield f"line {number} does not exist"
    elif code and code not in source[number - 1].strip():
        yield f"line {number} is not {code}"


def false_elements(elements: Sequence[str], value_at: ValueAt) -> Iterator[str]:
    """Elements of inputs with a value that they do not have."""
    for told in elements:
        found = CLAIM.match(told)
        if found is None:
            continue
        place = tuple(int(part) for part in found["place"].split(","))
        value = value_at(int(found["input"]), place)
        if value is None:
            yield f"{told}: there is no such element"
        elif not close(float(found["value"]), value):
            yield f"{told}: it is {value}"


def close(told: float, value: float) -> bool:
    """Whether numbers are equal, when one was printed with five digits."""
    if told != told or value != value:
        return told != told and value != value
    return told == value or abs(told - value) <= 1e-3 * max(abs(value), 1e-30)
