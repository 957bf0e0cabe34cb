"""Running one command: its environment, the ways in which it can end, and what is kept."""

import resource
from pathlib import Path

import pytest

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import STACKS_SIGNAL, Command
from mcp_server.jobs.gpus import Clock
from mcp_server.jobs.run import run
from tests.jobs.support import FAMILY, all_dead, family, finish, python


def mentions(process: Path, word: str) -> bool:
    """Whether the process has the word in its command line."""
    try:
        return word.encode() in (process / "cmdline").read_bytes()
    except OSError:
        return False


STUCK = """
import faulthandler, os, signal, sys, time
faulthandler.register(int(sys.argv[2]))
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
def waits_in_vain():
    time.sleep(60)
waits_in_vain()
"""


async def test_a_process_that_will_not_go_on_prints_its_stacks_and_is_ended(tmp_path: Path) -> None:
    """The process is stopped long before the time limit, and reported as `timeout`."""
    pid = tmp_path / "pid"
    done = await finish(
        tmp_path,
        python(STUCK, str(pid), str(int(STACKS_SIGNAL))),
        stalled=lambda: int(pid.read_text() or 0) or None if pid.exists() else None,
    )
    assert (done.ending, done.wall_s < 45) == ("timeout", True)
    assert "in waits_in_vain" in done.stderr.read_text()
    assert done.note.startswith("stood still") and all_dead([int(pid.read_text())], 15)


@pytest.mark.parametrize(
    ("argv", "cwd", "note"),
    [
        (("no-such-program-here",), "", "No such file"),
        (("./data",), "", "ermission"),
        (("true",), "absent", "working directory"),
    ],
)
async def test_not_started(argv: tuple[str, ...], cwd: str, note: str, tmp_path: Path) -> None:
    """A command that cannot start is distinguished from exit status 127, and the reason is named."""
    (tmp_path / "data").write_text("text")
    done = await run(Command(argv, tmp_path / cwd), tmp_path)
    assert (done.ending, done.returncode, note in done.note) == ("not_started", None, True)


@pytest.mark.parametrize("argv", [(), ("",), ("true", "a\0b"), ("true", "x" * (1 << 22))])
async def test_impossible_arguments(argv: tuple[str, ...], tmp_path: Path) -> None:
    """Arguments that execve rejects are refused before anything starts."""
    with pytest.raises(ProblemError):
        await finish(tmp_path, argv)


async def test_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that handles SIGTERM ends at its time limit, and its last output is kept."""
    monkeypatch.setattr("mcp_server.jobs.run.TIMEOUT_GRACE_S", 60.0)
    code = "trap 'echo bye; exit 0' TERM; echo hello; while :; do sleep 0.05; done"
    done = await finish(tmp_path, ("sh", "-c", code), timeout_s=0.9)
    assert (done.ending, done.returncode) == ("timeout", None)
    assert "0.9 s" in done.note
    assert done.wall_s < 30
    assert done.stdout.read_text() == "hello\nbye\n"


BUSY = "import time; end = time.monotonic() + 12\nwhile time.monotonic() < end: pass"


@pytest.mark.parametrize(
    ("code", "allowed", "ending", "building"),
    [
        (BUSY.replace("12", "6"), True, "exit", ""),
        (BUSY, False, "timeout", "compiling"),
        ("import time; time.sleep(30)", True, "timeout", ""),
    ],
)
async def test_a_build_goes_on(code: str, allowed: bool, ending: str, building: str, tmp_path: Path) -> None:
    """Build time that is allowed does not count. A build cut at the limit is distinguished from a wait."""
    clock = Clock()
    clock.allowance_s = 60.0 * allowed
    options = {"timeout_s": 4, "builds": lambda: "compiling", "spare": clock.spare}
    done = await finish(tmp_path, python(code), **options)
    assert (done.ending, done.building) == (ending, building)
    assert (done.spared_s > 3) == (ending == "exit") and abs(clock.spared_s - done.spared_s) < 0.5


async def test_time_limit_on_a_deaf_program(tmp_path: Path) -> None:
    """A program that ignores SIGTERM and its child in another session are killed after a second."""
    done = await finish(tmp_path, python(FAMILY, str(tmp_path / "pids")), timeout_s=1.5)
    assert (done.ending, done.signal) == ("timeout", "SIGKILL")
    assert 2.4 < done.wall_s < 55
    assert all_dead(family(tmp_path / "pids"), 0)


async def test_leftover_processes(tmp_path: Path) -> None:
    """A background process that a program leaves is killed, and does not delay the result."""
    code = "setsid sh -c 'echo $$ > part; mv part pid; exec sleep 60' & while [ ! -e pid ]; do :; done"
    done = await finish(tmp_path, ("sh", "-c", code))
    assert done.ok
    assert all_dead([int((tmp_path / "pid").read_text())], 0)


async def test_processes_that_run_away(tmp_path: Path) -> None:
    """A chain of processes that each fork and move to a new session is killed."""
    code = """
import os, time
if os.fork():
    time.sleep(0.1)
    os._exit(0)
while os.fork() == 0:
    os.setsid()
os._exit(0)
"""
    done = await finish(tmp_path, python(code, str(tmp_path)))
    assert (done.ok, done.note) == (True, "")
    assert not [entry for entry in Path("/proc").glob("[0-9]*") if mentions(entry, str(tmp_path))]


async def test_child_inherits_only_standard_streams(tmp_path: Path) -> None:
    """The program inherits neither the lifeline nor leases."""
    code = "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"
    done = await finish(tmp_path, python(code), gpus=(9001,))
    assert done.stdout.read_text() == "[0, 1, 2, 3]\n"  # 3 is the descriptor of the listing


async def test_child_has_its_own_session_and_no_core_files(tmp_path: Path) -> None:
    """The program leads a session, and a core limit of 1 byte prevents core files and core handlers."""
    code = "import os, resource; print(os.getsid(0) == os.getpid(), resource.getrlimit(resource.RLIMIT_CORE))"
    done = await finish(tmp_path, python(code))
    limit = min(1, resource.getrlimit(resource.RLIMIT_CORE)[1] % 2**64)  # infinity is -1
    assert done.stdout.read_text() == f"True ({limit}, {limit})\n"


async def test_environment_of_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program gets allowed and requested variables, but no secrets and not the supervisor's own."""
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    monkeypatch.setenv("CUDA_HOME", "/cuda")
    done = await finish(tmp_path, ("env",), env={"ASKED": "1 \udc80=\n2", "LD_PRELOAD": ""}, unset=("HOME",))
    shown = done.stdout.read_bytes()
    assert b"ASKED=1 \x80=\n2\n" in shown
    assert b"CUDA_HOME=/cuda\n" in shown
    assert b"PYTHONUNBUFFERED=1\n" in shown
    assert b"hunter2" not in shown and b"HOME=/root" not in shown


SECRETS = {
    **dict.fromkeys(
        ("HF_TOKEN", "HF_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "SLURM_JWT", "TORCH_PASSWORD"), "x"
    ),
    **dict.fromkeys(("CONDA_CREDENTIALS", "ANTHROPIC_API_KEY", "SSH_AUTH_SOCK", "DATABASE_URL"), "x"),
    **dict.fromkeys(("PYTHONSTARTUP", "PYTHONFAULTHANDLER"), "1"),
    "HTTPS_PROXY": "http://me:hunter2@proxy:8080",
    "BASH_FUNC_ls%%": "() { :; }",
}


async def test_other_names_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets, including a password in a proxy's URL, and unknown variables are not passed on."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    done = await finish(tmp_path, ("env",))
    assert not {line.partition("=")[0] for line in done.stdout.read_text().splitlines()} & set(SECRETS)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [*((name, "x", "not a name") for name in ("", "A=B", "A\0B")), ("A", "hunter2\0", "NUL")],
)
async def test_an_impossible_variable(tmp_path: Path, name: str, value: str, said: str) -> None:
    """A variable that execve rejects is refused, without its value in the message."""
    with pytest.raises(ProblemError, match=said) as caught:
        await finish(tmp_path, ("env",), env={name: value})
    assert "hunter2" not in str(caught.value)
