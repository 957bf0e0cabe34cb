"""Records of the value printer, grouped into launches and matched with the wrapper's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from mcp_server.evidence.printer import Printed, PrintedScalar, PrintedTensor, SavedTensor
from mcp_server.package.launches import Launch
from mcp_server.package.shims import Role
from mcp_server.steps.first_bad import Model
from mcp_server.steps.kernel_io import ArgumentValues, BadElement, LaunchValues, Phase

INPUTS = "model inputs"


@dataclass
class _Group:
    """Records of one launch."""

    kernel: str
    records: list[Printed] = field(default_factory=list)

    def belongs(self, record: Printed) -> bool:
        """A new launch begins with another kernel, or when something comes before a launch that has ended."""
        ended = any(one.when == "after_launch" for one in self.records)
        return record.kernel == self.kernel and not (ended and record.when == "before_launch")


def printed_launches(
    records: Iterable[Printed], model: Model, facts: Mapping[str, ArgumentValues] | None = None
) -> Iterator[LaunchValues]:
    """Launches in the order of the output; the model's inputs are a first one without a number.

    `facts` are the values of level 1's files by path.
    """
    # Each group is the next launch of its kernel: the code is a straight line outside branches and loops.
    place = 0
    for sequence, group in enumerate(_grouped(records)):
        following = model.wrapper.launches[place:]
        found = next((launch for launch in following if launch.kernel == group.kernel), None)
        place = found.index + 1 if found else place
        yield _launch(group, sequence, found, model, facts or {})


def _grouped(records: Iterable[Printed]) -> Iterator[_Group]:
    group: _Group | None = None
    for record in records:
        if group is None or not group.belongs(record):
            if group is not None:
                yield group
            group = _Group(record.kernel)
        group.records.append(record)
    if group is not None:
        yield group


def _launch(
    group: _Group, sequence: int, known: Launch | None, model: Model, facts: Mapping[str, ArgumentValues]
) -> LaunchValues:
    arguments = [_argument(record, known, facts) for record in group.records]
    tensors = {a.target for a in known.tensors if a.target} if known else set()
    return LaunchValues(
        kernel=group.kernel or INPUTS,
        sequence=sequence,
        launch=known.index if known else None,
        arguments=arguments,
        not_shown=sorted(tensors - {a.name for a in arguments}),
        locations=model.locations(known.index) if known else [],
    )


def _argument(record: Printed, known: Launch | None, facts: Mapping[str, ArgumentValues]) -> ArgumentValues:
    role = _role(record.argument, known)
    when: Phase = "after" if record.when == "after_launch" else "before"
    unset = when == "before" and (role == "written" or (role == "unknown" and _fresh(record)))
    if isinstance(record, PrintedScalar):
        return ArgumentValues(name=record.argument, when=when, role="read", value=record.text)
    if isinstance(record, SavedTensor):
        values = facts.get(record.path) or ArgumentValues(name="", when=when, device=record.device)
        return values.model_copy(
            update={"name": record.argument, "when": when, "role": role, "uninitialised": unset}
        )
    return _tensor(record, when, role, unset)


def _fresh(record: Printed) -> bool:
    """A buffer that no launch was seen to write before."""
    return isinstance(record, PrintedTensor) and record.uninitialised


def _role(name: str, known: Launch | None) -> Role:
    roles: dict[str | None, Role] = {a.target: a.role for a in known.tensors} if known else {}
    return roles.get(name, "unknown")


def _tensor(record: PrintedTensor, when: Phase, role: Role, unset: bool) -> ArgumentValues:
    return ArgumentValues(
        name=record.argument,
        when=when,
        role=role,
        dtype=record.dtype,
        shape=list(record.size),
        stride=list(record.stride),
        device=record.device,
        min=finite(record.minimum),
        max=finite(record.maximum),
        mean=finite(record.mean),
        non_finite=non_finite(record),
        uninitialised=unset,
    )


def finite(number: float | None) -> float | None:
    """None for what JSON has no number for."""
    return number if number is not None and math.isfinite(number) else None


def non_finite(record: PrintedTensor) -> BadElement | None:
    """What minimum, maximum and printed values say. The mean alone is no sign: in float32 it overflows over
    finite values; a complex tensor has nothing else.
    """
    told = [record.minimum, record.maximum, *record.values]
    if record.minimum is None:
        told.append(record.mean)
    bad = [value for value in told if value is not None and not math.isfinite(value)]
    if not bad:
        return None
    worst = next((value for value in bad if math.isnan(value)), None) or max(bad)
    counted = sum(not math.isfinite(value) for value in record.values) or None
    return BadElement(value=str(worst), count=counted)
