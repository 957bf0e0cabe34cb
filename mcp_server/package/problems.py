"""What can be wrong with a package file: errors that stop reading, and defects found while reading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mcp_server.errors import ProblemError

Slug = Literal[
    "missing_file",
    "unreadable_file",
    "not_a_package_directory",
    "empty_file",
    "not_a_zip",
    "truncated_zip",
    "damaged_member",
    "unsafe_archive",
    "too_large",
    "torch_export_archive",
    "torchscript_file",
    "torch_save_file",
    "pickle_file",
    "other_zip",
    "shared_library_without_wrapper",
    "outdated_layout",
    "no_model",
    "unknown_model",
]


class PackageError(ProblemError):
    """The file cannot be read as an AOTInductor package. `slug` names the reason and is stable."""

    def __init__(
        self, slug: Slug, what: str, *, value: object = None, allowed: str = "", next_call: str = ""
    ) -> None:
        super().__init__(what, value=value, allowed=allowed, next_call=next_call)
        self.slug: Slug = slug


@dataclass(frozen=True)
class Defect:
    """Something missing or odd in a package that can still be read.

    `fatal` means that loading or running it fails, as seen in torch 2.8-2.15; else it is a note.
    """

    slug: str
    what: str
    fatal: bool
    fix: str = ""
