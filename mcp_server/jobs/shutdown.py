"""How the server goes when a signal ends it."""

from __future__ import annotations

import os
import select
import signal
import threading
from contextlib import suppress
from pathlib import Path

FATAL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def exit_on_signals() -> None:
    """End this process at once on SIGINT, SIGTERM and SIGHUP, with status 128 + n.

    A thread that reads standard input cannot be cancelled, so an orderly end would hang. Nothing is lost by
    going at once: the kernel closes the lifelines, and each supervisor then kills its tree. A signal that
    this process was started to ignore (nohup) stays ignored.
    """
    for number in FATAL:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda received, _frame: os._exit(128 + received))


def end_with_uv() -> None:
    """End this process when the `uv run` that started it is gone: killed, it takes nobody along.

    Only for uv, which has no other task than to wait for us. A client may well start a server through a
    process that ends.
    """
    parent = os.getppid()
    with suppress(OSError):
        if Path(f"/proc/{parent}/comm").read_text().strip() == "uv":
            threading.Thread(target=_wait_for, args=(os.pidfd_open(parent),), daemon=True).start()


def _wait_for(parent: int) -> None:
    select.select([parent], [], [])
    os._exit(128 + signal.SIGHUP)
