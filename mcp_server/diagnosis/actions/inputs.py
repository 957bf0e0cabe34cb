"""The inputs of the call against the package: read from files, nothing of the workload runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.hypothesis import Hypothesis
from mcp_server.package.match import compare_inputs
from mcp_server.package.mismatch import GivenTensor
from mcp_server.steps.context import Context, Event


class CompareInputs:
    """Describe the inputs, and compare them with what the package was compiled for."""

    name = "compare_inputs"
    seconds = 3.0
    alone = False

    def gain(self, case: Case, _open: Sequence[Hypothesis]) -> float:
        return 1.0 if case.package is not None and case.call is not None and _asked(case) else 0.0

    async def act(self, case: Case, context: Context) -> None:
        assert case.package is not None
        done = await context.worker("describe_inputs", {"inputs": _asked(case)}, name="describe-inputs")
        told = done.last("inputs")
        if told is None:
            return
        case.given_facts = [leaf for leaf in told["leaves"] if leaf["kind"] == "tensor"]
        case.given = tuple(given_tensors(case.given_facts))
        case.mismatches = tuple(compare_inputs(case.package.signature, case.given))


def _asked(case: Case) -> object:
    """The inputs of a direct run, or the file of a captured call."""
    if case.call is None:
        return None
    return str(case.call.inputs) if case.call.inputs is not None else case.call.request.get("inputs")


def given_tensors(leaves: Iterable[Event]) -> Iterable[GivenTensor]:
    """Described leaves as the tensors that a package is compared with."""
    for leaf in leaves:
        if leaf.get("shape") is not None:
            stride = leaf.get("stride")
            yield GivenTensor(
                dtype=leaf["dtype"],
                shape=tuple(leaf["shape"]),
                stride=tuple(stride) if stride is not None else None,
                device=leaf["device"],
                path=leaf.get("path"),
            )
