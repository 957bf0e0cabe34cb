"""Runs one child, and kills its whole process tree when it ends or when the server dies.

Started by the server as `python -I -S supervisor.py FD -- ARGV...`, in its own session. It
imports few modules, all of the standard library: each import costs every child a millisecond. FD is one end
of a socket pair:

  server -> supervisor   8 bytes of length, then `cwd NUL NAME=VALUE NUL NAME=VALUE ...`; then `T` to ask the
                         program to end. End of file: the server has died, or wants an immediate end.
  supervisor -> server   lines of words:
                         `failed STAGE ERRNO`      the program could not be started
                         `started PID`             exec succeeded
                         `ended STATUS LEFT`       raw wait status; processes that could not be killed

The child's environment comes over the socket because the supervisor must not run under it: an LD_PRELOAD or
LD_LIBRARY_PATH that the workload needs could break this interpreter.

Linux only. Processes that a daemon starts for the job (docker, systemd-run) are out of reach. The exception
is srun, which is asked to end the tasks that slurmd started for it before it is killed.
"""

# pathlib and contextlib would cost 5 ms a start:
# ruff: noqa: PTH110, PTH123, PTH208, SIM105

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36

STOP = b"T"
TERM_GRACE_S = 1.0
SWEEP_LIMIT_S = 5.0
SWEEP_STEP_S = 0.002
FAILED_START_STATUS = 127 << 8

# Programs that run their tasks through a daemon, and end those tasks on SIGTERM. SIGKILL to srun and to the
# watchdog that it forks leaves the tasks and the allocation running (seen on Slurm 22.05).
PROXIES = frozenset({b"srun"})
PROXY_LIMIT_S = 10.0


def prctl(option: int, value: int) -> None:
    """Call prctl(2). Failures are ignored: they only weaken a guarantee."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def read_exactly(fd: int, count: int) -> bytes:
    """Read `count` bytes. Raise EOFError if the server dies first."""
    parts = []
    while count:
        part = os.read(fd, count)
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def read_request(fd: int) -> tuple[bytes, dict[bytes, bytes]]:
    size = int.from_bytes(read_exactly(fd, 8), "big")
    cwd, *pairs = read_exactly(fd, size).split(b"\0")
    return cwd, dict(pair.split(b"=", 1) for pair in pairs if pair)


def report(fd: int, *words: object) -> None:
    """Send one line. Ignore failures: a server that has died needs no report."""
    try:
        os.write(fd, (" ".join(map(str, words)) + "\n").encode())
    except OSError:
        pass


def proc(*parts: object) -> str:
    return "/".join(["/proc", *map(str, parts)])


def children_of(pid: int) -> list[int]:
    """List the direct children of all threads of a process."""
    found: list[int] = []
    try:
        for thread in os.listdir(proc(pid, "task")):
            with open(proc(pid, "task", thread, "children"), "rb") as listing:
                found.extend(map(int, listing.read().split()))
    except OSError:
        pass  # the process ended during the read
    return found


def all_children() -> dict[int, list[int]]:
    """Map every process to its direct children. Slow: for kernels without CONFIG_PROC_CHILDREN."""
    found: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(proc(name, "stat"), "rb") as stat:
                parent = int(stat.read().rpartition(b")")[2].split()[1])
        except OSError:
            continue
        found.setdefault(parent, []).append(int(name))
    return found


def descendants(quick: bool = os.path.exists("/proc/thread-self/children"), root: int = 0) -> list[int]:
    """List every process below `root`, or below this one, in any session or process group."""
    table = {} if quick else all_children()
    found: list[int] = []
    waiting = [root or os.getpid()]
    while waiting:
        pid = waiting.pop()
        new = children_of(pid) if quick else table.get(pid, [])
        found.extend(new)
        waiting.extend(new)
    return found


def program_of(pid: int) -> bytes:
    """The name of a running process. Empty if the process has ended."""
    try:
        with open(proc(pid, "stat"), "rb") as stat:
            name, _, rest = stat.read().partition(b"(")[2].rpartition(b")")
    except OSError:
        return b""
    return b"" if rest.split()[0] in (b"Z", b"X") else name


def private_memory(pid: int) -> int:
    """Count anonymous and shared-memory bytes in RAM, but not file pages, which the kernel can drop."""
    total = 0
    try:
        with open(proc(pid, "status"), "rb") as status:
            for line in status:
                if line.startswith((b"RssAnon:", b"RssShmem:")):
                    total += int(line.split()[1]) * 1024
    except OSError:
        pass
    return total


def processor_use(root: int) -> tuple[float, bool]:
    """Sum the processor time of a process and its descendants. Say whether one runs, or waits to run."""
    ticks, runs = 0, False
    for pid in [root, *descendants(root=root)]:
        try:
            with open(proc(pid, "stat"), "rb") as stat:
                facts = stat.read().rpartition(b")")[2].split()
        except OSError:
            continue  # the process ended during the read
        ticks += sum(map(int, facts[11:15]))  # with the time of its children that have ended
        runs = runs or facts[0] == b"R"
    return ticks / os.sysconf("SC_CLK_TCK"), runs


def send_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def end_proxied(processes: Callable[[], list[int]]) -> None:
    """Send SIGTERM to the `PROXIES` among `processes`, and wait until they have ended their tasks."""
    asked: set[int] = set()
    limit = time.monotonic() + PROXY_LIMIT_S
    while time.monotonic() < limit:
        found = {pid for pid in processes() if program_of(pid) in PROXIES}
        if not found:
            return
        for pid in found - asked:
            send_signal(pid, signal.SIGTERM)
        asked |= found
        time.sleep(SWEEP_STEP_S)


class Supervisor:
    """One child and its process tree."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.child = 0
        self.status: int | None = None
        self.deadline: float | None = None
        self.wake, wake_in = os.pipe()
        os.set_blocking(wake_in, False)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.on_stop)

    def on_stop(self, *_: object) -> None:
        """Send SIGTERM to the child's process group. After `TERM_GRACE_S` the whole tree is killed."""
        if self.child and self.status is None:
            try:
                os.killpg(self.child, signal.SIGTERM)
            except OSError:
                pass
        if self.deadline is None:
            self.deadline = time.monotonic() + TERM_GRACE_S

    def start(self, exec_program: Callable[[int, int], None]) -> bool:
        """Fork and call `exec_program` in the child. Return whether the program started.

        `exec_program` gets our process id and a descriptor. It writes the reason of a failure to the
        descriptor; a successful exec closes it.
        """
        error_out, error_in = os.pipe()
        parent = os.getpid()
        self.child = os.fork()
        if self.child == 0:
            exec_program(error_in, parent)
        os.close(error_in)
        # Our copies of the child's output must close, or its readers never see end of file.
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.close(null)
        message = os.read(error_out, 100).decode()
        os.close(error_out)
        report(self.fd, "failed" if message else "started", message or self.child)
        return not message

    def reap(self) -> bool:
        """Reap ended children. Return False if no child is left."""
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
            while pid:
                if pid == self.child:
                    self.status = status
                pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        return True

    def watch(self) -> None:
        """Return when the child has ended or must be killed: at the deadline, or if the server is gone."""
        while self.reap() and self.status is None:
            left = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
            ready, _, _ = select.select([self.fd, self.wake], [], [], left)
            if self.wake in ready:
                os.read(self.wake, 4096)
            if self.fd in ready:
                try:
                    word = os.read(self.fd, 1)
                except OSError:
                    return
                if not word:
                    return
                if word == STOP:
                    self.on_stop()
            if self.deadline is not None and time.monotonic() >= self.deadline:
                return

    def sweep(self) -> int:
        """Kill every descendant. Return how many survived because they are blocked in the kernel."""
        end_proxied(descendants)
        limit = time.monotonic() + SWEEP_LIMIT_S
        while self.reap():
            for pid in descendants():
                send_signal(pid, signal.SIGKILL)
            if time.monotonic() > limit:
                return len(descendants())
            time.sleep(SWEEP_STEP_S)
        return 0


def new_session(parent: int) -> None:
    """In the forked child: start a session, and arrange to die with the supervisor."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    # Disable core files. The limit is 1 byte and not 0, since only 1 also stops a core_pattern that pipes to
    # a program (fs/coredump.c). A hard limit of 0, as `ulimit -c 0` leaves it, cannot be raised and stays.
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    most = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))
    # Undo what this interpreter changed: ignored signals and the signal mask survive exec.
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def exec_program(argv: list[str], cwd: bytes, env: dict[bytes, bytes], error_fd: int, parent: int) -> None:
    """In the forked child: exec the program, or report the stage that failed. Never returns."""
    stage = "session"
    try:
        new_session(parent)
        for name in os.listdir("/proc/self/fd"):  # the program must not inherit the lifeline and the leases
            try:
                os.set_inheritable(int(name), int(name) <= 2)
            except OSError:
                pass  # the descriptor that lists the others
        stage = "directory"
        os.chdir(cwd)
        stage = "program"
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(error_fd, f"{stage} {error.errno}".encode())
    except BaseException:
        os.write(error_fd, f"{stage} 0".encode())
    os._exit(127)


def main() -> None:
    fd, argv = int(sys.argv[1]), sys.argv[3:]
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        cwd, env = read_request(fd)
    except EOFError:
        os._exit(1)
    supervise(fd, lambda error_fd, parent: exec_program(argv, cwd, env, error_fd, parent))


def supervise(fd: int, exec_program: Callable[[int, int], None]) -> None:
    """Run the program until none of its processes is left. Never returns."""
    supervisor = Supervisor(fd)
    if supervisor.start(exec_program):
        supervisor.watch()
    left = supervisor.sweep()
    status = FAILED_START_STATUS if supervisor.status is None else supervisor.status
    report(fd, "ended", status, left)
    os._exit(0)


if __name__ == "__main__":
    main()
