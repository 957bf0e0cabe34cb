"""A call that, made again, gives other outputs: each time, or with other bytes in new memory."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors.random_numbers import drawing_launches
from mcp_server.diagnosis.parties import launch_party
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Evidence, Fix, Party
from mcp_server.steps.eager_records import Changed
from mcp_server.steps.eager_verdict import Repeats

COMPARE = "Holding the outputs against the model's own (compare_with_eager) would settle it."


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis, unless random numbers are drawn: then a difference is no surprise."""
    if case.differs_in("second"):
        if not drawing_launches(case):
            yield _unsteady(case)
    elif case.reads_unset:
        yield _unset(case)


def _unset(case: Case) -> Suspect:
    """What the last call found in new memory shows in its outputs."""
    where = _parted(case, "filled")
    fact = "with other bytes in new memory the same call gives other outputs"
    at = f", first in what launch {where.launch} ({where.kernel}) writes" if where is not None else ""
    return Suspect(
        category="wrong_output",
        guilty=_party(where, case),
        summary=f"The outputs depend on memory that nothing wrote{at}.",
        level=CausalLevel.BAD_VALUE,
        evidence=(
            Evidence(step="repeat_call", fact="made again as it is, the call gives the same outputs"),
            Evidence(step="repeat_call", fact=fact + at),
        ),
        fix=Fix(
            action="let it write all of its result, and read no further than its arguments reach: "
            "torch.empty is not zeros"
        ),
    )


def _unsteady(case: Case) -> Suspect:
    """The outputs differ from call to call, for a reason that the package does not show."""
    where = _parted(case, "second")
    at = f" from launch {where.launch} ({where.kernel}) on" if where is not None else ""
    return Suspect(
        category="wrong_output",
        guilty=_party(where, case),
        summary=f"The same call gives other outputs each time{at}, and no launch of the package draws random "
        "numbers.",
        level=CausalLevel.BAD_VALUE,
        evidence=(Evidence(step="repeat_call", fact=f"two calls on the same inputs differ{at}"),),
        fix=Fix(action="let it depend on its arguments alone: no state of its own, no race, no unset memory"),
        weak=True,
        settle=COMPARE,
    )


def _parted(case: Case, run: str) -> Changed | None:
    """The first tensor that differs between the first run and that one."""
    done = case.repeated_watched
    return Repeats(done).change("first", run) if done is not None else None


def _party(where: Changed | None, case: Case) -> Party:
    """The launch at which the outputs part; the package where that is not known."""
    if where is None:
        return Party(kind="package", name=case.package.path.name if case.package else "the package")
    return launch_party(where.launch, where.kernel, case)
