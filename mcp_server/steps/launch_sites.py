"""Which launch a host frame belongs to, from the machine code of the package's library."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from mcp_server.faults.access import Access
from mcp_server.faults.call_sites import match_sites, read_call_sites
from mcp_server.faults.choose_launch import foreign_launches, named_launches
from mcp_server.jobs.types import Command
from mcp_server.package.view import PackageView
from mcp_server.steps.context import Context


async def launch_sites(context: Context, view: PackageView, accesses: Sequence[Access]) -> dict[int, int]:
    """Launch numbers by offset, where a fault's kernel is launched more than once and objdump is there."""
    doubtful = [a for a in accesses[:1] if a.launch_offset is not None and _several(view, a)]
    library, program = view.package.files.library, shutil.which("objdump")
    if not doubtful or library is None or program is None:
        return {}
    directory = context.fresh("objdump")
    copy = directory / "package.so"
    with view.package.container.open(library.name) as stream, copy.open("wb") as file:
        shutil.copyfileobj(stream, file)
    argv = (program, "-d", "-C", "--no-show-raw-insn", "--section=.text", str(copy))
    finished = await context.run_in(directory, Command(argv=argv, cwd=directory, timeout_s=60))
    copy.unlink()
    with finished.stdout.open(encoding="utf-8", errors="replace") as lines:
        return match_sites(read_call_sites(lines), view.wrapper.launches)


def _several(view: PackageView, access: Access) -> bool:
    return len(named_launches(view, access) or foreign_launches(view)) > 1
