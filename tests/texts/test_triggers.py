"""The description of the skill against the queries that should, and should not, start it.

A model decides in the end (`evals/README.md`). This is the necessary condition that needs no model: a query
that should start the skill shares a term with the description that only AOTInductor uses, or a subject and a
symptom.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.conftest import ROOT
from tests.support.guides import frontmatter

DESCRIPTION = frontmatter()["description"].lower()
FIRES, _, NOT_FOR = DESCRIPTION.partition("not for")

# Terms of the description that no other compiler uses, as people write them.
OWN = (
    "aoti_compile_and_package",
    "aoti_load_package",
    "aotimodelpackageloader",
    "run_func_",
    "wrapper.cpp",
    "unmatched dtype",
    "dim value is too large",
    "could not find schema",
    "constant not found",
)
SUBJECT = ("aotinductor", "aoti", "aot_compile", "aot_load", ".pt2")
# A word of the description -> what users say for it.
SYMPTOM = {
    "fails": ("fail", "dies", "error", "does not load", "needs", "says", "gives", "raises", "expected u0"),
    "segfault": ("segfault", "exit code 139", "crash"),
    "abort": ("aborts", "terminate called"),
    "core dump": ("core dump",),
    "hangs": ("hangs", "never returns"),
    "nan": ("nan",),
    "wrong numbers": ("wrong", "differs", "zeros", "garbage", "mixed up", "different from eager"),
    "index out of bounds": ("index out of bounds",),
    "device-side assert": ("device-side assert",),
    "illegal memory access": ("illegal memory access",),
    "undefined symbol": ("undefined symbol",),
    "no kernel image": ("no kernel image",),
    "custom ops": ("custom op",),
    "new weights": ("new weights", "fine-tuned weights"),
}
# What only generated code prints: the texts name AOTInductor although the user does not.
GENERATED = ("cpp_fused_", "triton_poi_fused_", "tmp4 < ks", "inductor package", "intermediate value printer")


def queries() -> list[tuple[str, bool]]:
    entries = json.loads((ROOT / "evals" / "trigger.json").read_text())
    return [(entry["query"], entry["should_trigger"]) for entry in entries]


def fires(query: str) -> bool:
    """Whether the description covers the query."""
    text = query.lower()
    if any(term in text and term in FIRES for term in OWN) and not asks_only(text):
        return True
    symptom = any(word in FIRES and any(said in text for said in saying) for word, saying in SYMPTOM.items())
    subject = any(term in text and term in FIRES for term in SUBJECT)
    generated = any(term in text for term in GENERATED)
    built = "package" in text and "no kernel image" in text
    return (symptom or "printer" in text) and (subject or generated or built) and not asks_only(text)


def asks_only(text: str) -> bool:
    """A question without a failure: how to, why so slow, explain."""
    wanted = r"speed|slower|latency|explain how|convert this|nothing fails|no error yet|want an example"
    return bool(re.search(wanted, text))


@pytest.mark.parametrize("term", [*OWN, *SYMPTOM])
def test_the_terms_are_the_description_s(term: str) -> None:
    """The lists above say what the description says: a term that it loses fails here."""
    assert term in FIRES


@pytest.mark.parametrize(("query", "expected"), queries())
def test_a_query_is_covered(query: str, expected: bool) -> None:
    """Each query that should start the skill meets the description, each near miss does not."""
    assert fires(query) is expected


@pytest.mark.parametrize("topic", ["graph breaks", "eager", "training", "speed"])
def test_near_misses_are_excluded_by_name(topic: str) -> None:
    """The topics of the near misses that use AOTInductor's words are in the `Not for` clause."""
    assert topic in NOT_FOR
