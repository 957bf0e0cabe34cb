"""Hooks for loads, constant updates and calls."""

from __future__ import annotations

import itertools
import os
import shlex
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

import torch

from ..encode import (
    CALL_FORMAT,
    TooLarge,
    encode_all,
    encode_layout,
    encode_output,
    frames,
    pack,
    pack_leaves,
)
from ..process import capturing, current_device, headroom, process_limits, stack_bytes, synchronize
from ..report import Encoded, encode, facts
from ..tensors import digests
from .journal import CaptureStore, Ending, Journal, unkept
from .memory import MemoryLog, Outputs, Watched

if TYPE_CHECKING:  # this is imported into every program
    from ..protocol import CallRecord, CapturedFailure, Configs

# Parameters of the constructor of a loader (torch 2.8-2.15). The binding has no names for them.
LOADER_OPTIONS = (
    "package",
    "model_name",
    "run_single_threaded",
    "num_runners",
    "device_index",
    "use_stream_affinity",
)
GONE = "the memory of an input is not mapped"
WORDS = 64  # arguments of a child process that are journaled
SHAPES = 1000  # distinct shapes of inputs that are kept
RUNNER_OPTIONS = ("package", "num_runners", "device", "cubin_dir")


def failure(error: BaseException) -> CapturedFailure:
    no_files, file_bytes = process_limits()
    return {**facts(error), "no_files": no_files, "file_bytes": file_bytes}


@dataclass(frozen=True, eq=False)
class Entered:
    """A call that has begun."""

    number: int
    load: int
    path: str | None
    watched: Watched
    start: float


class Calls:
    """Numbers loads, updates and calls of this process, and remembers the load number of each loader."""

    def __init__(self, journal: Journal, store: CaptureStore) -> None:
        self.journal = journal
        self.store = store
        self.numbers = itertools.count()
        self.loads: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.thread = threading.local()
        self.memory = MemoryLog(journal)
        self.outputs = Outputs()
        self.held: dict[str, tuple[Any, str]] = {}  # weights of the last package: dtype, digest
        self.shapes: dict[tuple[Any, ...], None] | None = None  # input shapes, kept after an export
        self.returned = 0  # number of calls that returned

    def starting(self, _process: Any, argv: Any, *_args: Any, **options: Any) -> None:
        """Keep a package among the arguments of a child process, which may be a C++ host without a hook."""
        one = isinstance(argv, (str, bytes, os.PathLike))
        words = shlex.split(os.fsdecode(argv)) if one else [os.fsdecode(word) for word in argv]
        folder = os.fsdecode(options.get("cwd") or os.getcwd())
        # A package may be the value of an option: --model=ranker.pt2
        paths = {os.path.join(folder, word.rpartition("=")[2]) for word in words if word.endswith(".pt2")}
        found = [path for path in paths if os.path.isfile(path)]
        if len(found) == 1:
            kept = self.store.package(found[0])
            self.journal.event("host", argv=words[:WORDS], package=found[0], frames=frames(), **kept)

    # Loads

    def opening(self, path: Any, *args: Any, **kwargs: Any) -> Ending:
        """Hook `load_package`: journal a package that torch rejects before it creates a loader.

        Ignore a stream, which torch writes to a file for the loader.
        """
        self.thread.loads = 0
        if isinstance(path, (str, os.PathLike)):
            _, error = yield
            if error is not None and not self.thread.loads:
                options = {**dict(zip(LOADER_OPTIONS[1:], args)), **kwargs}
                number = self._load("AOTIModelPackageLoader", os.fspath(path), options)
                self.journal.event("load_failed", load=number, **failure(error))

    def loading(self, loader: Any, *args: Any, **kwargs: Any) -> Ending:
        """Hook the constructor of a loader."""
        self.thread.loads = getattr(self.thread, "loads", 0) + 1
        kind = type(loader).__name__
        options = {**dict(zip(LOADER_OPTIONS if "PackageLoader" in kind else RUNNER_OPTIONS, args)), **kwargs}
        number, start = self._load(kind, options.pop("package", ""), options), time.monotonic()
        _, error = yield
        if error is not None:
            self.journal.event("load_failed", load=number, **failure(error))
            return
        self.loads[loader] = number
        on_cuda = kind.endswith("Cuda")
        if hasattr(loader, "get_metadata"):
            on_cuda = loader.get_metadata().get("AOTI_DEVICE_KEY") == "cuda"
        place = current_device() if on_cuda else None
        self.journal.event("loaded", load=number, seconds=time.monotonic() - start, current_device=place)

    def _load(self, loader: str, path: Any, options: Configs) -> int:
        """Journal the start of a load and return its number."""
        package = os.path.abspath(str(path))
        number = next(self.numbers)
        try:
            kept = self.store.package(package)
        except OSError as error:
            size = os.path.getsize(package) if os.path.exists(package) else 0
            kept = unkept(size, str(error))
        self.journal.event(
            "loading",
            load=number,
            loader=loader,
            package=package,
            options=options,
            libraries=sorted(torch.ops.loaded_libraries),
            frames=frames(),
            **kept,
        )
        return number

    # Constants

    def updating(self, how: str, loader: Any, constants: Any, *args: Any, **kwargs: Any) -> Ending:
        """Hook the method `how` of a loader. `constants` is its first argument, a map by name."""
        number, load = next(self.numbers), self.loads.get(loader, -1)
        names = [str(name) for name in constants]
        values = list(constants.values())
        path, notice = self.saved(
            "constants", number, lambda: dict(zip(names, pack_leaves(values, self.store.cap)))
        )
        known = {} if device_error() else digests(constants)
        self.held.update({name: (constants[name].dtype, digest) for name, digest in known.items()})
        broken = device_error()  # wait again: reading the values may itself fail
        # Layout and counts of NaN and infinities of each new constant.
        texts = [encode_output(value, broken, True).text for value in values]
        members = [encode(name) + ": " + text for name, text in zip(names, texts)]
        if hasattr(loader, "get_constant_fqns"):
            compiled = sorted(loader.get_constant_fqns())
        else:
            compiled = sorted(loader.get_constant_names_to_original_fqns().values())
        # Constants that are only a part of their storage.
        tensors = [pair for pair in zip(names, values) if isinstance(pair[1], torch.Tensor)]
        strided = [(name, value) for name, value in tensors if value.layout == torch.strided]
        views = [name for name, value in strided if value.untyped_storage().nbytes() > value.nbytes]
        self.journal.event(
            "updating",
            update=number,
            load=load,
            how=how,
            arguments=list(args) + list(kwargs.values()),
            file=path,
            notice=notice,
            compiled=compiled,
            constants=Encoded("{" + ", ".join(members) + "}"),
            views=sorted(views),
            frames=frames(),
        )
        # load_constants(map, use_inactive, check_full_update, user_managed), torch 2.8-2.15
        managed = bool(kwargs.get("user_managed", args[2] if len(args) > 2 else False))
        managed = managed and how != "update_constant_buffer_from_cpu"
        self.memory.managed.update(load, constants, managed, known)
        _, error = yield
        if error is None:
            self.journal.event("updated", update=number)
        else:
            self.journal.event("update_failed", update=number, **failure(error))

    # Calls

    def entering(self, _model: Any, *args: Any, **kwargs: Any) -> Ending:
        """Keep the argument tree for the nested call, because the loader sees only tensors."""
        self.thread.tree = (args, kwargs)
        yield
        self.thread.tree = None

    def calling(self, loader: Any, inputs: Any, *_args: Any, **_kwargs: Any) -> Ending:
        entered = self._entered(loader, inputs)  # inline, its locals would keep inputs alive
        result, error = yield
        self._called(entered, result, error)

    def _entered(self, loader: Any, inputs: Any) -> Entered:
        number, began = next(self.numbers), time.thread_time()
        load = self.loads.get(loader, -1)
        flat = [leaf for leaf in inputs if isinstance(leaf, torch.Tensor)]
        left, limit = headroom()
        tree, self.thread.tree = getattr(self.thread, "tree", None), None
        watched = self.memory.entering(number, load, flat)
        if self.shapes is not None and len(self.shapes) < SHAPES:
            self.shapes[tuple(tuple(leaf.shape) for leaf in flat if leaf.layout == torch.strided)] = None

        def packed() -> CallRecord:
            if tree is not None:
                return pack(tree[0], tree[1], self.store.cap)
            return {"format": CALL_FORMAT, "leaves": pack_leaves(list(inputs), self.store.cap), "spec": ""}

        path, notice = (None, GONE) if watched.gone else self.saved("inputs", number, packed)
        self.journal.event(
            "calling",
            call=number,
            load=load,
            thread=threading.get_ident(),
            thread_name=threading.current_thread().name,
            threads=torch.get_num_threads(),
            leaves=encode_all([encode_layout(leaf) for leaf in flat]),
            streams=self.memory.streams.several,
            headroom=left,
            headroom_of=limit,
            stack_bytes=stack_bytes(),
            current_device=current_device(),
            shared=watched.shared,
            file=path,
            notice=notice,
            began_cpu=began,
            frames=frames(),
        )
        return Entered(number, load, path, watched, time.monotonic())

    def saved(self, kind: str, number: int, make: Callable[[], Any]) -> tuple[str | None, str]:
        """Save a record. Return (path, "") or (None, why not)."""
        if capturing():
            return None, "a CUDA graph was being captured"
        try:
            return self.store.save(kind, number, make()), ""
        except (TooLarge, OSError, RuntimeError) as error:
            return None, "{}: {}".format(type(error).__name__, error)[:500]

    def _called(self, state: Entered, result: Any, error: BaseException | None) -> None:
        seconds = time.monotonic() - state.start
        if error is not None:
            told = {**self.outputs.kept(), **failure(error)}
            self.journal.event("call_failed", call=state.number, seconds=seconds, **told)
            if not (capturing() or device_error()):
                self.memory.failed(state.load, state.number)
            return
        self.outputs.add(state.number, result)
        # Wait for the GPU, so that a fault in the kernels of this call is journaled here as `unreadable`, not
        # at a later call. Later CUDA calls of the program still raise the error.
        recorded = capturing()
        broken = "" if recorded else device_error()
        outputs = [encode_output(leaf, broken, not recorded) for leaf in result]
        self.memory.returned(
            state.number, state.watched, result, readable=not any(output.unreadable for output in outputs)
        )
        self.journal.event(
            "called",
            call=state.number,
            seconds=seconds,
            outputs=encode_all([output.text for output in outputs]),
            ended_cpu=time.thread_time(),
            **self._held(),
        )
        self.store.evict(state.path, state.load, any(output.odd for output in outputs))

    def _held(self) -> dict[str, int]:
        """After calls 1, 2, 4, 8 and so on, count the loaders and outputs that the program holds."""
        self.returned += 1
        if self.returned & (self.returned - 1):
            return {}
        return {"after": self.returned, "loaders": len(self.loads), **self.outputs.kept()}


def device_error() -> str:
    """Wait for the GPU. Return the text of its error, or "" if there is none."""
    try:
        synchronize()
    except RuntimeError as error:
        return str(error)
    return ""
