"""The report in a real browser, where there is one: Chromium, headless."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mcp_server.diagnosis.subject import Subject
from mcp_server.model import Component
from mcp_server.report.page import Source, page, picture_of
from tests.conftest import ZooPackage
from tests.report.samples import Page, rewritten

CHROMIUM = os.environ.get("AOTI_DEBUG_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
QUIET = ("--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


def browsed(directory: Path, text: str, *options: str) -> str:
    """What the browser prints after it has loaded `text`; as root it has no sandbox."""
    file = directory / "report.html"
    file.write_text(text)
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    profile = f"--user-data-dir={directory / 'profile'}"
    argv = [
        CHROMIUM,
        "--headless",
        *root,
        *QUIET,
        profile,
        "--enable-logging=stderr",
        *options,
        file.as_uri(),
    ]
    done = subprocess.run(
        [str(word) for word in argv], capture_output=True, text=True, timeout=60, check=True
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


def test_only_the_page_s_own_script_runs(tmp_path: Path) -> None:
    """The copy button comes to life; a script in the texts is text, and the browser complains of nothing."""
    hostile = "<script>document.title='owned'</script>"
    dom = browsed(tmp_path, page(rewritten(lambda text: f"{text} {hostile}")), "--dump-dom")
    assert '<button id="copy" type="button">' in dom
    assert "<title>FAULT" in dom and Page(dom).elements.count("script") == 1


@pytest.mark.parametrize("scheme", ["0", "1"], ids=["dark", "light"])
def test_a_picture_of_the_page(zoo: ZooPackage, tmp_path: Path, scheme: str) -> None:
    """Both colour schemes are drawn; AOTI_DEBUG_SCREENSHOTS keeps the pictures for a look."""
    party = Component(kind="kernel", name="k", launch_index=0)
    verdict = rewritten(str).verdict.model_copy(update={"crashing": party})
    subject = Subject(environment={"torch": "2.13"})
    report = Source(verdict, subject, None, picture_of(verdict, zoo("ranker"), "model"), "log")
    kept = Path(os.environ.get("AOTI_DEBUG_SCREENSHOTS") or tmp_path) / f"report-{scheme}.png"
    options = (f"--blink-settings=preferredColorScheme={scheme}", "--window-size=1000,1600")
    browsed(tmp_path, page(report), *options, f"--screenshot={kept}")
    assert kept.read_bytes().startswith(b"\x89PNG") and kept.stat().st_size > 20_000
