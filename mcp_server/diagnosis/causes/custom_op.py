"""Custom operators: broken promises, exceptions of their own, and results with another layout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mcp_server.diagnosis.components import TORCHS, operator_of, own_operators
from mcp_server.diagnosis.interventions.call import as_promised
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.facts import ErrorFact
from mcp_server.model import Component, Evidence, Fix, ModelLocation
from mcp_server.package.launches import Launch
from mcp_server.tools.context import Event


def detect_wrong_layout(case: DiagnosisState) -> Iterator[Suspect]:
    """Failures of `assert_size_stride` that name an operator (torch >= 2.13 with the input checks on)."""
    for label, facts in case.logs:
        for error in facts.errors:
            if error.family.id == "size_stride_assert" and error.fields.get("op", "input").strip() != "input":
                yield _layout_suspect(error, label, case)
    yield from _unregistered(case)


def _unregistered(case: DiagnosisState) -> Iterator[Suspect]:
    """A load that misses an operator which the package itself lists."""
    if case.package is None:
        return
    needed = {node.target for node in case.package.proxy_nodes}
    for label, facts in case.logs:
        root = facts.root
        op = (root.fields.get("operator") or root.fields.get("op") or "") if root is not None else ""
        if root is None or root.family.id != "op_not_registered" or not op:
            continue
        yield Suspect(
            category="custom_op",
            guilty=Component(kind="op", name=op, model_locations=_load_lines(case)),
            summary=f"Operator {op} is not registered in the process that loads the package; packages do not "
            "bring Python operators along.",
            level=CausalLevel.STATE,
            evidence=(
                Evidence(step="run", fact=root.text[:300], source=f"{label}:{root.line}"),
                Evidence(step="open_package", fact=f"the package calls {', '.join(sorted(needed))[:300]}"),
            ),
            fix=Fix(action=f"import the module that registers {op} before the package is loaded"),
        )


def _load_lines(case: DiagnosisState) -> list[ModelLocation]:
    failed = [load for load in case.capture.loads if load.outcome != "ok"] if case.capture is not None else []
    return failed[-1].stack[:2] if failed else []


def _layout_suspect(error: ErrorFact, label: str, case: DiagnosisState) -> Suspect:
    op = error.fields["op"].strip()
    launch, lines = launch_of(op, case)
    step = "run_with_input_checks" if label in case.runs else "read_log"
    return Suspect(
        category="custom_op",
        guilty=Component(kind="op", name=op, launch_index=launch, model_locations=lines),
        summary=f"The fake function of {op} promises another size or stride than the operator returns "
        f"({error.text.strip().removeprefix('Error: ')[:160]}): later kernels use the promised one.",
        level=CausalLevel.STATE,
        evidence=(Evidence(step=step, fact=error.text[:300].strip(), source=f"{label}:{error.line}"),),
        fix=Fix(
            action=f"make the fake function of {op} return the size and stride of the real result; "
            "torch.library.opcheck compares them"
        ),
    )


def launch_of(op: str, case: DiagnosisState) -> tuple[int | None, list[ModelLocation]]:
    """The launch of `torch.ops.namespace.name.overload`, if it has only one, and its model lines.

    Those of the exported program come first: the compiler gives an operator those of what it was merged with.
    """
    exported = case.exported.special if case.exported is not None else ()
    written = [line for target, line in exported if target == op.removeprefix("torch.ops.")]
    if case.view is None:
        return None, written[:2]
    short = op.removeprefix("torch.ops.").removesuffix(".default")
    found = [launch for launch in case.view.wrapper.launches if _launches(launch, short, case)]
    if not found:
        return None, written[:2]
    index = found[0].index if len(found) == 1 else None
    compiled = case.view.provenance(found[0]).locations[:2]
    return index, list(dict.fromkeys([*written, *compiled]))[:2]


def _launches(launch: Launch, op: str, case: DiagnosisState) -> bool:
    """Whether a launch is of `namespace.name`; a shim's name, by which wrappers call it, has no namespace."""
    target = case.package.proxy_target(launch.proxy_index) if case.package is not None else ""
    if target:
        return target.replace("::", ".") == op
    if launch.kernel == f"aoti_torch_{case.device}_{op.rpartition('.')[2]}":
        return True
    return any(
        name in text for name in (op, op.replace(".", "::")) for text in (launch.kernel, launch.callee)
    )


REPAIRED = as_promised()
SPOILT = "the data there is overwritten, and the next use of it fails"
COUNTED_ON = "the package relies on what the fake function promised"
SAME = "returns the same values"
_SETTLE = (
    "This does not change what the package returns for this call. Run the program, or compare_with_eager, to "
    "see whether it changes the eager result."
)


def detect_operator_results(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis for each operator, of its first call that broke a promise."""
    first: dict[str, Event] = {}
    for event in case.operators.all("operator") if case.operators is not None else ():
        first.setdefault(str(event["op"]), event)
    for op, event in first.items():
        yield _results_suspect(f"torch.ops.{op}", event, case)


def _results_suspect(op: str, event: Event, case: DiagnosisState) -> Suspect:
    broken, fix = _told(op, event)
    launch, lines = launch_of(op, case)
    trial = case.trials.get(REPAIRED.key)
    same = trial is not None and trial.reason == SAME
    overrun = bool(event.get("overrun"))
    without_effect = same and not overrun
    return Suspect(
        category="illegal_memory_access" if overrun else "custom_op",
        guilty=Component(kind="op", name=op, launch_index=launch, model_locations=lines),
        summary=f"{broken}; {SPOILT if overrun else COUNTED_ON}.",
        level=CausalLevel.STATE,
        evidence=(Evidence(step="watch_operators", fact=f"call {event['call']} of {op}: {broken}"),),
        fix=Fix(action=fix),
        intervention=REPAIRED,
        observed=not without_effect,
        weak=without_effect and not case.failed,
        settle=_SETTLE,
    )


def _told(op: str, event: Event) -> tuple[str, str]:
    """What is broken, and what mends it."""
    if event.get("overrun"):
        return _beyond(op, event["overrun"][0])
    if event["layouts"]:
        pair = event["layouts"][0]
        text = (
            f"The fake function of {op} promises {describe(pair['promised'])}; "
            f"the operator returned {describe(pair['returned'])}"
        )
        return text, kept_promise(op, pair["promised"], pair["returned"])
    if event["mutated"]:
        names = ", ".join(event["mutated"])
        text = f"{op} writes to its argument {names}, which its schema declares as only read"
        return text, f"declare it (mutates_args), or let {op} work on a copy"
    names = ", ".join(event["aliases"])
    text = f"{op} returns memory of its argument {names}, though its schema declares a result of its own"
    return text, f"return a clone from {op}"


def _beyond(op: str, tensor: dict[str, Any]) -> tuple[str, str]:
    """A write beyond a tensor that the operator allocated."""
    side, count = (
        ("past the end", tensor["after"]) if tensor["after"] else ("before the start", tensor["before"])
    )
    kind = f"shape {tensor['shape']}, {tensor['dtype'].removeprefix('torch.')}"
    text = f"{op} writes up to {count} bytes {side} of a tensor that it allocated ({kind})"
    return text, f"keep what {op} calls within the elements of that tensor, or allocate what it needs"


def kept_promise(op: str, promised: dict[str, Any], returned: dict[str, Any]) -> str:
    """What mends a result that differs from its fake in these respects."""
    differing = [what for what in ("shape", "dtype", "device") if promised.get(what) != returned.get(what)]
    what = " and ".join(differing) or "stride"
    return (
        f"make the fake function of {op} return the {what} of the real result, or make {op} return what "
        "its fake function promises"
    )


def describe(layout: dict[str, Any]) -> str:
    return f"shape {layout['shape']}, stride {layout['stride']}, {layout['dtype'].removeprefix('torch.')}"


def detect_operator_error(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis for the operator whose own frames an exception names, and which is known."""
    for source, facts in case.logs:
        root = facts.root
        if root is None or root.family.id != "operator_raised" or case.package is None:
            continue
        op = _operator(root, case)
        if op and not op.startswith(TORCHS):
            yield _error_suspect(op, root, source, case)
            return


def _operator(root: ErrorFact, case: DiagnosisState) -> str:
    """By the number of the node; up to torch 2.12 none is told, and the package's only own operator is it."""
    if "node" in root.fields and case.package is not None:
        return case.package.proxy_target(int(root.fields["node"]))
    own = own_operators(case)
    return own[0] if len(own) == 1 else ""


def _error_suspect(op: str, root: ErrorFact, source: str, case: DiagnosisState) -> Suspect:
    launch = _launch(op, case)
    at = ModelLocation(file=root.fields["at_file"], line=int(root.fields["at_line"]))
    place = f"{at.file}:{at.line}, in {root.fields['at_function']}"
    return Suspect(
        category="custom_op",
        guilty=Component(
            kind="op",
            name=op,
            launch_index=launch,
            value=root.text[:200],
            model_locations=[at, *_lines(launch, case)],
        ),
        summary=f"Operator {op} raised an exception on what it was given: {root.text[:200]}",
        level=CausalLevel.STATE,
        evidence=(
            Evidence(step="run", fact=root.text[:300], source=f"{source}:{root.line}"),
            Evidence(step="run", fact=f"the exception comes from {place}, which the operator calls"),
        ),
        fix=Fix(action=f"let {op} handle such arguments, or keep them from it in the model", before=place),
    )


def _launch(op: str, case: DiagnosisState) -> int | None:
    """The only launch that calls the operator."""
    launches = case.view.wrapper.launches if case.view is not None else ()
    found = [launch.index for launch in launches if operator_of(launch.index, case) == op]
    return found[0] if len(found) == 1 else None


def _lines(launch: int | None, case: DiagnosisState) -> list[ModelLocation]:
    if launch is None or case.view is None:
        return []
    return list(case.view.provenance(case.view.wrapper.launches[launch]).locations[:2])
