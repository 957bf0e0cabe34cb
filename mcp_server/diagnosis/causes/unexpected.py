"""Outputs of a call that ends well and does not give what the user expects."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.state import DiagnosisState, RunSeen
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Component, Evidence
from mcp_server.tools.context import Event

# A command that fails on right outputs, too, looks like this as well.
ALONE = " The check command alone says so: give the outputs that are right (expect), on which it has to pass."


def detect(case: DiagnosisState) -> Iterator[Suspect]:
    """The failure itself, which names nobody: any suspect that explains it comes before it."""
    plain = case.runs.get("plain")
    if plain is None or not case.symptom.judges or plain.failure not in ("differs", "nonfinite"):
        return
    facts = tuple(_facts(plain))
    if facts:
        yield Suspect(
            category="wrong_output",
            guilty=Component(kind="package", name=""),
            summary=f"The call ends well, and {facts[0].fact}; what was tried does not say why."
            f"{ALONE if case.symptom.expect is None else ''}",
            level=CausalLevel.SYMPTOM,
            evidence=facts,
            observed=False,
        )


def _facts(plain: RunSeen) -> Iterator[Evidence]:
    told = plain.worker.last("compared_expected") if plain.worker is not None else None
    judged = told is not None and told.get("given")
    wrong = [each for each in told["outputs"] if each["changed"]] if told is not None and judged else []
    for each in wrong:
        yield Evidence(step="run", fact=f"output {each['output']} {_in_words(each)}")
    checked = plain.worker.last("checked_outputs") if plain.worker is not None else None
    if checked is not None and checked["status"]:
        said = f": {checked['text'].splitlines()[-1][:200]}" if checked["text"] else ""
        yield Evidence(step="run", fact=f"the check command ended with status {checked['status']}{said}")


def _in_words(output: Event) -> str:
    """How many elements differ from the expectation, and the first of them."""
    first = output["first"][0]
    place = f"at {list(first['index'])} it is {first['after']} where {first['before']} is expected"
    return f"differs in {output['changed']} of {output['elements']} elements ({place})"
