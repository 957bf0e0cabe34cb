"""The figures of first verdicts in the texts are counted from the kept rows."""

from __future__ import annotations

from benchmarks.first_sight import ROWS, batches, first_verdicts, reliability, share
from mcp_server.model import CATEGORIES
from tests.conftest import ROOT


def test_the_page_has_the_tables_of_the_rows() -> None:
    """By category and confidence, and by batch and form; also what a reader told of origins."""
    found, page = first_verdicts(), ROWS.with_suffix(".md").read_text()
    assert reliability(found) in page
    assert batches(found) in page
    for batch in (5, 6):
        for form in ("script", "package"):
            rows = [each for each in found if (each.batch, each.form) == (batch, form)]
            told = (share(each.origin_right for each in rows), share(each.mechanism_right for each in rows))
            assert f"| {batch} | {form} | {' | '.join(told)} |" in page


def test_the_readme_quotes_the_rows() -> None:
    """Categories of scripts, and how often `proven` was right."""
    found = first_verdicts()
    scripts = share(each.category_right for each in found if each.form == "script")
    proven = share(each.right for each in found if each.outcome == "fault" and each.confidence == "proven")
    assert f"{scripts} scripts; of `proven` {proven}" in (ROOT / "benchmarks" / "README.md").read_text()
    readme = (ROOT / "README.md").read_text()
    assert f"[{scripts}]" in readme and f"[{proven}]" in readme


def test_rows_use_the_vocabulary() -> None:
    """Answers and verdicts name categories that exist, and each program was asked once in each form."""
    found = first_verdicts()
    assert {each.answer for each in found} <= {*CATEGORIES, "no_fault"}
    assert {each.category for each in found} <= {*CATEGORIES, ""}
    assert len({(each.batch, each.program, each.form) for each in found}) == len(found)
