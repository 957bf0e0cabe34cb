"""A request that does not come whole in time loses its connection: uvicorn 0.54 waits for ever."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_LIMIT_S = 30.0
"""From the first byte, or the connection, to the end of the body: 4 MiB need no more at 1 Mbit/s."""

_INCOMPLETE = (h11.IDLE, h11.SEND_BODY)


class TimedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for each request."""

    limit_s = REQUEST_LIMIT_S
    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit = self.loop.call_later(self.limit_s, self._end)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state not in _INCOMPLETE:
            self._forget()
        elif self._limit is None:
            self._limit = self.loop.call_later(self.limit_s, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _forget(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _end(self) -> None:
        self._limit = None
        if self.conn.their_state in _INCOMPLETE:
            self.transport.abort()
