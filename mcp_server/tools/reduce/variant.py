"""One launch of a Triton kernel alone, as it is and with another source: does that change its result?"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from mcp_server.jobs.types import Finished
from mcp_server.model import PackageWorkload
from mcp_server.package.archive import open_package
from mcp_server.package.wrapper import read_wrapper
from mcp_server.tools.context import Context, gpus_of
from mcp_server.tools.first_bad import Model
from mcp_server.tools.reduce.failing import STATUS
from mcp_server.tools.reduce.launch import TRITON_FILE, kernel_of, record, replay, run_alone, seen_in, write

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
    package = open_package(called.package, called.model_name)
    model = Model(package, read_wrapper(package.wrapper_text, package.kernel_text))
    kernel = kernel_of(model, number)
    seen = seen_in(await record(context, called, number), model, number)
    directory = context.fresh("variant")
    write(replay(seen, model, kernel), seen.arguments, directory)
    gpus = gpus_of(package.device_type, called.device_index)
    as_it_was = await run_alone(context, called, directory, gpus)
    if not as_it_was.ok:
        return Variant(number, sound=False)
    source = directory / TRITON_FILE
    source.write_text(change(source.read_text(encoding="utf-8")), encoding="utf-8")
    return _compared(number, await run_alone(context, called, directory, gpus))


def _compared(number: int, finished: Finished) -> Variant:
    if finished.ok:
        return Variant(number, sound=True)
    told = _DIFFERS.search(finished.output.read_text(encoding="utf-8", errors="replace"))
    if finished.returncode != STATUS["departs"] or told is None:
        return Variant(number, sound=True, failure=f"exit status {finished.returncode}")
    return Variant(number, sound=True, changed=Changed(told[1], float(told[2]), float(told[3])))
