"""Errors of custom operators: not registered, not callable, their fake functions.

Texts: the proxy executor (oss_proxy_executor.cpp), torch/_ops.py, torch/_library and the dispatcher of torch
2.8-2.15.
"""

from __future__ import annotations

from .kinds import SHAPES_GUIDE, Defaults, Family, Rank

_table = Defaults(stage="load", guide=SHAPES_GUIDE, advice="check_package")
_add = _table.add

_add(
    "proxy_executor",
    r"Unable to find a proxy executor to run custom ops",
    "proxy executor",
    ("invalid_package", "custom_op"),
    "The description of the custom operators (wrapper.json) is not beside the library.",
    "Unable to find a proxy executor to run custom ops. Please check if there is a json file generated",
)
_add(
    "op_not_registered",
    (
        r"Cou[nl]d not find schema for (?P<op>\w+::?\w+(?:\.\w+)?)",
        r"Could not find (?:any similar ops to|the operator) (?P<op>[\w.]+::[\w.]+)",
        r"No such operator (?P<op>[\w.]+::[\w.]+)",
        r"'_OpNamespace' '(?P<namespace>\w+)' object has no attribute '(?P<op>\w+)'",
        r"Tried to access or call an operator with a wrong signature\.\s+operator: (?P<op>[\w.]+::\w+)",
    ),
    (
        "d not find schema",
        "Could not find any similar",
        "Could not find the operator",
        "No such operator",
        "_OpNamespace",
        "wrong signature",
    ),
    "custom_op",
    "The custom operator is not registered in this process: packages do not ship it.",
    "RuntimeError: Could not find schema for mylib::plus1. Custom operators created via torch.library.custom_op cannot be run",
    not_proven="That the op exists anywhere: import the module that defines it before loading.",
)
_add(
    "custom_op_call",
    (
        r"ProxyExecutor does not have a custom object named (?P<name>\S+)",
        r"Mismatch between tensors consumed and num of input tensor(?P<detail>.*)",
        r"NYI: Unsupported return type for schema: (?P<schema>.+)",
        r"(?<!\w)(?P<op>(?!aten::|prims::)\w+::\w+(?:\.\w+)?)\(\) (?:Expected|expected|is missing value)(?P<detail>.*)",
        r"There was no fake impl registered for <CustomOpDef\((?P<op>[\w:.]+)\)>",
        r"(?<![\w.])(?P<op>[\w.]+::[\w.]+): attempted to run this operator with Meta tensors",
        r"(?<!\S)(?P<op>\S+) \(with implementation in .+?\): The output of this custom operator .*(?:alias|must not)",
    ),
    (
        "ProxyExecutor",
        "Mismatch between tensors consumed",
        "NYI: Unsupported",
        "() Expected",
        "() expected",
        "() is missing",
        "no fake impl registered",
        "with Meta tensors",
        "this custom operator",
    ),
    "custom_op",
    "A custom operator cannot be called as the package or the compiler wants to.",
    "NYI: Unsupported return type for schema: mylib::f(Tensor x) -> (Tensor, SymInt)",
    stage="any",
)
_add(
    "opcheck",
    r"(?P<detail>opcheck\(op, \.\.\.\)|This error most often comes from an? incorrect fake \(aka meta\) kernel for a custom op)",
    ("opcheck(op", "incorrect fake (aka meta)"),
    "custom_op",
    "A hint about custom operators' fake functions. For an input it misleads.",
    "This error most often comes from a incorrect fake (aka meta) kernel for a custom op.",
    rank=Rank.NOISE,
    advice="read_cause",
)

FAMILIES: tuple[Family, ...] = tuple(_table.rows)
