"""Wraps a function so that something is told before and after it, without changing what it does."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Optional

from .journal import Journal

Before = Callable[..., Any]
After = Callable[[Any, Any, Optional[BaseException]], None]


def nothing(_state: Any, _result: Any, _error: Optional[BaseException]) -> None:
    """For a function of which only the beginning is told."""


def safely(journal: Journal, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the hook's own code; what it raises is journaled and goes no further."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        with contextlib.suppress(Exception):  # a full disk must not stop the program either
            text = "{}: {}".format(type(error).__name__, error)
            journal.event("hook_failed", where=function.__name__, error=text)
        return None


def around(
    journal: Journal, original: Callable[..., Any], before: Before, after: After
) -> Callable[..., Any]:
    """`before(*args, **kwargs)` gives a state, `after(state, result, error)` ends it; None skips `after`."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        state = safely(journal, before, *args, **kwargs)
        if state is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            safely(journal, after, state, None, error)
            raise
        safely(journal, after, state, result, None)
        return result

    wrapper.__aoti_debug__ = True  # type: ignore[attr-defined]
    return wrapper


def wrap(journal: Journal, owner: Any, name: str, before: Before, after: After) -> None:
    """Replace `owner.name`, once; an owner without it is left alone."""
    original = getattr(owner, name, None)
    if original is not None and not hasattr(original, "__aoti_debug__"):
        setattr(owner, name, around(journal, original, before, after))
