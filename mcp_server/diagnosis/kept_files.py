"""Files that a verdict leaves: the diagnosed subject, for reports, and `proof.py`, which needs only torch."""

import ast
import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import Field

from mcp_server import __version__
from mcp_server.diagnosis.components import own_operators
from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options, Trial
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.errors import ProblemError
from mcp_server.jobs.child import child_environment, looks_secret
from mcp_server.jobs.store import storing
from mcp_server.model import PROOF_FILE, SUBJECT_FILE, Artifact, PackageWorkload, Record, Verdict, Workload
from mcp_server.plurals import capitalized
from mcp_server.runtime.context import Context
from mcp_server.worker.events import Torch

# Variables that change how a package is built or run. The rest of the environment stays private.
TELLING = re.compile(
    r"(?!AOTI_DEBUG_)(TORCH|PYTORCH_|AOT_|AOTI_|INDUCTOR_|CUDA_|TRITON_|OMP_|MKL_)\w*|LD_PRELOAD|CC|CXX"
)
NVIDIA = Path("/proc/driver/nvidia")


def machine_facts() -> dict[str, str]:
    """System, processor, GPUs and driver in words, without unknown facts."""
    gpus = [_line(path, r"^Model:\s*(.+)$") for path in sorted(NVIDIA.glob("gpus/*/information"))]
    processor = _line(Path("/proc/cpuinfo"), r"^model name\s*:\s*(.+)$")
    facts = {
        "system": platform.platform(),
        "processor": f"{processor}, {os.cpu_count()} cores",
        "GPU": ", ".join(filter(None, gpus)),
        "driver": _line(NVIDIA / "version", r"\A(?:NVRM version: )?(.*)"),
    }
    return {name: value for name, value in facts.items() if value}


def variables(asked: Mapping[str, str]) -> dict[str, str]:
    """The relevant variables that a child gets, without those that look like secrets."""
    found = child_environment(asked)
    return {
        name: value
        for name, value in sorted(found.items())
        if TELLING.fullmatch(name) and not looks_secret(name, value)
    }


def _line(path: Path, pattern: str) -> str:
    """The first group of the first match in a file. Empty for no match or an unreadable file."""
    try:
        found = re.search(pattern, path.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return ""
    return found[1].strip() if found else ""


class Subject(Record):
    """The diagnosed subject. `log` is the output of the user's run.

    `environment` has facts in words, by name: machine, interpreter, package and variables.
    """

    package: Path | None = None
    model_name: str = "model"
    inputs: Path | None = None
    extra_imports: list[str] = Field(default_factory=list)
    script: Path | None = None
    log: Path | None = None
    environment: dict[str, str] = Field(default_factory=dict)


def leave_subject(case: DiagnosisState, context: Context) -> Artifact:
    """Write the known facts of the suspect call and its environment into the job's directory.

    Raises ProblemError if the disk rejects the file.
    """
    workload, call = case.workload, case.package_call if case.call is not None else None
    call = workload if call is None and isinstance(workload, PackageWorkload) else call
    python = workload.python if workload and workload.python else context.python
    # The version of torch that a worker reported; empty if no worker ran.
    workers = [run.worker for run in case.runs.values()] + [case.interpreted, case.operators]
    events = [event for worker in workers if worker is not None and (event := worker.last(Torch))]
    torch = events[0].version if events else ""
    if events and events[0].cuda:
        torch = f"{torch}, CUDA {events[0].cuda}"
    facts = {"aoti-debug": __version__, "torch": torch, "interpreter": str(python), **machine_facts()}
    if case.package is not None:
        facts["package"] = f"compiled for {case.package.device_type}"
    asked = workload.env if workload else {}
    subject = Subject(
        package=call.package if call else None,
        model_name=call.model_name if call else "model",
        inputs=call.inputs if call and isinstance(call.inputs, Path) else None,
        extra_imports=call.extra_imports if call else [],
        script=getattr(case.workload, "script", None),
        log=case.own_run.finished.output if case.own_run is not None else None,
        environment={name: value for name, value in {**facts, **variables(asked)}.items() if value},
    )
    path = context.directory / SUBJECT_FILE
    with storing(context.directory):
        path.write_text(subject.model_dump_json(indent=1))
    return context.artifact(path, "what was diagnosed, and where: `aoti-debug report` reads it")


def with_subject(verdict: Verdict, workload: Workload | None, context: Context) -> Verdict:
    """Add the `Subject` file to the artifacts of a verdict that has no `DiagnosisState`."""
    with suppress(ProblemError):  # on a full disk, return the verdict alone
        kept = leave_subject(DiagnosisState(workload), context)
        return verdict.model_copy(update={"artifacts": [*verdict.artifacts, kept]})
    return verdict


# `proof.py` checks a proven verdict. It makes the call unchanged, with the change that removed the failure,
# and unchanged again, each in its own process.
MOST_LINES = 25

_TEXT = '''"""{claim}. Makes the call three times; messages of the calls go to proof.py.log."""
import torch._inductor.package

def call(changed):
    os = torch.os
    os.dup2(os.open(__file__ + ".log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    found = torch.load({inputs!r}, weights_only=True)
{unpack}
    if changed:
{change}
    model = torch._inductor.package.load_package(package, {model!r})
    outputs = torch.utils._pytree.tree_leaves(model(*args, **kwargs))
{judge}
try: torch._inductor.cpu_vec_isa.pick_vec_isa()  # each load asks for it: found once, before the forks
except Exception: pass  # no compiler; a load works without one
for name in ("unchanged", {what!r}, "unchanged again"):
    process = torch.multiprocessing.get_context("fork").Process(target=call, args=(name == {what!r},))
    process.start()
    process.join()
    print(f"{{name}}: {{'fails' if process.exitcode else 'passes'}}")
'''

# Code that unpacks the file of inputs: one that the hook saved, or one of the two forms that users write.
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
    """Write the proof into the job's directory. None for a change that a few lines of torch cannot make.

    Raises ProblemError if the disk rejects the file.
    """
    text = proof_text(trial, verdict, case, context.directory)
    if not text:
        return None
    path = context.directory / PROOF_FILE
    with storing(context.directory):
        path.write_text(text, encoding="utf-8")
    return context.artifact(path, "shows that the change alone removes the failure; needs only torch")


def proof_text(trial: Trial, verdict: Verdict, case: DiagnosisState, job: Path) -> str:
    """The text of `proof.py`. Empty if it would need more than package, inputs and a few lines of code."""
    change, judge, call = change_code(trial.intervention), _judge(trial, case), case.call
    if call is None or call.inputs is None or not change or judge is None or own_operators(case):
        return ""
    if len(call.steps) > 1 or call.updated or "package" not in call.request:
        return ""
    unpack = _SAVED if job in call.inputs.parents else _USERS
    text = _TEXT.format(
        claim=_quoted(capitalized(verdict.headline)),
        what="with " + _quoted(verdict.confirmed.what if verdict.confirmed else "the change"),
        inputs=str(call.inputs),
        unpack=unpack.format(package=str(call.package)),
        change="\n".join(f"        {line}" for line in change.splitlines()),
        model=str(call.request.get("model_name", "model")),
        judge=judge,
    ).replace("\n\n\n", "\n\n")
    return text if text.count("\n") <= MOST_LINES else ""


def change_code(tried: Intervention) -> str:
    """Statements that make the change to `args`, `kwargs` or `package`. Empty if code cannot make it."""
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
    """Whether a statement changes something and reads only the call's arguments and torch."""
    changes = isinstance(statement, ast.Assign) or isinstance(statement.value, ast.Call)
    names = {each.id for each in ast.walk(statement) if isinstance(each, ast.Name)}
    return changes and names <= {"args", "kwargs", "torch", "float"}


def _judge(trial: Trial, case: DiagnosisState) -> str | None:
    """The line that rejects bad outputs. Empty if the call itself fails, None if no code can judge."""
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
    return " ".join(text.replace("\\", "/").replace('"', "'").split())
