"""A Slurm cluster of two nodes on loopback for the tests here, run by the user in a temporary folder."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

DAEMONS = ("munged", "slurmctld", "slurmd")
SYSTEM_PATH = "/usr/sbin:/usr/local/sbin:/sbin"
START_LIMIT_S = 60

# The least demanding configuration: no control groups, accounting or binding to cores.
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def installed(name: str) -> str | None:
    """Where a daemon is installed, or None."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


class Cluster:
    """A cluster that takes jobs. `config` is the file for SLURM_CONF."""

    def __init__(self, config: Path) -> None:
        self.config = config

    def queued(self) -> int:
        """Count the jobs of the cluster, running or waiting."""
        return len(self._ask("squeue", "--noheader").splitlines())

    def idle_nodes(self) -> int:
        """Count the nodes that could take a job. 0 while the cluster does not answer."""
        return self._ask("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N").count("n")

    def clear(self) -> None:
        """End all jobs."""
        self._ask("scancel", "--signal=KILL", "--full", "--partition=main")
        self._ask("scancel", "--partition=main")

    def _ask(self, *argv: str) -> str:
        env = {**os.environ, "SLURM_CONF": str(self.config)}
        return subprocess.run(argv, env=env, capture_output=True, text=True).stdout


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Run a cluster of two nodes while the context lasts."""
    cluster = Cluster(_configure(folder))
    config = str(cluster.config)
    with ExitStack() as daemons:
        daemons.enter_context(_munged(folder))
        _wait((folder / "munge.socket").exists, folder)
        daemons.enter_context(_daemon(folder, "slurmctld", "-D", "-f", config))
        for node in ("n1", "n2"):
            daemons.enter_context(_daemon(folder, "slurmd", "-D", "-N", node, "-f", config))
        _wait(lambda: cluster.idle_nodes() == 2, folder)
        daemons.callback(cluster.clear)
        yield cluster


def _configure(folder: Path) -> Path:
    (folder / "state").mkdir()
    (folder / "munge.key").touch(mode=0o600)
    (folder / "munge.key").write_bytes(os.urandom(128))
    path, host = folder / "slurm.conf", socket.gethostname().partition(".")[0]
    user = pwd.getpwuid(os.getuid()).pw_name
    path.write_text(CONFIG.format(host=host, user=user, folder=folder, ports=_free_ports(3)))
    return path


def _free_ports(count: int) -> list[int]:
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _munged(folder: Path) -> AbstractContextManager[None]:
    names = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
    files = [f"--{option}={folder / f'munge.{end}'}" for option, end in names.items()]
    return _daemon(folder, "munged", "--foreground", "--force", *files)


@contextmanager
def _daemon(folder: Path, name: str, *arguments: str) -> Iterator[None]:
    path = installed(name)
    assert path is not None
    with (
        (folder / "daemons.log").open("ab") as log,
        subprocess.Popen([path, *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL) as process,
    ):
        try:
            yield
        finally:
            process.terminate()


def _wait(happens: Callable[[], bool], folder: Path) -> None:
    limit = time.monotonic() + START_LIMIT_S
    while not happens():
        assert time.monotonic() < limit, (folder / "daemons.log").read_text(errors="replace")[-4000:]
        time.sleep(0.1)


@pytest.fixture(scope="session")
def started_cluster() -> Iterator[Cluster]:
    """Skip the tests if Slurm is not installed. The folder has a short path, because sockets need that."""
    missing = [name for name in (*DAEMONS, "srun") if installed(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian: slurm-wlm)")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    try:
        with running(folder) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def cluster(started_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster without any job, before and after the test."""
    monkeypatch.setenv("SLURM_CONF", str(started_cluster.config))
    yield started_cluster
    started_cluster.clear()
