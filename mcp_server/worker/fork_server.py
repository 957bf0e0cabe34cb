"""Imports torch once and forks for each request: `PYTHON -u fork_server.py LOADED [MODULE...] SUPERVISOR`.

Each MODULE is imported after torch, if it can be. SUPERVISOR is the path of `jobs/supervisor.py`. The loaded
files are listed in the file LOADED, unless it is "". Descriptor 0 is a Unix socket of packets. The server
sends `ready PID` when torch is imported. Each packet that it gets is a JSON list, the arguments of `main.py`,
with the descriptors of a lifeline, stdout, stderr, and leases. The server forks a supervisor, which forks the
worker. When the socket is closed, the server and all that it forked end.

Forks share only imports, which must not touch a GPU: CUDA cannot be used in a fork of a process that
initialised it (torch/csrc/cuda/utils.cpp, 2.13). If an import does, the server starts again with torch alone.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import signal
import socket
import sys
import warnings
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
PACKET_BYTES = 65536
MOST_DESCRIPTORS = 64
PREPARED = (".report", ".events", ".run")  # modules that every request needs


class Forked(BaseException):
    """Unwinds the server's stack in a forked worker, so that it can run and end like any program."""


def load(name: str, path: str) -> Any:
    """Load a module from its file, because aoti-debug cannot be imported here."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def serve(server: socket.socket, supervisor: Any) -> None:
    """Fork a supervisor for each packet until the socket is closed; raises `Forked` in the workers."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended supervisors leave no zombies
    while True:
        packet, descriptors, _, _ = socket.recv_fds(server, PACKET_BYTES, MOST_DESCRIPTORS)
        if not packet:
            return
        if fork(supervisor, descriptors[0]) == 0:
            server.close()
            keep(supervisor, json.loads(packet), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def fork(supervisor: Any, lifeline: int) -> int:
    """Call os.fork. If it fails, report that as the supervisor does, and return -1."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # 3.12 warns of threads, such as those of NumPy's BLAS
            return os.fork()
    except OSError as error:
        supervisor.report(lifeline, "failed", "session", error.errno)
        supervisor.report(lifeline, "ended", supervisor.FAILED_START_STATUS, 0)
        return -1


def keep(supervisor: Any, argv: list[str], descriptors: list[int]) -> None:
    """Run in the forked process: fork one worker and supervise it. In the worker, raise `Forked`."""
    os.setsid()
    lifeline, stdout, stderr = descriptors[:3]
    null = os.open(os.devnull, os.O_RDWR)
    for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
    for descriptor in (null, stdout, stderr):
        os.close(descriptor)
    supervisor.prctl(supervisor.PR_SET_CHILD_SUBREAPER, 1)

    def become_worker(error: int, parent: int) -> None:
        """In the worker: set its session, signals, directory and environment, then raise `Forked`."""
        stage = "session"
        try:
            supervisor.new_session(parent)
            # Restore the signal handlers of a fresh Python, replacing the supervisor's.
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            stage = "directory"
            os.chdir(cwd)
            os.environb.clear()
            os.environb.update(env)
        except OSError as failure:
            os.write(error, "{} {}".format(stage, failure.errno).encode())
            os._exit(127)
        for descriptor in (error, lifeline, *descriptors[3:]):
            os.close(descriptor)
        raise Forked(argv)

    try:
        cwd, env = supervisor.read_request(lifeline)
        supervisor.supervise(lifeline, become_worker)
    except EOFError:
        os._exit(1)


def import_torch(modules: list[str]) -> bool:
    """Import torch and the modules. Return whether forks can use them.

    They cannot if the modules started threads, which a fork lacks, or touched a GPU, if only to count the
    devices. Ignore a module that cannot be imported.
    """
    torch = importlib.import_module("torch")
    threads = len(os.listdir("/proc/self/task"))
    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > threads or torch.cuda.is_initialized():
        return False
    child = os.fork()
    if child == 0:
        os._exit(1 if torch.cuda._is_in_bad_fork() else 0)
    return os.waitpid(child, 0)[1] == 0


def write_loaded_files(path: str) -> None:
    """List the files and directories on which this process depends. If one changes, it is outdated."""
    found = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        found.update(line.split(None, 5)[5].rstrip("\n") for line in maps if ".so" in line)
    found.update((sys.executable, sys.prefix, os.path.join(sys.prefix, "pyvenv.cfg"), *sys.path))
    named = sorted(file for file in found if file and os.path.isabs(file) and os.path.exists(file))
    with open(path, "w", encoding="utf-8") as listing:
        json.dump(named, listing)


def main(argv: list[str]) -> int:
    worker = load("_aoti_debug_main", os.path.join(HERE, "main.py"))
    worker.drop_script_dir()
    server = socket.socket(fileno=0)
    supervisor = load("_aoti_debug_supervisor", argv[-1])
    loaded, modules = argv[1], argv[2:-1]
    if not import_torch(modules):
        if not modules:
            return 1
        os.execv(sys.executable, [sys.executable, "-u", argv[0], loaded, argv[-1]])  # retry with torch only
    worker.register_as_package()
    for name in PREPARED:
        importlib.import_module(worker.PACKAGE + name)
    if loaded:
        write_loaded_files(loaded)
    gc.freeze()  # the collector must not write to pages that forks share
    server.send("ready {}".format(os.getpid()).encode())
    try:
        serve(server, supervisor)
        return 0
    except Forked as forked:
        sys.argv[:] = forked.args[0]
    return int(worker.main(sys.argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
