"""The store is private, bounded, safe against forged handles, and shared by servers."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.errors import ProblemError
from mcp_server.jobs.store import (
    SCHEME,
    JobDirectory,
    Store,
    cause,
    private_directory,
    size_of,
    state_root,
    storing,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state")


def limited(root: Path, *, cap_bytes: int = 1 << 30, cap_jobs: int = 500, keep: int = 0) -> Store:
    """A store that sweeps early."""
    store = Store(root)
    store.cap_bytes, store.cap_jobs, store.keep = cap_bytes, cap_jobs, keep
    return store


def finished(store: Store, size: int = 0) -> JobDirectory:
    """A job that has ended and left a file of `size` bytes."""
    job = store.create("test")
    (job.path / "data").write_bytes(b"x" * size)
    job.release()
    return job


@pytest.fixture
def job(store: Store) -> Iterator[JobDirectory]:
    job = store.create("diagnose")
    yield job
    job.release()


@pytest.mark.parametrize(
    ("environ", "root"),
    [
        ({"AOTI_DEBUG_STATE": "/asked", "XDG_STATE_HOME": "/xdg"}, Path("/asked")),
        ({"AOTI_DEBUG_STATE": "~/asked"}, Path.home() / "asked"),
        ({"XDG_STATE_HOME": "/xdg"}, Path("/xdg/aoti-debug")),
        ({"XDG_STATE_HOME": "relative"}, Path.home() / ".local/state/aoti-debug"),
        ({"AOTI_DEBUG_STATE": ""}, Path.home() / ".local/state/aoti-debug"),
    ],
)
def test_state_root(environ: dict[str, str], root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state directory is the asked one, else the user's."""
    for name in ("AOTI_DEBUG_STATE", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, environ.get(name, ""))
    assert state_root() == root


def test_private(job: JobDirectory, store: Store) -> None:
    """Nobody else may look into the store."""
    for path in (store.root, store.jobs, job.path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_root_that_was_there(tmp_path: Path) -> None:
    """A directory that others may read keeps its mode, and the jobs in it are private all the same."""
    tmp_path.chmod(0o755)
    store = Store(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert stat.S_IMODE(store.jobs.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o1777, 0o775])
def test_root_that_others_may_write(mode: int, tmp_path: Path) -> None:
    """A directory such as /tmp itself is refused, and left as it is."""
    tmp_path.chmod(mode)
    with pytest.raises(ProblemError, match="others may write"):
        Store(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == mode


def test_found_again(job: JobDirectory, store: Store) -> None:
    """A handle leads back to the job, from another server too."""
    assert store.find(job.id) == job
    assert Store(store.root).find(job.id).kind == "diagnose"


@pytest.mark.parametrize(
    "handle",
    ["", "job_", "job_1234567", "job_1234567g", "job_12345678\n", "../jobs/job_12345678", "job_12345678/.."],
)
def test_malformed_handle(handle: str, store: Store) -> None:
    """What is no handle never becomes a path."""
    with pytest.raises(ProblemError, match="not a job handle"):
        store.find(handle)


def test_unknown_handle(store: Store) -> None:
    """A handle of no job says what to do, and a link with such a name is no job."""
    with pytest.raises(ProblemError, match="run the tool again"):
        store.find("job_00000000")
    (store.jobs / "job_00000000").symlink_to("/")
    with pytest.raises(ProblemError, match="no such job"):
        store.find("job_00000000")


def test_artifact_address(job: JobDirectory, store: Store) -> None:
    """A file's address leads back to the file, whatever its name."""
    path = job.path / "01-run" / "a b%#?é.log"
    path.parent.mkdir()
    path.write_text("text")
    assert store.path_of(f"{SCHEME}{job.id}/{quote('01-run/a b%#?é.log')}") == path


@pytest.mark.parametrize(
    "relative",
    [
        "../../counter",
        "%2e%2e/%2E%2E/counter",
        "/etc/passwd",
        "link",
        "inside/link",
        "",
        ".",
        "a%00b",
        "none",
    ],
)
def test_address_cannot_leave_the_job(relative: str, job: JobDirectory, store: Store) -> None:
    """Neither dots nor an absolute path nor a link that the workload left leads out of the job."""
    (job.path / "link").symlink_to("/etc/passwd")
    (job.path / "inside").symlink_to("/etc")
    with pytest.raises(ProblemError):
        store.path_of(f"{SCHEME}{job.id}/{relative}")


@pytest.mark.parametrize(
    "uri", ["file:///etc/passwd", "aoti-debug://jobs/", "aoti-debug://jobs/job_12345678", ""]
)
def test_other_addresses(uri: str, store: Store) -> None:
    """Only addresses of artifacts are taken."""
    with pytest.raises(ProblemError):
        store.path_of(uri)


@given(st.text())
@settings(deadline=None, max_examples=50)  # real files, on a machine that may be busy
def test_any_address_is_refused_or_inside(tmp_path_factory: pytest.TempPathFactory, relative: str) -> None:
    """No text after a real handle reads a file outside the job."""
    store = limited(tmp_path_factory.getbasetemp() / "hypothesis-store", cap_jobs=1)
    job = finished(store)
    try:
        assert store.path_of(f"{SCHEME}{job.id}/{relative}").parent == job.path
    except ProblemError:
        pass
    finally:
        store.sweep()


def test_root_that_is_a_link(tmp_path: Path) -> None:
    """A link in place of the state directory is refused: someone else may have put it there."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ProblemError, match="link"):
        Store(tmp_path / "state")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_root_of_another_user(tmp_path: Path) -> None:
    """A state directory of another user is refused."""
    (tmp_path / "state").mkdir()
    os.chown(tmp_path / "state", 12345, 12345)
    with pytest.raises(ProblemError, match="another user"):
        private_directory(tmp_path / "state")


def test_root_below_a_file(tmp_path: Path) -> None:
    """A state directory that cannot be made is a clear error that names the variable to set."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ProblemError, match="AOTI_DEBUG_STATE"):
        Store(tmp_path / "file" / "state")


@pytest.mark.parametrize(
    ("number", "words"),
    [(28, "the disk is full"), (30, "the file system is read-only"), (13, "permission is denied")],
)
def test_storage_errors_in_words(number: int, words: str, tmp_path: Path) -> None:
    """A full disk, a read-only file system and missing rights are told in words."""
    assert cause(OSError(number, "")) == words
    with pytest.raises(ProblemError, match=words), storing(tmp_path):
        raise OSError(number, "")


def test_full_disk(tmp_path: Path) -> None:
    """On a device that is really full, making a job fails in words."""
    with pytest.raises(ProblemError, match="the disk is full"), storing(tmp_path):
        Path("/dev/full").write_text("x")


def test_sweep_removes_the_oldest(tmp_path: Path) -> None:
    """Beyond the cap the oldest jobs go first, however the clock was set."""
    store = limited(tmp_path / "state", cap_bytes=300_000)
    jobs = [finished(store, 100_000) for _ in range(4)]
    os.utime(jobs[0].path, (4e9, 4e9))
    assert store.sweep() == [jobs[0].id, jobs[1].id]
    assert store.ids() == [jobs[2].id, jobs[3].id]
    assert sorted(path.name for path in store.jobs.iterdir()) == sorted(store.ids())


def test_sweep_spares_the_newest(tmp_path: Path) -> None:
    """The newest jobs stay even when each alone is too large: their results may not have been read yet."""
    store = limited(tmp_path / "state", cap_bytes=10, keep=2)
    jobs = [finished(store, 100_000) for _ in range(3)]
    assert store.sweep() == [jobs[0].id]


def test_sweep_by_count(tmp_path: Path) -> None:
    """Empty jobs do not pile up either."""
    store = limited(tmp_path / "state", cap_jobs=2)
    jobs = [finished(store) for _ in range(5)]
    assert store.sweep() == [job.id for job in jobs[:3]]


def test_sweep_spares_running_jobs(tmp_path: Path) -> None:
    """A job that runs is never removed, also when another server sweeps."""
    store = limited(tmp_path / "state", cap_jobs=0)
    job = store.create("test")
    assert limited(store.root, cap_jobs=0).sweep() == []
    assert store.is_running(store.find(job.id))
    job.release()
    assert not store.is_running(store.find(job.id))
    assert store.sweep() == [job.id]


def test_sweep_does_not_follow_links(tmp_path: Path) -> None:
    """What a job's link points to is neither counted nor removed."""
    store = limited(tmp_path / "state", cap_jobs=0)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "data").write_bytes(b"x" * 100_000)
    job = finished(store)
    (job.path / "link").symlink_to(outside)
    assert size_of(job.path) < 50_000
    store.sweep()
    assert (outside / "data").exists()


def test_half_made_job(tmp_path: Path) -> None:
    """A job whose server died while making it is swept like any other."""
    store = limited(tmp_path / "state", cap_jobs=0)
    (store.jobs / "job_00000001").mkdir()
    (store.jobs / "job_00000002").mkdir()
    (store.jobs / "job_00000002" / "job.json").write_text("{")
    assert sorted(store.sweep()) == ["job_00000001", "job_00000002"]


def test_lost_counter(store: Store) -> None:
    """New jobs stay younger than the old ones when the counter is lost."""
    old = finished(store)
    (store.root / "counter").write_text("garbage")
    assert finished(store).number > old.number


def test_two_servers_at_once(tmp_path: Path) -> None:
    """Jobs made and swept by several servers at a time get distinct handles and numbers."""

    def make(_: int) -> tuple[str, int]:
        store = limited(tmp_path / "state", cap_jobs=3)
        job = finished(store)
        store.sweep()
        return job.id, job.number

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(make, range(40)))
    assert len({job_id for job_id, _ in made}) == 40
    assert sorted(number for _, number in made) == list(range(1, 41))
    assert len(Store(tmp_path / "state").ids()) <= 3
