"""How the server goes when a signal ends it."""

from __future__ import annotations

import os
import signal

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
