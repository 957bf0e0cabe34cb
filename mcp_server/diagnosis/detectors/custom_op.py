"""An operator whose result has another layout than its fake function promised."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.facts import ErrorFact
from mcp_server.model import Evidence, Fix, ModelLocation, Party
from mcp_server.package.launches import Launch


def detect(case: Case) -> Iterator[Suspect]:
    """Failures of `assert_size_stride` that name an operator (torch >= 2.13 with the input checks on)."""
    for label, facts in case.logs:
        for error in facts.errors:
            if error.family.id == "size_stride_assert" and error.fields.get("op", "input").strip() != "input":
                yield _suspect(error, label, case)
    yield from _unregistered(case)


def _unregistered(case: Case) -> Iterator[Suspect]:
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
            guilty=Party(kind="op", name=op, model_locations=_load_lines(case)),
            summary=f"Operator {op} is not registered in the process that loads the package; packages do not "
            "bring Python operators along.",
            level=CausalLevel.STATE,
            evidence=(
                Evidence(step="run", fact=root.text[:300], source=f"{label}:{root.line}"),
                Evidence(step="open_package", fact=f"the package calls {', '.join(sorted(needed))[:300]}"),
            ),
            fix=Fix(action=f"import the module that registers {op} before the package is loaded"),
        )


def _load_lines(case: Case) -> list[ModelLocation]:
    failed = [load for load in case.capture.loads if load.outcome != "ok"] if case.capture is not None else []
    return failed[-1].stack[:2] if failed else []


def _suspect(error: ErrorFact, label: str, case: Case) -> Suspect:
    op = error.fields["op"].strip()
    launch, lines = launch_of(op, case)
    step = "run_with_input_checks" if label in case.runs else "read_log"
    return Suspect(
        category="custom_op",
        guilty=Party(kind="op", name=op, launch_index=launch, model_locations=lines),
        summary=f"The fake function of {op} promises another size or stride than the operator returns "
        f"({error.text.strip().removeprefix('Error: ')[:160]}): later kernels use the promised one.",
        level=CausalLevel.STATE,
        evidence=(Evidence(step=step, fact=error.text[:300].strip(), source=f"{label}:{error.line}"),),
        fix=Fix(
            action=f"make the fake function of {op} return the size and stride of the real result; "
            "torch.library.opcheck compares them"
        ),
    )


def launch_of(op: str, case: Case) -> tuple[int | None, list[ModelLocation]]:
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


def _launches(launch: Launch, op: str, case: Case) -> bool:
    """Whether a launch is of `namespace.name`; a shim's name, by which wrappers call it, has no namespace."""
    target = case.package.proxy_target(launch.proxy_index) if case.package is not None else ""
    if target:
        return target.replace("::", ".") == op
    if launch.kernel == f"aoti_torch_{case.device}_{op.rpartition('.')[2]}":
        return True
    return any(
        name in text for name in (op, op.replace(".", "::")) for text in (launch.kernel, launch.callee)
    )
