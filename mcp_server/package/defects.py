"""What is missing or odd in a package that can be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from mcp_server.package.elf import foreign_kind
from mcp_server.package.members import ZipContainer
from mcp_server.package.problems import Defect
from mcp_server.package.twins import twins

if TYPE_CHECKING:
    from mcp_server.package.archive import Package

_LOAD_KERNEL = re.compile(r'loadKernel\(\s*"([^"]+)"')
_CHECKED_BYTES = 64 << 20
_PROXY_CALL = "aoti_torch_proxy_executor_call_function("
_DEVICES = ("cpu", "cuda")
_DEVICE_TYPE = re.compile(r"device_type_(cpu|cuda)\b")
_DEVICE_FIX = "leave AOTI_DEVICE_KEY of the metadata at {device}, as the compile wrote it, or compile again"
_RECOMPILE = "compile the package again"
_FOR_THIS = "compile the package on a machine of the kind that loads it"


def find_defects(package: Package) -> Iterator[Defect]:
    """All defects, those that stop a load first. Reads the wrapper and the library's headers."""
    yield from _checksums(package)
    yield from _library(package)
    yield from _metadata(package)
    yield from _device(package)
    yield from _kernel_binaries(package)
    yield from _proxy(package)
    yield from _weights(package)
    yield from _wrapper(package)
    yield from _twins(package)


def kernel_binaries_used(wrapper: str) -> tuple[str, ...]:
    """Base names of the kernel binaries that a wrapper loads, in order, each once."""
    found = (PurePosixPath(m[1].replace("\\", "/")).name for m in _LOAD_KERNEL.finditer(wrapper))
    return tuple(dict.fromkeys(found))


def _checksums(package: Package) -> Iterator[Defect]:
    """Members whose bytes are not those that were written; gigabytes are left to the loader."""
    container = package.container
    if not isinstance(container, ZipContainer):
        return
    for member in package.files.members:
        if member.size <= _CHECKED_BYTES and not container.checksum_holds(member.name):
            what = f"{PurePosixPath(member.name).name} is damaged: its checksum is not the recorded one"
            yield Defect("damaged_member", what, fatal=True, fix="copy or compile the package again")


def _library(package: Package) -> Iterator[Defect]:
    files = package.files
    if files.built_at_load:
        what = "sources only (package_cpp_only): the loader compiles them with g++ at every load"
        yield Defect("built_at_load", what, fatal=False, fix="compile without aot_inductor.package_cpp_only")
    elif files.library is None:
        yield Defect("missing_library", "no wrapper.so in the package", fatal=True, fix=_RECOMPILE)
    elif package.library is None:
        yield _unreadable(package, files.library.name)
    if len(files.libraries) > 1:
        what = f"{len(files.libraries)} wrapper libraries for one model; torch >= 2.13 refuses that"
        yield Defect("several_libraries", what, fatal=True, fix=_RECOMPILE)


def _unreadable(package: Package, name: str) -> Defect:
    """A library of another system, or a damaged one."""
    with package.container.open(name) as stream:
        kind = foreign_kind(stream.read(8))
    if kind:
        return Defect("foreign_library", f"{name} is {kind}", fatal=True, fix=_FOR_THIS)
    return Defect("damaged_library", f"{name} is no readable ELF file", fatal=True, fix=_RECOMPILE)


def _metadata(package: Package) -> Iterator[Defect]:
    """The loader looks for `<stem>_metadata.json` beside each source (torch 2.7-2.15)."""
    files = package.files
    if package.path.suffix == ".so":
        return  # a runner opens a bare library without metadata
    for source in (files.wrapper_source, files.kernel_source):
        name = source.name.removesuffix(".cpp") + "_metadata.json" if source is not None else None
        if name is not None and files.named(name) is None:
            what = f"no {PurePosixPath(name).name}: the loader cannot tell the device"
            yield Defect("missing_metadata", what, fatal=True, fix=_RECOMPILE)
    if files.metadata is not None and package.metadata.device is None:
        yield Defect("damaged_metadata", "the metadata names no AOTI_DEVICE_KEY", fatal=True, fix=_RECOMPILE)


def _device(package: Package) -> Iterator[Defect]:
    """Metadata that names another device type than the code in the package is for.

    A library for CUDA links libtorch_cuda, and its wrapper makes tensors of that type (torch 2.8-2.15).
    """
    library, told = package.library, package.metadata.device
    if library is None or told not in _DEVICES or not any(n.startswith("libtorch") for n in library.needed):
        return
    cuda = any(name.startswith("libtorch_cuda") for name in library.needed)
    device = "cuda" if cuda else "cpu"
    made_for = set(_DEVICE_TYPE.findall(package.wrapper_text))
    if device != told and told not in made_for:
        what = f"the metadata says that the package is for {told}, and its library is for {device}"
        yield Defect("contradicted_device", what, fatal=True, fix=_DEVICE_FIX.format(device=device))


def _kernel_binaries(package: Package) -> Iterator[Defect]:
    present = {PurePosixPath(m.name).name for m in package.files.kernel_binaries}
    missing = [name for name in kernel_binaries_used(package.wrapper_text) if name not in present]
    if missing:
        what = f"{len(missing)} kernel binaries that the wrapper loads are missing: {', '.join(missing[:3])}"
        yield Defect("missing_kernel_binary", what, fatal=True, fix=_RECOMPILE)


def _proxy(package: Package) -> Iterator[Defect]:
    if package.files.proxy_nodes is None and _PROXY_CALL in _run_impl(package.wrapper_text):
        what = "the wrapper calls the proxy executor, and its node list (wrapper.json) is missing"
        yield Defect("missing_proxy_nodes", what, fatal=True, fix=_RECOMPILE)


def _run_impl(wrapper: str) -> str:
    return wrapper[max(wrapper.find("::run_impl("), 0) :]


def _weights(package: Package) -> Iterator[Defect]:
    listed, present = package.listed_weight_names, package.listed_weights
    if listed is not None and present is not None and len(present) < len(listed):
        what = f"{len(listed) - len(present)} of {len(listed)} weight files are missing"
        yield Defect("missing_weights", what, fatal=True, fix=_RECOMPILE)
    elif package.weights.place == "absent":
        what = "the package holds no weights: a run before load_constants() segfaults"
        fix = "call load_constants(state, check_full_update=True) first, or compile with the constants"
        yield Defect("weights_not_included", what, fatal=False, fix=fix)


def _wrapper(package: Package) -> Iterator[Defect]:
    if package.files.wrapper_source is None:
        yield Defect(
            "missing_wrapper_source", "no wrapper.cpp: inputs and launches cannot be read", fatal=False
        )
    else:
        for problem in package.signature.problems:
            yield Defect("unread_signature", problem, fatal=False)


def _twins(package: Package) -> Iterator[Defect]:
    """A note: a program may package one model under several names, and then means to."""
    others = twins(package)
    if others:
        what = f"{package.model_name} and {', '.join(others)} are one and the same model, byte for byte"
        fix = "if they are to differ, package each before the next is compiled: compiles may share a path"
        yield Defect("same_model", what, fatal=False, fix=fix)
