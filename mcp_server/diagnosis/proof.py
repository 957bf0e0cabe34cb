"""`proof.py`: at most 25 lines that need only torch and print fails / passes / fails.

A reader checks a proven verdict with one command: the call as it is, with the change that removed the
failure, and as it is again, each in a process of its own.
"""

from __future__ import annotations

import ast
from pathlib import Path

from mcp_server.diagnosis.components import own_operators
from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options, Trial
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.jobs.store import storing
from mcp_server.model import PROOF_FILE, Artifact, Verdict
from mcp_server.runtime.context import Context

MOST_LINES = 25

_TEXT = '''"""{claim}
Prints fails / passes / fails: the call as it is, with {what}, and as it is again."""
import torch._inductor.package

def call(changed):
    found = torch.load({inputs!r}, weights_only=True)
{unpack}
    if changed:
{change}
    model = torch._inductor.package.load_package(package, {model!r})
    outputs = torch.utils._pytree.tree_leaves(model(*args, **kwargs))
{judge}
try: torch._inductor.cpu_vec_isa.pick_vec_isa()  # each load asks for it: found once, before the forks
except Exception: pass  # no compiler; a load works without one
for changed in (False, True, False):
    process = torch.multiprocessing.get_context("fork").Process(target=call, args=(changed,))
    process.start()
    process.join()
    print("passes" if process.exitcode == 0 else "fails")
'''

# How the arguments stand in the file of inputs: a call that the hook saved, and the two forms of a user's.
_SAVED = """    leaves = [leaf["value"] if isinstance(leaf, dict) else leaf for leaf in found["leaves"]]
    spec = torch.utils._pytree.treespec_loads(found["spec"])
    args, kwargs = torch.utils._pytree.tree_unflatten(leaves, spec)
    args, package = list(args), {package!r}"""
_USERS = """    found = [found] if isinstance(found, torch.Tensor) else found
    named = found if isinstance(found, dict) else {{"args": found}}
    args, kwargs, package = list(named.get("args", ())), named.get("kwargs", {{}}), {package!r}"""
_NAN = "    raise SystemExit(any(bool(each.isnan().any()) for each in outputs))"
_NOT_FINITE = "    raise SystemExit(not all(bool(each.isfinite().all()) for each in outputs))"
_RIGHT = "    torch.testing.assert_close(outputs, list(torch.load({expect!r}, weights_only=True)){limits})"


def leave_proof(trial: Trial, verdict: Verdict, case: DiagnosisState, context: Context) -> Artifact | None:
    """Write the proof into the job's directory. None for a change that no few lines of torch can make.

    Raises ProblemError when the disk refuses.
    """
    text = proof_text(trial, verdict, case, context.directory)
    if not text:
        return None
    path = context.directory / PROOF_FILE
    with storing(context.directory):
        path.write_text(text, encoding="utf-8")
    return context.artifact(path, "prints fails / passes / fails; needs only torch")


def proof_text(trial: Trial, verdict: Verdict, case: DiagnosisState, job: Path) -> str:
    """The program; empty where the call needs more than package and inputs, or the change more than code."""
    change, judge, call = change_code(trial.intervention), _judge(trial, case), case.call
    if call is None or call.inputs is None or not change or judge is None or own_operators(case):
        return ""
    if len(call.steps) > 1 or call.updated or "package" not in call.request:
        return ""
    unpack = _SAVED if job in call.inputs.parents else _USERS
    text = _TEXT.format(
        claim=_quoted(verdict.headline[:1].upper() + verdict.headline[1:]),
        what=_quoted(verdict.confirmed.what if verdict.confirmed else "the change"),
        inputs=str(call.inputs),
        unpack=unpack.format(package=str(call.package)),
        change="\n".join(f"        {line}" for line in change.splitlines()),
        model=str(call.request.get("model_name", "model")),
        judge=judge,
    ).replace("\n\n\n", "\n\n")
    return text if text.count("\n") <= MOST_LINES else ""


def change_code(tried: Intervention) -> str:
    """What the change does to `args`, `kwargs` or `package`, as statements; empty where code cannot do it."""
    if tried.options.package is not None and tried.options == Options(package=tried.options.package):
        return f"package = {str(tried.options.package)!r}" if not tried.changes else ""
    if tried.kind is not Kind.INPUT or tried.options != Options():
        return ""
    code = tried.after_code
    if any(change.change == "permute" for change in tried.changes):
        code = f"{tried.before_code} = {tried.after_code}"
    try:
        statements = ast.parse(code).body
    except (SyntaxError, ValueError):
        return ""
    made = all(isinstance(each, ast.Assign | ast.Expr) and _of_the_call(each) for each in statements)
    return code if statements and made else ""


def _of_the_call(statement: ast.Assign | ast.Expr) -> bool:
    """Whether a statement changes something, and reads nothing but the call's arguments and torch."""
    changes = isinstance(statement, ast.Assign) or isinstance(statement.value, ast.Call)
    names = {each.id for each in ast.walk(statement) if isinstance(each, ast.Name)}
    return changes and names <= {"args", "kwargs", "torch", "float"}


def _judge(trial: Trial, case: DiagnosisState) -> str | None:
    """The line that fails for bad outputs; empty where the call itself fails, None where no line can tell."""
    failure = trial.before.failure
    if failure in ("exception", "signal"):
        return ""
    if failure == "nonfinite":
        return _NOT_FINITE if case.symptom.infinities else _NAN
    symptom = case.symptom
    if failure == "differs" and symptom.expect is not None and not symptom.check:
        both = symptom.rtol is not None and symptom.atol is not None
        limits = f", rtol={symptom.rtol}, atol={symptom.atol}" if both else ""
        return _RIGHT.format(expect=str(symptom.expect), limits=limits)
    return None


def _quoted(text: str) -> str:
    """Text for a docstring."""
    return " ".join(text.replace("\\", "/").replace('"', "'").split())
