"""What is kept of each case: the attempts, and the verdict of the one that came to an end."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from mcp_server.model import Record, Verdict
from mcp_server.sweep.plan import SweepCase

Ending = Literal["verdict", "refused", "lost"]


class Attempt(Record):
    """One try. `lost` means that what ran it died; `refused` that the case itself cannot be diagnosed."""

    ended: Ending
    where: str
    wall_s: float
    why: str = ""


class CaseRecord(Record):
    """A case with how it ended. `digest` tells whether it is still the same case."""

    name: str
    digest: str
    ended: Ending
    attempts: list[Attempt]
    verdict: Verdict | None = None

    @property
    def result(self) -> str:
        """One word for a table."""
        if self.verdict is None:
            return self.ended
        return self.verdict.category or self.verdict.outcome


class Sweep(Record):
    """All cases in the order of the file, and where the report is."""

    cases: list[CaseRecord] = Field(default_factory=list)
    reused: int = 0
    report: Path | None = None


class Results:
    """The records below one directory. A case that changed gets a new file; none is overwritten."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "results"
        self.directory.mkdir(parents=True, exist_ok=True)

    def path(self, case: SweepCase) -> Path:
        return self.directory / f"{case.name}-{case.digest}.json"

    def known(self, case: SweepCase) -> CaseRecord | None:
        """The verdict of an earlier sweep on the same case; a case that was lost is tried again."""
        try:
            record = CaseRecord.model_validate_json(self.path(case).read_bytes())
        except (OSError, ValidationError):
            return None
        return record if record.verdict is not None else None

    def keep(self, case: SweepCase, record: CaseRecord) -> None:
        """Written whole or not at all."""
        path = self.path(case)
        partial = path.with_suffix(".partial")
        partial.write_text(record.model_dump_json(indent=1))
        partial.replace(path)
