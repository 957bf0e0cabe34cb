"""Which of the processes that a launcher started this one is."""

from __future__ import annotations

import os

# As torchrun, srun, Open MPI and MPICH number them; the first is how torchrun labels the lines of a process.
VARIABLES = ("LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
PIDS = 1 << 22  # no process id is as large (PID_MAX_LIMIT of linux/threads.h)


def rank() -> str:
    """The rank, in digits; empty without a launcher of ours."""
    if "AOTI_DEBUG_LAUNCHED" not in os.environ:
        return ""
    return next(filter(str.isdigit, (os.environ.get(name, "") for name in VARIABLES)), "")


def other_rank() -> bool:
    """Whether this process stands beside the one of rank 0, which does the work."""
    return rank() not in ("", "0")


def identity() -> int:
    """The process id; with the rank above it, since processes on several nodes may have the same."""
    return os.getpid() + PIDS * int(rank() or "0")
