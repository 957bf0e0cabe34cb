"""The Python side of the launch probes of an instrumented package.

The structures mirror `probes/native/probes.h`. Each instrumented library has its own state, which one of its
symbols returns, so that several packages stay separate.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import traceback
from typing import Any, Callable, Collection, Iterator

import torch

from .events import OfLaunch
from .report import Refused, Report

VERSION = 2
BEFORE, AFTER = 0, 1
TENSOR, INTEGER, REAL = 1, 2, 3
ROLES = {1: "read", 2: "written", 3: "read_write"}


class Argument(ctypes.Structure):
    """`aoti_debug::Argument` of probes.h."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("parameter", ctypes.c_char_p),
        ("handle", ctypes.c_void_p),
        ("result", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("role", ctypes.c_int32),
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_double),
        ("known", ctypes.c_int64),
    ]


class Event(ctypes.Structure):
    """`aoti_debug::Event` of probes.h, valid only during the callback."""

    _fields_ = [
        ("version", ctypes.c_uint32),
        ("phase", ctypes.c_int32),
        ("launch", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("kernel", ctypes.c_char_p),
        ("runner", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("run", ctypes.c_uint64),
        ("sequence", ctypes.c_uint64),
        ("arguments", ctypes.POINTER(Argument)),
    ]


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Event))


class State(ctypes.Structure):
    """`State` of runtime.cpp."""

    _fields_ = [("version", ctypes.c_uint32), ("subscriber", ctypes.c_void_p)]


class Library:
    """The probes of a loaded library. Keep this object alive as long as it has a subscriber."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._callback: Any = None
        self.failure: str | None = None

    def subscribe(self, subscriber: Callable[[Event], bool]) -> None:
        """Call `subscriber` before and after each launch.

        A true result stops the call with a RuntimeError. An exception does not, since the workload is not to
        blame. It is kept in `failure`, because ctypes would drop it.
        """

        def guarded(event: Any) -> int:
            try:
                return int(bool(subscriber(event.contents)))
            except BaseException:
                self.failure = self.failure or traceback.format_exc()
                return 0

        self._callback = CALLBACK(guarded)
        self._state.subscriber = ctypes.cast(self._callback, ctypes.c_void_p).value

    def unsubscribe(self, report: Report) -> None:
        """Stop calling the subscriber. Report `observer_failed` if it raised."""
        self._state.subscriber = None
        if self.failure:
            report.phase("observer_failed", self.failure[-4000:])


def mapped_files() -> set[str]:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return {line.split(None, 5)[5].strip() for line in maps if line.count("/")}


def find_libraries(before: Collection[str]) -> list[Library]:
    """The instrumented libraries that were loaded since `before` (a result of `mapped_files`)."""
    found = []
    for path in sorted(mapped_files().difference(before)):
        if not path.endswith(".so") or not os.path.exists(path):
            continue
        try:
            entry = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW).aoti_debug_probes
        except (OSError, AttributeError):
            continue
        entry.restype = ctypes.POINTER(State)
        state = entry().contents
        if state.version == VERSION:
            found.append(Library(state))
    return found


@contextlib.contextmanager
def subscribed(
    take: Callable[[Event], bool], report: Report, before: Collection[str] = ()
) -> Iterator[list[Library]]:
    """During the body, call `take` for the launches of each library loaded since `before`.

    Yield the libraries. Raise `Refused` if none of them is instrumented.
    """
    libraries = find_libraries(before)
    if not libraries:
        raise Refused("the package is not instrumented", allowed="a package with launch probes")
    for library in libraries:
        library.subscribe(take)
    try:
        yield libraries
    finally:
        for library in libraries:
            library.unsubscribe(report)


def arguments(event: Event) -> Iterator[Argument]:
    for index in range(event.count):
        yield event.arguments[index]


class _Shim:
    """Makes tensors from handles that the package owns and keeps."""

    def __init__(self) -> None:
        name = {"darwin": "libtorch_cpu.dylib"}.get(sys.platform, "libtorch_cpu.so")
        library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", name))
        self._copy = library.aoti_torch_new_tensor_handle
        self._copy.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]
        self._capsule = ctypes.pythonapi.PyCapsule_New
        self._capsule.restype = ctypes.py_object
        self._capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self._delete = library.aoti_torch_delete_tensor_object
        self._delete.argtypes = [ctypes.c_void_p]
        # Whether `alloc_tensor_by_stealing_from_void_ptr` does not free its handle (seen in 2.11 and 2.13).
        # Such a handle keeps the tensor's memory in use until it is deleted.
        self._leaves: bool | None = None

    def tensor(self, handle: int) -> torch.Tensor | None:
        """The tensor. None if it is undefined or its handle cannot be copied."""
        copy, tensor = self._stolen(handle)
        if copy is None or tensor is None:
            return None
        if self._leaves is None:
            before = tensor._use_count()
            second = self._stolen(handle)[0]
            self._leaves = second is not None and bool(tensor._use_count() > before)
            if self._leaves:
                self._delete(second)
        if self._leaves:
            self._delete(copy)
        return tensor

    def _stolen(self, handle: int) -> tuple[ctypes.c_void_p | None, torch.Tensor | None]:
        """A copy of the handle, and the tensor made from it. Both are None if it cannot be copied."""
        copy = ctypes.c_void_p()
        if self._copy(handle, ctypes.byref(copy)):
            return None, None
        return copy, torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(self._capsule(copy, None, None))


_shim = functools.lru_cache(maxsize=None)(_Shim)


def tensor_of(argument: Argument) -> torch.Tensor | None:
    """The tensor of an argument, in the memory of the model, or None."""
    if argument.kind != TENSOR or not argument.handle:
        return None
    return _shim().tensor(argument.handle)


def strided(argument: Argument) -> torch.Tensor | None:
    """Wait for the GPU and return the tensor of an argument. None if it has none, or one without strides."""
    tensor = tensor_of(argument)
    if tensor is None or tensor.layout is not torch.strided:
        return None
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
    return tensor


def written(event: Event) -> Iterator[tuple[OfLaunch, torch.Tensor]]:
    """Yield the tensors that a launch wrote. Before the launch, yield nothing."""
    for argument in arguments(event) if event.phase == AFTER else ():
        tensor = strided(argument) if ROLES.get(argument.role) != "read" else None
        if tensor is not None:
            kernel, name = event.kernel.decode(), argument.name.decode()
            yield OfLaunch(int(event.launch), int(event.sequence), kernel, name), tensor
