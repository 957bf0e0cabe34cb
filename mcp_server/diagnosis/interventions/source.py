"""Changes of source: of the user's program, tried in its process at its end, or of a decompiled package."""

import difflib
from dataclasses import replace
from pathlib import Path

import anyio.to_thread

from mcp_server.diagnosis.interventions.base import (
    Effect,
    Intervention,
    Kind,
    Options,
    Seen,
    Trial,
    judged_elsewhere,
)
from mcp_server.diagnosis.interventions.run import Planned, TriedCall, carry_out
from mcp_server.errors import ProblemError
from mcp_server.logs.captured import CapturedAttempts
from mcp_server.model import PackageWorkload
from mcp_server.package.pytorch.program import OddLaunch, PytorchProgram
from mcp_server.probes.build import with_probes
from mcp_server.runtime.context import Context
from mcp_server.tools.decompile import WEIGHTS, Written, asked, write
from mcp_server.worker.protocol import EditedProgram, LaunchAlone
from mcp_server.worker.report import Attempt

WRONG = ("sizes", "state")  # stages that raise nothing, but whose outputs are wrong
IN_TURN = ("state", "parameter")
NARROWS = "Test, not the fix: such a package returns wrong sizes for other sizes without an error."


def trial_of(tried: CapturedAttempts) -> Trial | None:
    """The trial of the change with which export or compile give eager mode's outputs, if any."""
    failed = [each for each in tried.attempts if each.again]
    found = next((each for each in failed if each.outcome == "passes"), None)
    if found is None:
        return _of_state(failed[0]) if failed and tried.stage == "state" else None
    lines = [str(line) for line in (found.line, *found.more_lines) if line]
    at = f" in {'line' if len(lines) == 1 else 'lines'} {' and '.join(lines)}" if lines else ""
    codes = ("; ".join(code.splitlines()) for code in (found.before, found.after) if code)
    change = Intervention(
        key=f"source:{found.name}",
        kind=Kind.SOURCE,
        what=" replaced with ".join(codes) if found.refuses else f"this change{at}",
        before_code=found.before,
        after_code=found.after,
        action=action_of(found),
        not_for_shipping=NARROWS if found.refuses else "",
    )
    exports = tried.stage == "narrowed" or (tried.stage == "state" and not found.compiled)
    stage = "export" if exports else "compile" if tried.stage in (*WRONG, *IN_TURN) else tried.stage
    both = stage == "export" and found.compiled
    passed = (
        "the export and the compile passed, and on the example inputs the program returned eager's outputs"
        if both
        else f"the {stage} passed and, on the example inputs, returned the outputs of eager mode"
    )
    at = "in {} calls in turn" if tried.stage in IN_TURN else "at {} sizes"
    at_sizes = f" {at.format(found.sizes)}" if found.sizes > 1 else ""
    again = found.again.replace("`", "'")  # a verdict shows names in backticks as options
    failing = Seen("ok", differs=again) if tried.stage in WRONG else Seen("raised", text=again)
    left = "; its compile was not tried" if stage == "export" and not both else ""
    return judged_elsewhere(change, Effect.GONE, failing, passed + at_sizes + left)


def _of_state(found: Attempt) -> Trial:
    """The trial of the model that loses its state before each call, as its exported program does."""
    change = Intervention(
        key=f"source:{found.name}",
        kind=Kind.OPERATOR,
        what=f"{found.reached_code.split()[0]} as it was at the export before each call",
        not_for_shipping="The model loses its state in this way, as the package does.",
    )
    failing = Seen("ok", differs=f"other outputs than the program in one of {found.sizes} calls in turn")
    reason = f"the call of the model returned what its exported program returns, {found.sizes} times in turn"
    return judged_elsewhere(change, Effect.GONE, failing, reason)


def action_of(found: Attempt) -> str:
    """What the user should do, with the note if there is one."""
    return f"{found.action} ({found.note})" if found.note else found.action


async def edited(
    context: Context, call: TriedCall, workload: PackageWorkload, edit: Path, launch: int
) -> tuple[TriedCall, Intervention]:
    """The call with an edited program in place of the package, or of one launch (-1: the package).

    Raise `ProblemError` if nothing is edited, if the call passes with the unedited program, or if the program
    has no function for the launch.
    """
    written = await write(context, workload, context.fresh("as-pytorch"))
    return await _edited(context, call, workload, written, edit, launch)


async def _edited(
    context: Context, call: TriedCall, workload: PackageWorkload, written: Written, edit: Path, launch: int
) -> tuple[TriedCall, Intervention]:
    """Like `edited`, for a program that is already written."""
    text = await anyio.to_thread.run_sync(edit.read_text)
    before, after = _changed_lines(written.program.text, text)
    if before == after:
        raise ProblemError(
            "the program is as decompile writes it", value=str(edit), allowed="a model.py with an edit"
        )
    launches: list[LaunchAlone] = []
    if launch >= 0:
        launches = [_function(written.program, launch)]
        probed = await with_probes(context, workload)
        request = {**call.request, "package": str(probed.package)}
        call = replace(call, request=request, env={**call.env, **probed.environment})
    own = edit.with_name(WEIGHTS)
    weights = str(own if own.exists() else written.weights or "")
    what = (
        f"launch {launch} replaced with its code in {edit.name}"
        if launches
        else f"{edit.name} in place of the package"
    )
    made = Intervention(
        key=f"edit:{edit}:{launch}",
        kind=Kind.SOURCE,
        what=f"the call with {what}",
        options=Options(edit=EditedProgram(program=str(edit), weights=weights, launches=launches)),
        before_code=before,
        after_code=after,
        action="make the same edit in the model and compile it again",
        spelling=("--edit", str(edit), *(("--launch", str(launch)) if launches else ())),
    )
    plain = EditedProgram(program=str(written.path), weights=weights, launches=launches)
    unedited = replace(made, key="unedited", options=Options(edit=plain))
    control = (await carry_out(context, call, [Planned("unedited", unedited)], name="unedited"))["unedited"]
    if control.failure == "none":
        raise ProblemError(
            "without the edit the program does not fail on these inputs: it cannot show what the edit does",
            value=str(edit),
            allowed="a program that fails as the package does; or an edited kernel: `kernel`, `replace`",
        )
    return call, made


async def as_usual(
    context: Context, call: TriedCall, workload: PackageWorkload, written: Written, odd: OddLaunch
) -> tuple[TriedCall, Intervention]:
    """The call in which an odd launch computes like others of its kind; see `edited`."""
    edit = context.fresh("usual") / f"launch_{odd.launch}.py"
    await anyio.to_thread.run_sync(edit.write_text, odd.text)
    call, made = await _edited(context, call, workload, written, edit, odd.launch)
    what = f"the call with launch {odd.launch} computing what the others of its kind compute"
    action = f"compute there what the {len(odd.others)} other launches compute, and compile the model again"
    return call, replace(made, key=usual_key(odd.launch), what=what, action=action)


def usual_key(launch: int) -> str:
    return f"usual:{launch}"


def _function(program: PytorchProgram, launch: int) -> LaunchAlone:
    found = next((each for each in program.launches if each.index == launch), None)
    if found is None or found.alone is None or not found.name:
        functions = [each.index for each in program.launches if each.alone is not None and each.name]
        raise ProblemError(
            "the program has no function for this launch",
            value=launch,
            allowed=", ".join(map(str, functions)),
        )
    return asked(found)


def _changed_lines(old: str, new: str) -> tuple[str, str]:
    """The lines that an edit removed and added."""
    lines = list(difflib.ndiff(old.splitlines(), new.splitlines()))
    before, after = ([line[2:].strip() for line in lines if line.startswith(sign)] for sign in ("- ", "+ "))
    return "\n".join(before), "\n".join(after)
