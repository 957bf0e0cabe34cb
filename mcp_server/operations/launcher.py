"""The launcher that starts programs here: configuration of the server, never an argument of a call."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping

from mcp_server.errors import ProblemError

LAUNCHER_VARIABLE = "AOTI_DEBUG_LAUNCHER"


def launcher(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The words of AOTI_DEBUG_LAUNCHER, run as they are; none where it is not set.

    Raises ProblemError for text that is no command line, and for a program that is not there.
    """
    text = (os.environ if environ is None else environ).get(LAUNCHER_VARIABLE, "")
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ProblemError(f"{LAUNCHER_VARIABLE} is no command line: {error}", value=text[:300]) from None
    if words and not shutil.which(words[0]):
        raise ProblemError(
            f"the program in {LAUNCHER_VARIABLE} is not there",
            value=words[0],
            allowed="a program on PATH and its options, such as srun --gpus=1",
        )
    return words
