"""The user's own check of outputs: a command that gets a file with them; status 0 means good."""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import Any, Sequence

import torch

from .report import Refused
from .trial_facts import CheckFacts

CHECK_LIMIT_S = 120.0  # of one run of the command
TEXT_LIMIT = 2000  # characters of what it printed
_SHELL_COULD_NOT = (126, 127)  # what a shell ends with for a command that it cannot run or find


def run_check(argv: Sequence[str], outputs: "list[torch.Tensor]") -> CheckFacts:
    """Run `argv` with the path of a `torch.save`d list of `outputs` as the last argument.

    Raises `Refused` for a command that cannot be started, dies of a signal or does not end: that says nothing
    about the outputs.
    """
    with tempfile.TemporaryDirectory(prefix="aoti-debug-outputs-") as directory:
        path = os.path.join(directory, "outputs.pt")
        torch.save([tensor.detach().cpu() for tensor in outputs], path)
        with open(os.path.join(directory, "said.txt"), "w+b") as said:
            status = _status([*argv, path], said)
            said.seek(max(0, said.tell() - TEXT_LIMIT))
            text = said.read().decode("utf-8", "replace").strip()
    if status in _SHELL_COULD_NOT or status < 0:
        why = "died of signal {}".format(-status) if status < 0 else "could not be run: " + text[-300:]
        raise Refused("the check command " + why, " ".join(argv), "a program that ends with status 0 or 1")
    return CheckFacts(status, text)


def _status(argv: "list[str]", said: Any) -> int:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            timeout=CHECK_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Refused(
            "the check command did not end within {:g} s".format(CHECK_LIMIT_S), " ".join(argv)
        ) from None
    except OSError as error:
        what = "the check command cannot be started: {}".format(error.strerror)
        raise Refused(what, " ".join(argv), "a program that may be executed") from None
    return int(done.returncode)
