"""Errors of a package's constants: names, devices, storage, the mapped file.

Texts: model_base.h, model_container.h, model_container_runner.cpp and nn/modules/module.py of torch 2.8-2.15.
"""

from __future__ import annotations

from .kinds import CONSTANTS_GUIDE, Defaults, Family, Rank

_table = Defaults(stage="load", guide=CONSTANTS_GUIDE, advice="check_package")
_add = _table.add

_add(
    "constant_unknown",
    (r"Constant not found: (?P<constant>\S+)", r"Cannot find constants (?P<constant>\S+) in constants_map"),
    ("Constant not found", "Cannot find constants"),
    "constants",
    "The given weights and the package's do not have the same names: one is missing, too many, or was folded into the code.",
    "RuntimeError: Constant not found: enc.1.co.bias",
    advice="constants",
    not_proven="That the name is misspelt: parameters of up to eight elements are folded into the code and refused.",
)
_add(
    "constant_device",
    (
        r"update_constant_buffer: constant '(?P<constant>[^']+)' is on device type (?P<got>\d+) but expected device type (?P<expected>\d+)",
        r"Mixed-device constants are only supported when the secondary device is CPU",
        r"load_constants: allow_h2d_copy is not supported with user_managed",
    ),
    ("update_constant_buffer: constant", "Mixed-device constants", "allow_h2d_copy"),
    ("constants", "device_mismatch"),
    "A weight is on another device type than the package expects.",
    "Error: update_constant_buffer: constant 'lin_weight' is on device type 14 but expected device type 0",
    advice="constants",
)
_add(
    "constant_not_given",
    r"\[WARNING\] Found constant or module state buffer or empty module state parameter (?P<constant>\S+) in model, but not provided by user",
    "but not provided by user",
    ("constants",),
    "A warning: this weight keeps its old value.",
    "[WARNING] Found constant or module state buffer or empty module state parameter L__self___scale in model, but not provided by user!",
    rank=Rank.CONSEQUENCE,
    advice="constants",
)
_add(
    "constant_freed",
    r"The tensor has a non-zero number of elements, but its data is not allocated yet",
    "its data is not allocated yet",
    ("concurrency", "constants"),
    "A tensor's storage was freed while the package still uses it: a weight given as user-managed, or an input.",
    "Exception in aoti_torch: The tensor has a non-zero number of elements, but its data is not allocated yet.",
    stage="call",
    advice="constants",
    not_proven="Who freed it; in an export this text means instead that a custom kernel was traced into.",
)
_add(
    "weights_blob",
    r"(?P<detail>Weights data seems corrupt|Shared library file is smaller than embedded weights size|weights_offset must be aligned to \d+K boundary|mmap\(\) failed|Constants are not mmap'd.*|Calling constant_folding in model, but compiled with config.*)",
    (
        "Weights data seems",
        "embedded weights size",
        "weights_offset must",
        "mmap() failed",
        "are not mmap'd",
        "Calling constant_folding",
    ),
    ("invalid_package", "constants", "environment"),
    "The package's weights could not be mapped.",
    "RuntimeError: Weights data seems corrupt",
)
_add(
    "state_dict",
    (
        r"Error\(s\) in loading state_dict for (?P<module>\w+)",
        r"size mismatch for (?P<constant>\S+): copying a param with shape (?P<got>torch\.Size\(.*?\)) from checkpoint, the shape in current model is (?P<expected>torch\.Size\(.*?\))",
    ),
    ("loading state_dict", "size mismatch for"),
    ("constants", "script_error"),
    "The weights do not fit the eager module.",
    "RuntimeError: Error(s) in loading state_dict for Ranker:",
    advice="constants",
)

FAMILIES: tuple[Family, ...] = tuple(_table.rows)
