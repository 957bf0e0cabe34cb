"""An operator whose result has another layout than its fake function promised."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case, RunSeen
from mcp_server.diagnosis.hypothesis import Depth, Hypothesis
from mcp_server.evidence.facts import ErrorFact
from mcp_server.model import Evidence, Fix, ModelLocation, Party


def detect(case: Case) -> Iterator[Hypothesis]:
    """Failures of `assert_size_stride` that name an operator (torch >= 2.13 with the input checks on)."""
    for label, facts in case.logs:
        for error in facts.errors:
            if error.family.id == "size_stride_assert" and error.fields.get("op", "input").strip() != "input":
                yield _hypothesis(error, label, case)


def _hypothesis(error: ErrorFact, label: str, case: Case) -> Hypothesis:
    op = error.fields["op"].strip()
    launch, lines = _launch(op, case)
    return Hypothesis(
        category="custom_op",
        guilty=Party(kind="op", name=op, launch_index=launch, model_locations=lines),
        summary=f"The fake function of {op} promises another size or stride than the operator returns "
        f"({error.text.removeprefix('Error: ')[:160]}): later kernels use the promised one.",
        depth=Depth.STATE,
        sources=frozenset({"runtime check", *_wrong_values(case.runs.get("plain"))}),
        evidence=(
            Evidence(step="run_with_input_checks", fact=error.text[:300], source=f"{label}:{error.line}"),
        ),
        fix=Fix(
            action=f"make the fake function of {op} return the size and stride of the real result; "
            "torch.library.opcheck compares them"
        ),
    )


def _wrong_values(plain: RunSeen | None) -> set[str]:
    """Without the check, the call's numbers depart from the reference, or it fails otherwise."""
    return {"failing call"} if plain is not None and plain.failure != "none" else set()


def _launch(op: str, case: Case) -> tuple[int | None, list[ModelLocation]]:
    """The launch of that operator, where there is one, and its model lines."""
    if case.view is None:
        return None, []
    short = op.removeprefix("torch.ops.").replace(".default", "")
    names = {short, short.replace(".", "::")}
    for launch in case.view.wrapper.launches:
        if any(name in launch.kernel or name in launch.callee for name in names):
            return launch.index, list(case.view.provenance(launch).locations[:2])
    return None, []
