"""The stack of a thread: how large it is, and a call made on one of a given size.

A kernel or an operator that needs more than its thread has dies of a signal, as of a bad pointer.
"""

from __future__ import annotations

import ctypes
import resource
import threading
from typing import Any, Callable, Optional

_known = threading.local()
_ATTRIBUTES = 128  # bytes, more than a pthread_attr_t has anywhere (56 on x86-64, 64 on AArch64)


def stack_bytes() -> Optional[int]:
    """Of the current thread; None where nothing limits it, or the C library does not tell.

    That of the main thread grows up to RLIMIT_STACK, which a program may change.
    """
    if threading.current_thread() is threading.main_thread():
        limit = resource.getrlimit(resource.RLIMIT_STACK)[0]
        return None if limit == resource.RLIM_INFINITY else limit
    if not hasattr(_known, "size"):
        _known.size = _told()
    size: Optional[int] = _known.size
    return size


def _told() -> Optional[int]:
    """What pthread_getattr_np (glibc, musl) says of this thread."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "pthread_getattr_np"):
        return None
    library.pthread_self.restype = ctypes.c_void_p
    attributes = ctypes.create_string_buffer(_ATTRIBUTES)
    if library.pthread_getattr_np(ctypes.c_void_p(library.pthread_self()), attributes):
        return None
    address, size = ctypes.c_void_p(), ctypes.c_size_t()
    failed = library.pthread_attr_getstack(attributes, ctypes.byref(address), ctypes.byref(size))
    library.pthread_attr_destroy(attributes)
    return None if failed else int(size.value)


def on_stack(size: Optional[int], function: Callable[[], Any]) -> Any:
    """What `function` returns or raises, in a thread with a stack of `size` bytes; here for None."""
    if size is None:
        return function()
    found: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            found.append(function())
        except BaseException as error:
            errors.append(error)

    before = threading.stack_size(size)
    try:
        thread = threading.Thread(target=work)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return found[0]
