"""Constants that were given as views of a larger block, of which an update copies as much as the block has.

`update_constant_buffer` copies `aoti_torch_get_storage_size` bytes from the address of the view, and reads
the copy with the offset that the view had in its block (torch/csrc/inductor/aoti_runtime/model_container.h,
2.8-2.15): it reads and writes beyond the constant, and computes with what lies further on.
"""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.captured import CapturedUpdate
from mcp_server.model import Evidence, Fix, Party

COPIES = ("load_constants", "update_constant_buffer")  # by storage; what the program manages is not copied


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis, for the update that did not come back, else the last one before the suspect call.

    It was given views, and may belong to another package of that process: what is written beyond a constant
    is anyone's memory.
    """
    seen = case.capture
    call = seen.suspect if seen is not None else None
    given = [u for u in (seen.updates if seen is not None else ()) if _viewed(u)]
    before = [u for u in given if call is None or (u.pid == call.pid and u.n <= call.n)]
    updates = [u for u in given if u.outcome != "ok"] or before
    if updates:
        yield _suspect(updates[-1], _viewed(updates[-1]), case)


def _viewed(update: CapturedUpdate) -> list[str]:
    return update.views if update.how in COPIES and not update.user_managed else []


def _suspect(update: CapturedUpdate, names: list[str], case: Case) -> Suspect:
    shown = ", ".join(names[:4])
    what = "the call after those constants were given as copies of their own"
    return Suspect(
        category="constants",
        guilty=Party(
            kind="constant",
            name=names[0],
            value="a view of a larger block of memory",
            model_locations=update.stack[:2],
        ),
        summary=f"{update.how} was given views of a larger block, and copies as many bytes as that has, from "
        f"where each view begins: {shown}.",
        level=CausalLevel.STATE,
        evidence=(
            Evidence(
                step="capture",
                fact=f"{len(names)} constants given to {update.how} are parts of larger storages: {shown}",
                source=str(update.file or ""),
            ),
        ),
        fix=Fix(
            action="give each constant memory of its own",
            before=f"{names[0]!r}: view",
            after=f"{names[0]!r}: view.clone()",
        ),
        intervention=Intervention("own memory", Kind.CONSTANT, what, options=Options(copied=tuple(names))),
        harmful=case.failed,
        observed=False,
    )
