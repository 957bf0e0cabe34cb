"""This process: its limits and memory (descriptors, address space, stacks, guard bytes), and its GPU.

- Stacks: a kernel that overflows its thread's stack dies of a signal, like one with a bad pointer.
- `unmapped` finds tensors whose memory was unmapped. It writes their bytes to a pipe, because reading them
  directly could end the process. Freed memory that is still mapped looks like memory in use.
- `Padded` puts guard bytes around tensors. Native code with raw addresses (ctypes) may write past the end of
  its result, which otherwise fails only later, in the allocator or another kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterator, Sequence

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .report import Overrun
from .tensors import is_plain, only_tensors, span


def process_limits() -> tuple[int | None, int | None]:
    """The limit on open files (None unless it is reached) and on file size (None if there is none)."""
    no_files = None
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno == errno.EMFILE:
            no_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return no_files, _limit(resource.RLIMIT_FSIZE)


def _limit(kind: int) -> int | None:
    limit = resource.getrlimit(kind)[0]
    return None if limit == resource.RLIM_INFINITY else limit


ENOUGH_FOR_THREADS = 1 << 20  # elements: enough for torch to split the work among threads
# Column of /proc/self/statm that each limit restricts: address space; private writable memory.
_COLUMNS = {"RLIMIT_AS": 0, "RLIMIT_DATA": 5}


def headroom() -> tuple[int | None, str]:
    """The bytes that this process may still map, and the limit's name, or (None, "") without limit."""
    found = []
    for name, column in _COLUMNS.items():
        limit = _limit(getattr(resource, name))
        if limit is not None:
            found.append((max(limit - _mapped(column), 0), name))
    return min(found) if found else (None, "")


@contextlib.contextmanager
def limited(left: int | None) -> Iterator[None]:
    """Let the body map at most `left` more bytes. Start torch's threads before, as earlier calls do.

    Set RLIMIT_AS even if RLIMIT_DATA was the limit: memory that a call maps is private and writable, and
    counts for both.
    """
    if left is None:
        yield
        return
    torch.ones(ENOUGH_FOR_THREADS).sum()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = _mapped() + left if hard == resource.RLIM_INFINITY else min(_mapped() + left, hard)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _mapped(column: int = 0) -> int:
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[column]) * resource.getpagesize()


_ATTRIBUTES = 128  # bytes, more than a pthread_attr_t has anywhere (56 on x86-64, 64 on AArch64)


def stack_bytes() -> int | None:
    """The stack size of the current thread. None if it is unlimited or unknown.

    The main thread's stack grows up to RLIMIT_STACK, which a program may change. For other threads, ask
    pthread_getattr_np (glibc, musl).
    """
    if threading.current_thread() is threading.main_thread():
        return _limit(resource.RLIMIT_STACK)
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


def on_stack(size: int | None, function: Callable[[], Any]) -> Any:
    """Call `function` in a new thread with a stack of `size` bytes, or, if that is None, in this thread."""
    if size is None:
        return function()
    with ThreadPoolExecutor(1) as pool:
        before = threading.stack_size(size)
        try:
            result = pool.submit(function)
        finally:
            threading.stack_size(before)  # threads started by `function` get the usual size
        return result.result()


def unmapped(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The positions of the CPU tensors whose first or last byte is not mapped."""
    ends: list[tuple[int, int]] = []  # position, address
    for place, tensor in enumerate(tensors):
        if is_plain(tensor) and tensor.device.type == "cpu" and tensor.numel() and tensor.data_ptr():
            size = span(tensor.shape, tensor.stride()) * tensor.element_size()
            ends += [(place, tensor.data_ptr()), (place, tensor.data_ptr() + size - 1)]
    if not ends:
        return []
    try:
        read, write = os.pipe()
    except OSError:
        return []  # no file descriptors are left; the program will report that itself
    found: set[int] = set()
    try:
        for place, address in ends:
            try:
                os.write(write, (ctypes.c_char * 1).from_address(address))
                os.read(read, 1)
            except OSError as error:
                if error.errno == errno.EFAULT:
                    found.add(place)
    finally:
        os.close(read)
        os.close(write)
    return sorted(found)


PAD = 4096  # bytes on each side; a multiple of every alignment
FILL = 0xA5


class Padded(TorchDispatchMode):
    """Moves every new CPU tensor to memory with guard bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.allocated: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(one.alias_info is not None for one in func._schema.returns):
            return result
        known = {_address(leaf) for leaf in _pytree.tree_leaves((args, kwargs or {}))}
        return _pytree.tree_map(lambda leaf: leaf if _address(leaf) in known else self._moved(leaf), result)

    def _moved(self, leaf: Any) -> Any:
        if not _address(leaf) or leaf.is_inference():
            return leaf
        item = leaf.element_size()
        size = 2 * PAD + span(leaf.shape, leaf.stride()) * item
        whole = torch.full((size,), FILL, dtype=torch.uint8)
        moved = torch.empty(0, dtype=leaf.dtype)
        moved.set_(whole.untyped_storage(), PAD // item, leaf.shape, leaf.stride())
        moved.copy_(leaf)
        self.allocated.append((whole, moved))
        return moved

    def overrun(self) -> list[Overrun]:
        """The tensors whose guard bytes were overwritten, and how far on each side, in bytes."""
        found = []
        for whole, tensor in self.allocated:
            # Find the overwritten byte that is farthest from the tensor.
            guards = ((side != FILL).nonzero() for side in (whole[:PAD].flip(0), whole[-PAD:]))
            before, after = (int(written[-1]) + 1 if written.numel() else 0 for written in guards)
            if before or after:
                found.append(Overrun(list(tensor.shape), str(tensor.dtype), before, after))
        return found


def call_padded(func: Any, args: Any, kwargs: Any) -> tuple[Any, list[Overrun]]:
    """The result of an operator, and its writes beyond the tensors that it allocated.

    A dispatch mode sees the operator's allocations only if its CPU kernel is called directly. Operators on
    other devices are called normally and report no overrun.
    """
    tensors = only_tensors((args, kwargs))
    on_host = bool(tensors) and all(is_plain(leaf) and leaf.device.type == "cpu" for leaf in tensors)
    if not on_host or not torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "CPU"):
        return func(*args, **kwargs), []
    with torch.no_grad(), Padded() as padded:
        result = func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)
    return result, padded.overrun()


def _address(leaf: Any) -> int:
    """The address of a plain CPU tensor's memory, or 0 for any other value."""
    plain = is_plain(leaf) and leaf.device.type == "cpu" and leaf.numel()
    return int(leaf.untyped_storage().data_ptr()) if plain else 0


def synchronize() -> None:
    """Wait for the GPU, so that a fault is reported in the call that made it."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def capturing() -> bool:
    """Whether a CUDA graph is being captured: then kernels do not run, and a copy breaks the capture."""
    try:
        return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    except RuntimeError:  # an earlier kernel failed, and now every CUDA call raises its error
        return False


def idle(patience_s: float = 2.0) -> bool:
    """Whether the current stream becomes idle within this time. Reading values would wait for it."""
    if not torch.cuda.is_initialized():
        return True
    limit = time.monotonic() + patience_s
    try:
        while not torch.cuda.current_stream().query():
            if time.monotonic() > limit:
                return False
            time.sleep(0.01)
    except RuntimeError:  # an earlier kernel failed
        return False
    return True


def current_device() -> int | None:
    """The index of the current CUDA device. None before CUDA is used and after a fatal CUDA error."""
    try:
        return torch.cuda.current_device() if torch.cuda.is_initialized() else None
    except RuntimeError:
        return None
