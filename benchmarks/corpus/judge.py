"""Compares verdicts with answers, also about several defects; besides it only `score.py` reads both."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.corpus.answers import Answer, Defect
from mcp_server.model import CATEGORIES

Data = dict[str, Any]


@dataclass(frozen=True)
class Score:
    """One judged verdict. None means that nothing could be judged: `why` says what came instead."""

    case: str
    form: str
    expected: str
    outcome: str = ""
    category: str = ""
    category_right: bool | None = None
    guilty_right: bool | None = None
    line_right: bool | None = None
    confidence: str = ""
    runs: int = 0
    compiles: int = 0
    wall_s: float = 0.0
    summary: str = ""
    guilty: str = ""
    why: str = ""
    bystander_spared: bool | None = None
    causes_in_order: bool | None = None

    @property
    def judged(self) -> bool:
        return self.category_right is not None

    @property
    def claimed(self) -> bool:
        """Whether a fault was asserted."""
        return self.outcome == "fault"

    @property
    def right(self) -> bool:
        """Whether the category is right, and the guilty party if the answer names one."""
        return bool(self.category_right) and self.guilty_right is not False


def judge(answer: Answer, form: str, verdict: Data, script: Path | None) -> Score:
    """The score of `verdict`; `script` is None if the form leaves no source to point at."""
    party = verdict.get("guilty") or {}
    cost = verdict.get("cost") or {}
    return Score(
        case=answer.name,
        form=form,
        expected=answer.category or "no_fault",
        outcome=verdict["outcome"],
        category=verdict.get("category") or "",
        category_right=category_right(answer, form, verdict),
        guilty_right=guilty_right(answer, party) if form != "log" or party.get("name") else None,
        line_right=line_right(answer, party, script) if script else None,
        confidence=verdict.get("confidence") or "",
        runs=cost.get("runs", 0),
        compiles=cost.get("compiles", 0),
        wall_s=cost.get("wall_s", 0.0),
        summary=verdict.get("summary") or "",
        guilty=_named(party),
    )


def category_right(answer: Answer, form: str, verdict: Data) -> bool:
    """A fault needs its category. A log may not show which it is, so the first suspicion counts."""
    outcome, category = verdict["outcome"], verdict.get("category")
    if form == "log" and outcome == "inconclusive":
        return "inconclusive" in answer.log_accepts or category in answer.categories
    if answer.outcome == "no_fault":
        return bool(outcome == "no_fault")
    allowed = {*answer.categories, *(answer.log_accepts if form == "log" else ())}
    return outcome == "fault" and category in allowed


def guilty_right(answer: Answer, party: Data) -> bool | None:
    """None when the answer names nobody."""
    if not answer.guilty:
        return None
    return any(fits(alternative, party) for alternative in answer.guilty)


def fits(alternative: Data, party: Data) -> bool:
    """Whether `party` fits `alternative` in every field that this has.

    A party named with the words for a category is nobody.
    """
    if party.get("name") in CATEGORIES.values():
        return False
    name = f"{party.get('name', '')} {party.get('value') or ''}"
    if party.get("kind") not in alternative["kind"]:
        return False
    if "name" in alternative and not re.search(alternative["name"], name, re.IGNORECASE):
        return False
    exact = ("input_index", "dim", "launch_index")
    return all(party.get(key) == alternative[key] for key in exact if key in alternative)


def line_right(answer: Answer, party: Data, script: Path) -> bool | None:
    """Whether a named model line has one of the answer's substrings. None if the answer has none."""
    if not answer.model_lines:
        return None
    source = script.read_text().splitlines()
    return any(
        wanted in line
        for place in party.get("model_locations") or ()
        for line in _texts(place, script.name, source)
        for wanted in answer.model_lines
    )


def _texts(place: Data, script: str, source: Sequence[str]) -> list[str]:
    """The code of a location: as the verdict has it, and as the file has it at that line."""
    told = [place.get("code") or ""]
    number = place.get("line") or 0
    if Path(place.get("file") or "").name == script and 0 < number <= len(source):
        told.append(source[number - 1])
    return told


def _named(party: Data) -> str:
    if not party:
        return ""
    index = f" #{party['input_index']}" if party.get("input_index") is not None else ""
    return f"{party.get('kind')} {party.get('name')}{index}"


@dataclass(frozen=True)
class Share:
    """`right` of `all`, with the share that is the target."""

    what: str
    right: int
    all: int
    target: float

    @property
    def reached(self) -> bool:
        return self.all == 0 or self.right >= self.target * self.all

    def __str__(self) -> str:
        part = f"{self.right}/{self.all}" + (f" = {100 * self.right / self.all:.0f} %" if self.all else "")
        return f"{part} (target {100 * self.target:.0f} %)"


# Targets of category, guilty party and model line, by form; a log alone shows no model line.
TARGETS = {"script": (0.95, 0.90, 0.85), "package": (0.90, 0.85, 0.0), "log": (0.90, 0.0, 0.0)}


def shares(scores: Sequence[Score], form: str) -> list[Share]:
    """What is right in `form`, over the judged cases."""
    judged = [score for score in scores if score.form == form and score.judged]
    category, guilty, line = TARGETS[form]
    found = [_share(f"{form}: category right", [s.category_right for s in judged], category)]
    if guilty:
        found.append(_share(f"{form}: guilty right", [s.guilty_right for s in judged], guilty))
    if line:
        found.append(_share(f"{form}: model line right", [s.line_right for s in judged], line))
    healthy = [not score.claimed for score in judged if score.expected == "no_fault"]
    return [*found, _share(f"{form}: no fault claimed on a healthy case", healthy, 1.0)]


def calibration(scores: Iterable[Score]) -> list[Share]:
    """The share that is right, of the faults claimed with each confidence."""
    claimed = [score for score in scores if score.judged and score.claimed]
    targets = {"proven": 1.0, "likely": 0.8}
    return [
        _share(f"right of {name}", [s.right for s in claimed if s.confidence == name], target)
        for name, target in targets.items()
    ]


def _share(what: str, flags: Iterable[bool | None], target: float) -> Share:
    told = [flag for flag in flags if flag is not None]
    return Share(what, sum(told), len(told), target)


def with_defects(score: Score, answer: Answer, verdict: Data) -> Score:
    """`score` with what can be judged only if an answer has several defects."""
    return replace(
        score,
        bystander_spared=bystander_spared(answer, verdict),
        causes_in_order=causes_in_order(answer, verdict),
    )


def defect_shares(scores: Sequence[Score]) -> list[Share]:
    """What is right about bystanders and the order of causes. Empty if no program has them."""
    rows = {
        "no bystander accused": [score.bystander_spared for score in scores],
        "causes in order": [score.causes_in_order for score in scores],
    }
    found = {what: [flag for flag in flags if flag is not None] for what, flags in rows.items()}
    return [Share(what, sum(flags), len(flags), 1.0) for what, flags in found.items() if flags]


def summary(what: str, scores: Sequence[Score]) -> str:
    """One line: what is right in the set, `proven` first."""
    judged = [score for score in scores if score.judged]
    proven = [score.right for score in judged if score.claimed and score.confidence == "proven"]
    guilty = [score.guilty_right for score in judged if score.guilty_right is not None]
    accused = [score for score in judged if score.bystander_spared is False]
    return (
        f"{what}: proven right {sum(proven)} of {len(proven)}"
        f", category right {sum(bool(score.category_right) for score in judged)} of {len(judged)}"
        f", component right {sum(guilty)} of {len(guilty)}, bystander accused {len(accused)}"
    )


def bystander_spared(answer: Answer, verdict: Data) -> bool | None:
    """Whether no bystander is named as a cause. None for an answer without bystanders.

    If cause and bystander have one category, the component tells them apart.
    """
    if not answer.bystanders:
        return None
    return not any(_is_bystander(answer, entry) for entry in _accused(verdict))


def causes_in_order(answer: Answer, verdict: Data) -> bool | None:
    """Whether the verdict's `causes` are the first causes of the answer, in order.

    A verdict may stop early, since a later cause shows only once the first is fixed. None if the verdict or
    the answer has no causes.
    """
    told = verdict.get("causes")
    if not told or not answer.causes:
        return None
    wanted = answer.causes[: len(told)]
    return len(told) <= len(answer.causes) and all(
        _describes(cause, entry) for cause, entry in zip(wanted, told, strict=True)
    )


def _accused(verdict: Data) -> Iterable[Data]:
    """Each party that the verdict names as a cause, with the category if it tells one."""
    if verdict["outcome"] == "fault":
        yield {**(verdict.get("guilty") or {}), "category": verdict.get("category")}
        yield from verdict.get("causes") or ()


def _is_bystander(answer: Answer, entry: Data) -> bool:
    if any(_describes(cause, entry) for cause in answer.causes):
        return False
    of_causes = {category for cause in answer.causes for category in cause.categories}
    return any(
        _has_category(bystander, entry)
        and (entry.get("category") not in of_causes or _describes(bystander, entry))
        for bystander in answer.bystanders
    )


def _describes(defect: Defect, entry: Data) -> bool:
    named = not defect.guilty or any(fits(alternative, entry) for alternative in defect.guilty)
    return named and _has_category(defect, entry)


def _has_category(defect: Defect, entry: Data) -> bool:
    """An entry without a category may be about any."""
    return entry.get("category") in {*defect.categories, None}
