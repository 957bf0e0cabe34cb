"""Reads the files that jobs left, by URI, a range of bytes at a time."""

from __future__ import annotations

import re
from pathlib import Path

from mcp_server.errors import ProblemError

JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,80}")
PAGE_BYTES = 20_000
LARGEST_PAGE_BYTES = 200_000


def artifact_uri(job_id: str, name: str) -> str:
    return f"aoti-debug://{job_id}/{name}"


def read_artifact(jobs: Path, job_id: str, name: str, offset: int = 0, limit: int = PAGE_BYTES) -> str:
    """Text of `limit` bytes (at most 200,000) from `offset`; what is left out is said in a last line.

    Raises ProblemError: no such job or file, a path out of the job's directory, a binary file, a bad range.
    """
    path = _inside(jobs, job_id, name)
    size = path.stat().st_size
    limit = min(limit, LARGEST_PAGE_BYTES)
    if not 0 <= offset <= size or limit < 1:
        raise ProblemError(
            "no such range",
            value=f"offset {offset}, limit {limit}",
            allowed=f"offset 0-{size}, limit 1-200000",
        )
    with path.open("rb") as file:
        file.seek(offset)
        page = file.read(limit)
    if b"\0" in page:
        raise ProblemError("the file is binary", value=name, next_call=f"open {path} with a local tool")
    return page.decode("utf-8", "replace") + _note(artifact_uri(job_id, name), offset, len(page), size)


def _inside(jobs: Path, job_id: str, name: str) -> Path:
    """The file, or ProblemError; links are followed only within the job's directory."""
    if not JOB_ID.fullmatch(job_id):
        raise ProblemError("not a job id", value=job_id[:80], allowed="the id in an artifact's uri")
    directory = (jobs / job_id).resolve()
    path = (directory / name).resolve()
    if not path.is_relative_to(directory) or not path.is_file():
        raise ProblemError(
            "no such artifact", value=artifact_uri(job_id, name)[:200], allowed="a uri that a result names"
        )
    return path


def _note(uri: str, offset: int, shown: int, size: int) -> str:
    end = offset + shown
    return "" if end >= size else f"\n[bytes {offset}-{end} of {size}; next: {uri}?offset={end}]"
