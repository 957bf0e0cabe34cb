"""A bundle is complete and verifiable, and has nothing that --redact removes."""

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
from mcp_server.diagnosis.kept_files import Subject
from mcp_server.errors import ProblemError
from mcp_server.jobs.store import Store
from mcp_server.model import Evidence, PackageWorkload, Verdict
from mcp_server.report.bundle import MANIFEST, Source, of_verdict, page, read_source, write_bundle
from mcp_server.report.redact import Redactor
from mcp_server.runtime.context import Context
from tests.conftest import build


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    """A diagnosis of a bad index, with its files in their own job directory."""
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


@pytest.mark.slow
def test_every_file_has_its_checksum(verdict: Verdict, tmp_path: Path) -> None:
    """The manifest lists all files but itself, with their digests and sizes."""
    with packed(verdict, tmp_path / "b.zip") as bundle:
        sums = json.loads(bundle.read(MANIFEST))["files"]
        assert set(sums) == set(bundle.namelist()) - {MANIFEST}
        for name, told in sums.items():
            data = bundle.read(name)
            assert told == {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    wanted = {"README.md", "verdict.json", "report.html", "package/model.pt2", "inputs/inputs.pt"}
    assert wanted <= set(sums) and any(name.startswith("steps/01-plain/") for name in sums)


@pytest.mark.slow
def test_the_listed_command_shows_the_fault_again(
    verdict: Verdict,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In another folder, the README's command names the same party, from the bundle's files alone."""
    with packed(verdict, tmp_path / "b.zip") as bundle:
        bundle.extractall(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = re.search(r"^    (aoti-debug diagnose .*)$", Path("README.md").read_text(), re.MULTILINE)
    assert found is not None
    assert run([*shlex.split(found[1])[1:], "--json"]) == 1
    again = Verdict.model_validate_json(capsys.readouterr().out)
    assert (again.category, again.guilty) == (verdict.category, verdict.guilty)
    assert all(str(tmp_path) in item.command for item in again.evidence)


@pytest.mark.slow
def test_a_report_of_a_bundle_and_of_a_verdict(verdict: Verdict, store: Store, tmp_path: Path) -> None:
    """Both give the same page: a bundle needs no other file of the machine."""
    packed(verdict, tmp_path / "b.zip").close()
    (tmp_path / "verdict.json").write_text(verdict.model_dump_json())
    pages = [page(read_source(str(tmp_path / name), store)) for name in ("b.zip", "verdict.json")]
    assert pages[0] == pages[1]


@pytest.mark.slow
def test_a_bundle_is_never_overwritten(verdict: Verdict, tmp_path: Path) -> None:
    """An existing file stays as it is."""
    (tmp_path / "b.zip").write_text("mine")
    with pytest.raises(ProblemError, match="there already"):
        packed(verdict, tmp_path / "b.zip")
    assert (tmp_path / "b.zip").read_text() == "mine"


@pytest.mark.slow
def test_what_is_too_large_is_left_out_and_said(verdict: Verdict, tmp_path: Path) -> None:
    """If the package is too large, only the inputs are packed, and manifest and README say so."""
    with packed(verdict, tmp_path / "b.zip", limit_bytes=10_000) as bundle:
        assert "package/model.pt2" not in bundle.namelist() and "inputs/inputs.pt" in bundle.namelist()
        assert "package/model.pt2" in json.loads(bundle.read(MANIFEST))["left_out"][0]
        assert "not in this bundle" in bundle.read("README.md").decode()


@pytest.mark.slow
def test_redaction_reaches_every_text(verdict: Verdict, tmp_path: Path) -> None:
    """No text of the bundle has the job's directory or this host. JSON lines stay JSON."""
    job = verdict.artifacts[-1].path.parent
    with packed(verdict, tmp_path / "b.zip", redacted=True) as bundle:
        texts = {n: bundle.read(n).decode() for n in bundle.namelist() if not n.endswith((".pt2", ".pt"))}
    host = re.compile(rf"\b{re.escape(socket.gethostname())}\b")
    for name, text in texts.items():
        assert str(job.parent) not in text and not host.search(text), name
        for part in [text] if name.endswith(".json") else text.splitlines() if ".jsonl" in name else []:
            json.loads(part)
    assert Verdict.model_validate_json(texts["verdict.json"]).summary == verdict.summary


@pytest.mark.slow
@pytest.mark.parametrize("redacted", [True, False])
def test_a_bundle_says_what_it_tells(verdict: Verdict, tmp_path: Path, redacted: bool) -> None:
    """README and manifest list the files copied unchanged, and whether texts were redacted."""
    with packed(verdict, tmp_path / "b.zip", redacted=redacted) as bundle:
        told, readme = json.loads(bundle.read(MANIFEST)), bundle.read("README.md").decode()
    assert told["redacted"] is redacted
    assert told["as_they_are"] == ["package/model.pt2", "inputs/inputs.pt"]
    assert all(f"- `{name}`: " in readme for name in told["as_they_are"])
    assert ("Texts were redacted" in readme, "Nothing was redacted" in readme) == (redacted, not redacted)


@pytest.mark.slow
def test_a_secret_of_the_workload_is_redacted_by_its_name(tmp_path: Path) -> None:
    """A variable whose name suggests a secret is redacted, whatever its value."""
    subject = Subject(environment={"HF_TOKEN": "quite plain", "OMP_NUM_THREADS": "2"})
    source = Source(Verdict(outcome="inconclusive", summary="only a log"), subject)
    write_bundle(source, tmp_path / "b.zip", redacted=True)
    with zipfile.ZipFile(tmp_path / "b.zip") as bundle:
        told = json.loads(bundle.read("subject.json"))["environment"]
    assert told == {"HF_TOKEN": "<secret>", "OMP_NUM_THREADS": "2"}


@pytest.mark.slow
@pytest.mark.parametrize("text", ["job_00000000", "gone.json", "README.md"])
def test_other_files_are_refused(store: Store, tmp_path: Path, text: str) -> None:
    """An unknown job, a missing file and a file of another kind are rejected."""
    (tmp_path / "README.md").write_text("# no verdict")
    with pytest.raises(ProblemError):
        read_source(text if text.startswith("job_") else str(tmp_path / text), store)


# What `--redact` removes.


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("https://intranet.corp.example/x", "https://<host>/x"),
        ("connect to db01.corp.example:5432", "connect to <host>:5432"),
        ("tcp://node17:29500 failed", "tcp://<host> failed"),
        ("https://docs.pytorch.org/x and https://github.com/pytorch/pytorch/issues/1", None),
        ("/home/bob", "…/<user>"),
        ("fe80::1 2001:db8::1%eth0 ::ffff:10.0.0.1", "<address> <address> <address>"),
        ("00:11:22:33:44:55", "<address>"),
        ("bob@node17:~$ python x.py", "<user>@<host>:~$ python x.py"),
        ("USER=bob LOGNAME='bob' hostname: gpu17", "USER=<user> LOGNAME='<user>' hostname: <host>"),
        ("glpat-abcdefghij0123456789", "<secret>"),
        (f"x=sk-proj-{16 * 'a1B2'} gh{'p'}_{9 * 'Aa01'}", "x=<secret> <secret>"),
        (f"eyJ{6 * 'a'}.eyJ{6 * 'b'}.c-d", "<secret>"),
        ("triton_per_fused_native_layer_norm_0 cpp_fused_mul_12 job_1a2b3c4d", None),
        ("open /c/xy-0123456789abcdef01/f.so", "open …/f.so"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "aws_secret_access_key = <secret>"),
        ("self.model.net.forward x[::2] c10::add a::b std::vector q@k model.py foo.so:bar", None),
        ("hf_hub_download(x) key=buf3 token: 12 num_tokens=7 pass: quantization", None),
        ("cpp_fused_cat_embedding_0 args[1] = 1024, ratio 3/4, 12:34:56, 0 <= tmp4 < ks1", None),
        ("LD_LIBRARY_PATH=/opt/ana/lib:/home/ana/x/lib", "LD_LIBRARY_PATH=…/lib:…/lib"),
        ("g++ -I/home/ana/venv/include -L/home/ana/lib", "g++ -I…/include -L…/lib"),
        ("file:///home/ana/b.pt2 https://example.org/a/b", "file://…/b.pt2 https://<host>/a/b"),
        ("open /data/Ana B/run 1/x.pt2", "open …/x.pt2"),
        ("srun: error: gpu17: task 1: Killed", "srun: error: <host>: task 1: Killed"),
        ("  host      : gpu17.corp.lan", "  host      : <host>"),
        ("ip-10-0-0-7.ec2.internal fe80::1ff:fe23:4567:890a", "<host> <address>"),
        ("threading.local sklearn.cluster c10::add 12:34:56", None),
        ("HF_TOKEN=hf_abcdefghijklmnop password: hunter22", "HF_TOKEN=<secret> password: <secret>"),
        (r"in C:\Users\Ana B\models\a.pt2, D:/Users/bob/x.log", "in …/a.pt2, …/x.log"),
        (r"at C:\Users\ana", "at …/<user>"),
        ("num_token=1048576 Bearer abc.def.ghi", "num_token=1048576 Bearer <secret>"),
    ],
)
def test_hosts_users_and_code(text: str, wanted: str | None) -> None:
    """Paths, hosts and users are removed. Code, numbers and public addresses stay (None: unchanged)."""
    redact = Redactor({}, ("/data/Ana B/run 1",))
    assert redact(text) == (text if wanted is None else wanted)


TOKEN = "hf_abcdefghijklmnopqrstuvwxyz0123456789"


def test_what_a_cut_left_of_a_secret_goes_too(tmp_path: Path) -> None:
    """A verdict that quotes half of a token or host has neither half after redaction."""
    host = "db01.corp.example"
    log = f"login {TOKEN} at https://{host}/ with session_token=plainlookingvalue\n"
    facts = [f"login {TOKEN[:14]}…", f"… {TOKEN[-12:]} at", "with plainlooking…", f"at {host[:8]}"]
    evidence = [Evidence(step="read_log", fact=fact, source="run.log:1") for fact in facts]
    verdict = Verdict(outcome="inconclusive", summary=f"it ended with {TOKEN[:9]}", evidence=evidence)
    write_bundle(Source(verdict, Subject(), log=log), tmp_path / "b.zip", redacted=True)
    with zipfile.ZipFile(tmp_path / "b.zip") as bundle:
        texts = {name: bundle.read(name).decode() for name in bundle.namelist()}
    for name, text in texts.items():
        for private in (TOKEN[:9], TOKEN[-12:], "plainlooking", host[:8]):
            assert private not in text, name
