"""A bundle: complete, checkable, and enough to see the fault again elsewhere."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import socket
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from mcp_server.cli.main import run
from mcp_server.diagnosis.diagnose import diagnose
from mcp_server.diagnosis.subject import Subject
from mcp_server.errors import ProblemError
from mcp_server.jobs.store import Store
from mcp_server.model import PackageWorkload, Verdict
from mcp_server.report.bundle import MANIFEST, of_verdict, read_source, write_bundle
from mcp_server.report.page import Source, page
from mcp_server.tools.context import Context
from tests.conftest import build
from tests.report.samples import Page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    """A diagnosis of a bad index, its files in a job's directory of their own."""
    directory = tmp_path_factory.mktemp("diagnosed")
    package = shutil.copy(build("ranker"), directory / "ranker.pt2")
    inputs = shutil.copy(build("ranker").with_name("ranker.bad-index.pt"), directory / "batch.pt")

    async def work() -> Verdict:
        (directory / "job").mkdir()
        context = Context(directory=directory / "job", python=Path(sys.executable))
        return await diagnose(context, PackageWorkload(package=Path(package), inputs=Path(inputs)))

    return anyio.run(work)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("AOTI_DEBUG_STATE", str(tmp_path / "state"))
    yield Store()


def packed(verdict: Verdict, path: Path, **options: object) -> zipfile.ZipFile:
    write_bundle(of_verdict(verdict), path, **options)  # type: ignore[arg-type]
    return zipfile.ZipFile(path)


def test_every_file_has_its_checksum(verdict: Verdict, tmp_path: Path) -> None:
    """The manifest lists all files but itself, and each has the digest and size that it says."""
    with packed(verdict, tmp_path / "b.zip") as bundle:
        sums = json.loads(bundle.read(MANIFEST))["files"]
        assert set(sums) == set(bundle.namelist()) - {MANIFEST}
        for name, told in sums.items():
            data = bundle.read(name)
            assert told == {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    wanted = {"README.md", "verdict.json", "report.html", "package/model.pt2", "inputs/inputs.pt"}
    assert wanted <= set(sums) and any(name.startswith("steps/01-plain/") for name in sums)


def test_the_listed_command_shows_the_fault_again(
    verdict: Verdict,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Unpacked elsewhere, what the README says names the same party, from the bundle's files alone."""
    with packed(verdict, tmp_path / "b.zip") as bundle:
        bundle.extractall(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = re.search(r"^    (aoti-debug diagnose .*)$", Path("README.md").read_text(), re.MULTILINE)
    assert found is not None
    assert run([*shlex.split(found[1])[1:], "--json"]) == 1
    again = Verdict.model_validate_json(capsys.readouterr().out)
    assert (again.category, again.guilty) == (verdict.category, verdict.guilty)
    assert all(str(tmp_path) in item.command for item in again.evidence)


def test_a_report_is_made_from_a_bundle_and_from_a_verdict(
    verdict: Verdict, store: Store, tmp_path: Path
) -> None:
    """The same page, picture included, comes from both: a bundle needs nothing of the machine beside it."""
    packed(verdict, tmp_path / "b.zip").close()
    (tmp_path / "verdict.json").write_text(verdict.model_dump_json())
    pages = [page(read_source(str(tmp_path / name), store)) for name in ("b.zip", "verdict.json")]
    assert [Page(text).elements.count("svg") for text in pages] == [2, 2]  # strip of the input, dataflow
    assert pages[0] == pages[1]


def test_a_bundle_is_never_overwritten(verdict: Verdict, tmp_path: Path) -> None:
    """A file of that name stays as it is."""
    (tmp_path / "b.zip").write_text("mine")
    with pytest.raises(ProblemError, match="there already"):
        packed(verdict, tmp_path / "b.zip")
    assert (tmp_path / "b.zip").read_text() == "mine"


def test_what_is_too_large_is_left_out_and_said(verdict: Verdict, tmp_path: Path) -> None:
    """The inputs fit, the package does not: manifest and README say so."""
    with packed(verdict, tmp_path / "b.zip", limit_bytes=10_000) as bundle:
        assert "package/model.pt2" not in bundle.namelist() and "inputs/inputs.pt" in bundle.namelist()
        assert "package/model.pt2" in json.loads(bundle.read(MANIFEST))["left_out"][0]
        assert "not in this bundle" in bundle.read("README.md").decode()


def test_redaction_reaches_every_text(verdict: Verdict, tmp_path: Path) -> None:
    """No text of the bundle holds the directory of the job or this host; JSON stays JSON, line by line."""
    job = verdict.artifacts[-1].path.parent
    with packed(verdict, tmp_path / "b.zip", redacted=True) as bundle:
        texts = {n: bundle.read(n).decode() for n in bundle.namelist() if not n.endswith((".pt2", ".pt"))}
    host = re.compile(rf"\b{re.escape(socket.gethostname())}\b")
    for name, text in texts.items():
        assert str(job.parent) not in text and not host.search(text), name
        for part in [text] if name.endswith(".json") else text.splitlines() if ".jsonl" in name else []:
            json.loads(part)
    assert Verdict.model_validate_json(texts["verdict.json"]).summary == verdict.summary


@pytest.mark.parametrize("redacted", [True, False])
def test_a_bundle_says_what_it_tells(verdict: Verdict, tmp_path: Path, redacted: bool) -> None:
    """Its README and manifest name the files that are copied as they are, and whether texts were redacted."""
    with packed(verdict, tmp_path / "b.zip", redacted=redacted) as bundle:
        told, readme = json.loads(bundle.read(MANIFEST)), bundle.read("README.md").decode()
    assert told["redacted"] is redacted
    assert told["as_they_are"] == ["package/model.pt2", "inputs/inputs.pt"]
    assert all(f"- `{name}`: " in readme for name in told["as_they_are"])
    assert ("Texts were redacted" in readme, "Nothing was redacted" in readme) == (redacted, not redacted)


def test_a_secret_of_the_workload_is_redacted_by_its_name(tmp_path: Path) -> None:
    """A variable that is named like a secret, whatever its value looks like."""
    subject = Subject(environment={"HF_TOKEN": "quite plain", "OMP_NUM_THREADS": "2"})
    source = Source(Verdict(outcome="inconclusive", summary="only a log"), subject)
    write_bundle(source, tmp_path / "b.zip", redacted=True)
    with zipfile.ZipFile(tmp_path / "b.zip") as bundle:
        told = json.loads(bundle.read("subject.json"))["environment"]
    assert told == {"HF_TOKEN": "<secret>", "OMP_NUM_THREADS": "2"}


@pytest.mark.parametrize("text", ["job_00000000", "gone.json", "README.md"])
def test_other_files_are_refused(store: Store, tmp_path: Path, text: str) -> None:
    """An unknown job, a missing file and a file of another kind are named with what would do."""
    (tmp_path / "README.md").write_text("# no verdict")
    with pytest.raises(ProblemError):
        read_source(text if text.startswith("job_") else str(tmp_path / text), store)


def test_a_bundle_of_a_log_alone(tmp_path: Path) -> None:
    """Without package, inputs and job there is still a verdict and a page to hand on."""
    source = Source(Verdict(outcome="inconclusive", summary="only a log"), Subject())
    write_bundle(source, tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip") as bundle:
        assert {"verdict.json", "report.html", "README.md"} <= set(bundle.namelist())
