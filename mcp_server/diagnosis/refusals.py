"""The closed table of direct refusals: what the system itself says, and names the component of.

The loader, the linker, the compiler or the operating system refuses, and its words say what is wrong. No
intervention can add to that. Nothing belongs here that a later failure merely suggests.
"""

from __future__ import annotations

from collections.abc import Mapping

NOT_A_PACKAGE = "the loader refuses the file: it is no package"
NO_SUCH_MODEL = "the loader refuses the name: the package has no such model"
INCOMPLETE = "the loader refuses the package: a file that it needs is not in it"
UNDEFINED_SYMBOL = "the linker refuses the library: a symbol or a library is missing"
NO_COMPILER = "the compiler cannot be started"
WRONG_ARCHITECTURE = "the system refuses the code: it is for another architecture"
NO_DEVICE = "the driver refuses the device"

# By the slug of a package that cannot be read, or of a fatal defect (package/problems.py).
BY_SLUG: Mapping[str, str] = {
    "empty_file": NOT_A_PACKAGE,
    "not_a_zip": NOT_A_PACKAGE,
    "truncated_zip": NOT_A_PACKAGE,
    "damaged_member": NOT_A_PACKAGE,
    "missing_file": NOT_A_PACKAGE,
    "torch_save_file": NOT_A_PACKAGE,
    "pickle_file": NOT_A_PACKAGE,
    "torch_export_archive": NOT_A_PACKAGE,
    "torchscript_file": NOT_A_PACKAGE,
    "other_zip": NOT_A_PACKAGE,
    "not_a_package_directory": NOT_A_PACKAGE,
    "outdated_layout": NOT_A_PACKAGE,
    "no_model": NO_SUCH_MODEL,
    "unknown_model": NO_SUCH_MODEL,
    "missing_library": INCOMPLETE,
    "damaged_library": INCOMPLETE,
    "missing_metadata": INCOMPLETE,
    "missing_kernel_binary": INCOMPLETE,
    "foreign_library": WRONG_ARCHITECTURE,
}

# By the family of the error text in a run of ours.
BY_FAMILY: Mapping[str, str] = {
    "model_name": NO_SUCH_MODEL,
    "other_archive": NOT_A_PACKAGE,
    "undefined_symbol": UNDEFINED_SYMBOL,
    "link_library": UNDEFINED_SYMBOL,
    "linker_shim": UNDEFINED_SYMBOL,
    "no_compiler": NO_COMPILER,
    "no_kernel_image": WRONG_ARCHITECTURE,
    "torch_without_arch": WRONG_ARCHITECTURE,
    "no_driver": NO_DEVICE,
    "bad_device_index": NO_DEVICE,
}

REFUSALS = frozenset({*BY_SLUG.values(), *BY_FAMILY.values()})
