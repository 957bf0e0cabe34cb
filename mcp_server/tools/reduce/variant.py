"""One launch of a Triton kernel alone, as it is and with another source: does that change its result?"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import anyio.to_thread

from mcp_server.model import PackageWorkload
from mcp_server.tools.context import Context
from mcp_server.tools.first_bad import model_of
from mcp_server.tools.reduce.failing import STATUS
from mcp_server.tools.reduce.launch import TRITON_FILE, record

_DIFFERS = re.compile(r"^differs: (\w+) .*\(by up to (\S+), recorded values reach (\S+)\)", re.M)


@dataclass(frozen=True)
class Changed:
    """By how much what the changed source wrote into `parameter` differs from the record, at most.

    `reach` is the largest recorded value.
    """

    parameter: str
    by: float
    reach: float

    @property
    def relative(self) -> float:
        return self.by / self.reach if self.reach else float("inf")


@dataclass(frozen=True)
class Variant:
    """`sound`: the unchanged source writes what was recorded, so that the comparison says something.

    `changed` is None where the other source writes the same; `failure` is how it ended otherwise.
    """

    launch: int
    sound: bool
    changed: Changed | None = None
    failure: str = ""


async def launch_variant(
    context: Context, called: PackageWorkload, number: int, change: Callable[[str], str]
) -> Variant:
    """Launch `number` of the call replayed twice: as it was, and with `change` applied to its kernel's text.

    Raises `ProblemError` for a launch without a source of its kernel, and for one that cannot be recorded.
    """
    replayed = await record(context, called, await anyio.to_thread.run_sync(model_of, called), number)
    unchanged = await replayed.run(context)
    if not unchanged.ok:
        return Variant(number, sound=False)
    source = replayed.directory / TRITON_FILE
    source.write_text(change(source.read_text(encoding="utf-8")), encoding="utf-8")
    finished = await replayed.run(context)
    if finished.ok:
        return Variant(number, sound=True)
    found = _DIFFERS.search(finished.output.read_text(encoding="utf-8", errors="replace"))
    if finished.returncode != STATUS["departs"] or found is None:
        return Variant(number, sound=True, failure=f"exit status {finished.returncode}")
    return Variant(number, sound=True, changed=Changed(found[1], float(found[2]), float(found[3])))
