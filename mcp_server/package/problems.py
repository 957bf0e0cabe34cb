"""Errors for files that are not packages; each error names the actual kind of file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_server.errors import ProblemError


class PackageError(ProblemError):
    """The file is not a readable AOTInductor package. `slug` is a stable identifier of the reason."""

    def __init__(self, slug: str, what: str, **more: Any) -> None:
        super().__init__(what, **more)
        self.slug = slug


@dataclass(frozen=True)
class Defect:
    """A missing or inconsistent part of a readable package.

    If it is `fatal`, loading or running fails (seen in torch 2.8-2.15). Otherwise it is a note.
    """

    slug: str
    what: str
    fatal: bool
    fix: str = ""


_ZIP_MAGIC = b"PK"
_PICKLE_PROTOCOLS = tuple(b"\x80" + bytes([n]) for n in range(2, 6))
_LEGACY_TORCH_MAGIC = bytes.fromhex("6cfc9c46f9206aa850")
_ELF_MAGIC = b"\x7fELF"
_STARTS = (
    (rb".{7}\0\{\"", "a safetensors file"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file: run `git lfs pull`"),
    (b"\x1f\x8b", "a gzip file"),
    (b"GGUF", "a GGUF model file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"<", "a web page or XML, perhaps the error page of a download"),
    (b"\x08", "a protocol buffer, perhaps an ONNX model"),
)
"""Patterns of first bytes, and names of file formats that are commonly mistaken for a package."""


@dataclass(frozen=True)
class _Archive:
    """Another kind of archive. Each pattern must match the name of at least one member.

    With `below_top`, names are compared without the top folder that torch adds.
    """

    slug: str
    patterns: tuple[str, ...]
    what: str
    next_call: str
    below_top: bool = False


_COMPILE = "aoti-debug compile-with-flags, or torch._inductor.aoti_compile_and_package(exported_program)"
_GIVE = f"take the .pt2 of {_COMPILE}"
_ARCHIVES = (
    _Archive(
        "other_zip",
        (r".+\.pt2$",),
        "is an archive around a .pt2, which the loader does not look into (was it zipped once more?)",
        "unpack it, and load the .pt2 that is in it",
    ),
    _Archive(
        "torch_export_archive",
        (r"models/|serialized_exported_program\.json$",),
        "holds an exported program (torch.export.save), which is not compiled yet",
        f"give it as workload kind 'exported', or compile it: {_COMPILE}",
        below_top=True,
    ),
    _Archive(
        "torchscript_file",
        (r"constants\.pkl$", r"code/"),
        "is a TorchScript archive (torch.jit.save)",
        f"export the model with torch.export, then {_COMPILE}",
        below_top=True,
    ),
    _Archive(
        "torch_save_file",
        (r"data\.pkl$",),
        "is a torch.save file (tensors or a state dict); it was not unpickled",
        "give it as inputs, and the compiled .pt2 as the package",
        below_top=True,
    ),
    _Archive("other_zip", (r"[^/]+\.dist-info/",), "is a Python wheel, no AOTInductor package", _GIVE),
    _Archive("other_zip", (r"[^/]+\.npy$",), "is a NumPy archive (.npz), no AOTInductor package", _GIVE),
    _Archive("other_zip", (r"MAR-INF/",), "is a TorchServe archive (.mar), no AOTInductor package", _GIVE),
    _Archive("other_zip", (r"META-INF/MANIFEST\.MF$",), "is a Java archive, no AOTInductor package", _GIVE),
    _Archive(
        "outdated_layout",
        (r".*\.so$",),
        "holds a shared library outside data/aotinductor/: a layout from before torch 2.6",
        f"compile it again with the torch that loads it: {_COMPILE}",
    ),
)


def check_is_zip(path: Path) -> None:
    """Raise a `PackageError` that names the kind of file unless `path` is a zip archive."""
    try:
        if path.exists() and not path.is_file():
            raise PackageError("unreadable_file", f"{path} is no regular file (a pipe or a device)")
        with path.open("rb") as file:
            head = file.read(64)
    except FileNotFoundError as error:
        raise PackageError("missing_file", f"{path} does not exist") from error
    except OSError as error:
        raise PackageError("unreadable_file", f"{path} cannot be read: {error.strerror}") from error
    if not head:
        raise PackageError("empty_file", f"{path} is empty", next_call="write or copy the package again")
    if head.startswith(_ZIP_MAGIC):
        return
    if head.startswith(_PICKLE_PROTOCOLS):
        legacy = _LEGACY_TORCH_MAGIC in head
        raise PackageError(
            "torch_save_file" if legacy else "pickle_file",
            f"{path} is {'an old torch.save file' if legacy else 'a pickle'}, not an AOTInductor package; "
            "it was not unpickled",
            next_call=f"export and compile the model: {_COMPILE}",
        )
    if head.startswith(_ELF_MAGIC):
        what = f"{path} is a shared library with no wrapper.cpp next to it"
        raise PackageError("shared_library_without_wrapper", what, next_call=_GIVE)
    found = next((what for start, what in _STARTS if re.match(start, head, re.S)), None)
    kind = f"it is {found}" if found else "it does not start like a zip archive"
    raise PackageError("not_a_zip", f"{path} is not a .pt2: {kind}", value=head[:8])


def no_model(path: Path, names: Iterable[str]) -> PackageError:
    """Create the error for an archive or directory without an AOTInductor model."""
    names = list(names)
    # torch adds a top folder named after the file's stem.
    relative = {name.partition("/")[2] or name for name in names}
    for known in _ARCHIVES:
        compared = relative if known.below_top else names
        if all(any(re.match(pattern, name) for name in compared) for pattern in known.patterns):
            listed = [name for name in sorted(names) if name.endswith(".pt2")][:3]
            what = f"{path} {known.what}"
            return PackageError(known.slug, what, value=listed or None, next_call=known.next_call)
    what = f"{path} holds no AOTInductor model (no data/aotinductor/<model>/ in it)"
    return PackageError("no_model", what, value=sorted(relative)[:5], next_call=_GIVE)
