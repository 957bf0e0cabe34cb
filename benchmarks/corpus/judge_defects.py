"""Judges a verdict about a program with several defects: is a bystander accused, are the causes in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from benchmarks.corpus.answers import Answer, Defect
from benchmarks.corpus.judge import Data, Score, Share, fits


def with_defects(score: Score, answer: Answer, verdict: Data) -> Score:
    """`score` with what only an answer with several defects has judged."""
    return replace(
        score,
        bystander_spared=bystander_spared(answer, verdict),
        causes_in_order=causes_in_order(answer, verdict),
    )


def defect_shares(scores: Sequence[Score]) -> list[Share]:
    """What is right about bystanders and the order of causes; empty without a program that has them."""
    rows = {
        "no bystander accused": [score.bystander_spared for score in scores],
        "causes in order": [score.causes_in_order for score in scores],
    }
    found = {what: [flag for flag in flags if flag is not None] for what, flags in rows.items()}
    return [Share(what, sum(flags), len(flags), 1.0) for what, flags in found.items() if flags]


def summary(what: str, scores: Sequence[Score]) -> str:
    """One line: what of the set is right, `proven` before all."""
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
    """Whether no bystander is told as a cause; None for an answer without bystanders.

    Where cause and bystander have one category, the component tells them apart.
    """
    if not answer.bystanders:
        return None
    return not any(_is_bystander(answer, entry) for entry in _accused(verdict))


def causes_in_order(answer: Answer, verdict: Data) -> bool | None:
    """Whether the verdict's `causes` are those of the answer, from the first on.

    A verdict may stop early, since a later cause shows only once the first is fixed. None for a verdict
    or an answer without causes.
    """
    told = verdict.get("causes")
    if not told or not answer.causes:
        return None
    wanted = answer.causes[: len(told)]
    return len(told) <= len(answer.causes) and all(
        _describes(cause, entry) for cause, entry in zip(wanted, told, strict=True)
    )


def _accused(verdict: Data) -> Iterable[Data]:
    """Everybody that the verdict tells as a cause: a party each, with the category where it is told."""
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
    """An entry that tells no category may be about any."""
    return entry.get("category") in {*defect.categories, None}
