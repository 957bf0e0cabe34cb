"""The report is valid HTML in which no observed text is active, in browsers and clients."""

import os
import re
import shutil
import socket
from pathlib import Path

import pytest

from mcp_server.model import Cause, Component, Confirmed, Fix, ModelLocation, RuledOut, Verdict
from mcp_server.report.bundle import Source, issue_text, page, path_of
from mcp_server.report.redact import Redactor, clean_text
from tests.render.samples import Page, rewritten
from tests.support.command import output_of

HOSTILE = [
    "<script>document.title='owned'</script>",
    "</textarea></pre></style></script><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "<!-- ]]> --> {{ 7 * 7 }} {% raw %}",
    "\x1b[31mred\x00\x08 \u202egnirts\u2066 \ud800",
]


@pytest.mark.parametrize("hostile", HOSTILE, ids=["script", "closing", "attribute", "template", "controls"])
def test_texts_do_not_act(hostile: str) -> None:
    """Elements and attributes stay the same, whatever the texts of verdict, log and machine."""
    harmless = page(rewritten(lambda text: f"{text} x"))
    found = page(rewritten(lambda text: f"{text} {hostile}"))
    assert Page(found).elements == Page(harmless).elements
    assert [name for name, _ in Page(found).attributes] == [name for name, _ in Page(harmless).attributes]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", found)
    assert "49" not in Page(found).texts


def test_everything_that_is_known_is_shown() -> None:
    """Each text of the verdict is on the page, cleaned, with environment, log and decisions."""
    shown = " ".join(" ".join(Page(page(rewritten(lambda text: f"{text}§"))).texts).split())
    verdict = rewritten(lambda text: f"{text}§").verdict
    wanted = [verdict.summary, *(e.fact for e in verdict.evidence), *(e.command for e in verdict.evidence)]
    wanted += [r.by for r in verdict.ruled_out] + ["torch§", "GPU§", "log§"]
    assert [text for text in wanted if " ".join(clean_text(text).split()) not in shown] == []


def test_an_issue_names_no_place_and_nobody() -> None:
    """Directories, this host, addresses and credentials are removed; the rest stays readable."""
    text = (
        f"/srv/ana.b/models/ranker.pt2 failed on {socket.gethostname()} (10.2.3.4) for ana@corp.example, "
        "see https://u:secret@host/x and ~/runs/a/run.log:12, ratio 3/4"
    )
    found = Redactor({socket.gethostname(): "<host>"})(text)
    for private in ("/srv", "ana", "10.2.3.4", "secret", "runs/a"):
        assert private not in found, found
    assert "…/ranker.pt2 failed on <host>" in found and "…/run.log:12" in found and "3/4" in found


def test_an_issue_holds_what_a_maintainer_asks_for() -> None:
    """The text has the verdict, the guilty party, each command and the environment."""
    verdict = rewritten(str).verdict
    text = issue_text(verdict, {"torch": "2.13"}, str)
    assert verdict.category is not None and verdict.guilty is not None
    for wanted in (verdict.category, verdict.confidence, verdict.guilty.name, "torch: 2.13"):
        assert wanted in text
    assert all(" ".join(item.command.split()) in text for item in verdict.evidence)


ELEMENTS = ["args[1][2, 17] = 731", "args[1][0, 3] = -5"]


def test_the_chain_runs_from_the_fault_to_the_input() -> None:
    """The chain has boxes for fault, launch, generated line, expression, elements and input, in order."""
    party = Component(kind="input", name="args[1]", input_index=1, value="731", elements=ELEMENTS)
    made = {"kind": "kernel", "name": "k", "launch_index": 3, "generated_location": "k.cpp:4"}
    crash = Component.model_validate({**made, "expression": "weight[args[1]]"})
    verdict = Verdict(outcome="fault", category="hang", summary="", guilty=party, crashing=crash)
    path = list(path_of(verdict))
    labels = ["Fault", "Launch", "Generated line", "Expression", "Elements behind it", "Root cause"]
    assert [label for label, _, _ in path] == labels
    assert "731" in path[4][1] and path[5][1:] == ("input args[1]", "731")


def test_the_chain_names_the_line_that_failed() -> None:
    """For a fused kernel of several lines, the chain has the root cause's line."""
    lines = [ModelLocation(file="/app/m.py", line=number, code=f"line {number}") for number in (20, 16)]
    party = Component(kind="kernel", name="k", launch_index=1, model_locations=lines, expression="log(0)")
    verdict = Verdict(
        outcome="fault", category="nan_or_inf", headline="NaN in output 0", summary="", guilty=party
    )
    path = list(path_of(verdict))
    assert ("Model line", "m.py:20", "line 20") in path
    assert path[0] == ("Fault", "NaN in output 0", "") and path[-1] == ("Root cause", "log(0)", "")


def test_the_page_shows_the_fix_with_its_run_and_the_other_causes() -> None:
    """The page has the fix, its command, result and side effects, further causes, and what was cleared."""
    cause = Cause(kind="input", name="a", category="nan_or_inf", confidence="proven", summary="first")
    verdict = Verdict(
        outcome="fault",
        summary="",
        causes=[cause, cause.model_copy(update={"summary": "the second cause"})],
        bystanders=[RuledOut(hypothesis="the dtype", by="a run")],
        fix=Fix(text="enlarge the table"),
        confirmed=Confirmed(
            what="ids clamped",
            before="raised: x",
            after="returned",
            again="raised: x",
            command="aoti-debug try-fix x",
            not_for_shipping="Do not ship it.",
        ),
        decisions=["open_package (gain 1.00, about 0 s; open: hang)", "stopped during run"],
    )
    texts = Page(page(Source(verdict))).texts
    assert "aoti-debug try-fix x" in texts
    assert any("With ids clamped, the call returned." in t and "Do not ship it." in t for t in texts)
    for title in ("Then fix", "Not the cause", "Checks run"):
        assert title in texts
    assert "open package" in texts and "stopped during run" in texts
    assert not any("(gain" in text for text in texts)
    assert any("the second cause" in text for text in texts)
    assert all(word in issue_text(verdict, {}, str) for word in ("Then fix", "Not the cause", "Confirmed\n"))


# The report in headless Chromium, if it is installed.

CHROMIUM = os.environ.get("AOTI_DEBUG_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")

QUIET = ("--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update")


def browsed(directory: Path, text: str, *options: str) -> str:
    """The browser's output after loading `text`. Root has no sandbox."""
    file = directory / "report.html"
    file.write_text(text)
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    profile = f"--user-data-dir={directory / 'profile'}"
    words = ["--headless", *root, *QUIET, profile, "--enable-logging=stderr", *options]
    argv = [CHROMIUM, *words, file.as_uri()]
    done = output_of([str(word) for word in argv], timeout=60, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_only_the_page_s_own_script_runs(tmp_path: Path) -> None:
    """The copy button works, a script in a text is not run, and the browser reports no error."""
    hostile = "<script>document.title='owned'</script>"
    dom = browsed(tmp_path, page(rewritten(lambda text: f"{text} {hostile}")), "--dump-dom")
    assert '<button id="copy" type="button">' in dom
    assert "<title>FAULT" in dom and Page(dom).elements.count("script") == 1
