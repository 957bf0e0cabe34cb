"""Whose a job is, where several clients share one server: that of the session that started it."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

from mcp_server.errors import ProblemError

SESSION_HEADER = "mcp-session-id"
WITHOUT_SESSION = ""
"""The owner of a job that was started by a request of no session, as those of protocol 2026-07-28 are."""

_client: ContextVar[str | None] = ContextVar("client", default=None)
"""The session of the request that is handled; None on stdio, where one client has the server alone."""


class Ownership:
    """Which jobs a client may see, read and stop.

    Without sessions, a job's handle is the right to it: whoever knows it may use the job, and nobody is told
    of it. `shared`: every client may use every job of the state directory. On stdio that is so anyway.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._owners: dict[str, str] = {}

    async def middleware(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Remember while a request is handled which session it belongs to."""
        headers = getattr(ctx.request, "headers", None)
        client = None if headers is None else str(headers.get(SESSION_HEADER, WITHOUT_SESSION))
        before = _client.set(client)
        try:
            return await call_next(ctx)
        finally:
            _client.reset(before)

    def claim(self, job_id: str) -> None:
        """A new job belongs to the client whose request is handled."""
        client = _client.get()
        if client is not None:
            self._owners[job_id] = client

    def check(self, job_id: str) -> None:
        """Raise ProblemError for a job of another session, as for one that does not exist."""
        if not self._may_use(job_id):
            raise ProblemError(
                "no such job of this session",
                value=job_id,
                allowed="a job that this session started; with `serve --share-jobs` every job",
            )

    def listed(self, job_ids: Iterable[str]) -> list[str]:
        """Those that the client is told of."""
        client = _client.get()
        if client is None or self._shared:
            return list(job_ids)
        return [job_id for job_id in job_ids if client and self._owners.get(job_id) == client]

    def _may_use(self, job_id: str) -> bool:
        client = _client.get()
        return client is None or self._shared or self._owners.get(job_id) in (client, WITHOUT_SESSION)
