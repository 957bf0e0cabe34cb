"""The text of a reproduction: one plain script with its model, and a file for the values it cannot make."""

from __future__ import annotations

import os
import re
import shutil
import types
from dataclasses import dataclass
from typing import Any, Optional

import torch

from ..encode import BY_OPERATOR
from ..imports import OPERATORS, registrations
from . import show
from .program import TORCHS, Cut, compact, users_operators

SCRIPT = "repro.py"
INPUTS = "inputs.pt"
LINE = re.compile("# ---- copied .* ----\n")  # before each part of show.py

HEADER = '''"""{title}

Run it with Python and torch {torch}; it needs nothing else{needs}.
Exit status: 0 nothing is wrong here, 1 an exception (the last `phase:` line says where), 3 an output is not
finite, 4 an output departs from eager, 5 it cannot be exported; killed by a signal: the process crashed.
"""

import os
import sys
import tempfile
import traceback
from typing import Any
{environment}
import torch
{imports}
HERE = os.path.dirname(os.path.abspath(__file__))
'''


@dataclass(frozen=True)
class Setting:
    """What a reproduction takes over from the failing workload."""

    title: str
    configs: dict[str, Any]
    environment: dict[str, str]
    extra_imports: tuple[str, ...]


def write(found: Cut, seeded: frozenset[str], setting: Setting, directory: str) -> None:
    """`repro.py`, `inputs.pt` for the values that are not seeded, and files that register operators."""
    saved = {name: compact(t) for name, t in found.tensors.items() if name not in seeded}
    needed = setting.extra_imports if users_operators(found) and not found.stand_ins else ()
    files, loading = _operators(needed, directory)
    if saved:
        torch.save(saved, os.path.join(directory, INPUTS))
        files.insert(0, INPUTS)
    code, imports = _model(found)
    variables = sorted(setting.environment.items())
    header = HEADER.format(
        title=setting.title,
        torch=torch.__version__,
        needs=" but " + " and ".join(files) + " in the same folder" if files else "",
        environment="".join("os.environ.setdefault({!r}, {!r})\n".format(*pair) for pair in variables),
        imports="".join(line + "\n" for line in sorted(imports)),
    )
    with open(str(show.__file__), encoding="utf-8") as file:
        _, common, stand_in = (part.strip() + "\n" for part in LINE.split(file.read()))
    operators = [stand_in, "\n".join(found.stand_ins)] if found.stand_ins else []
    parts = [header + loading, common, *operators, code, _main(found, seeded, setting, bool(saved))]
    with open(os.path.join(directory, SCRIPT), "w", encoding="utf-8") as file:
        file.write("\n\n".join(parts))


def _operators(names: tuple[str, ...], directory: str) -> tuple[list[str], str]:
    """Copies files that register the user's operators; their names, and the lines that load them."""
    files, lines = [], []
    for name in names:
        base = os.path.basename(name)
        if name.endswith(OPERATORS):
            # The operators of a script, under another name: a reader may have the script's own file open.
            base = os.path.basename(name[: -len(OPERATORS)])[:-3] + "_operators.py"
            with open(name[: -len(OPERATORS)], "rb") as file:
                text = registrations(file.read(), name[: -len(OPERATORS)]).text()
            with open(os.path.join(directory, base), "w") as copy:
                copy.write(text)
        elif name.endswith((".py", ".so")):
            shutil.copyfile(name, os.path.join(directory, base))
        else:
            lines.append("import " + name)
            continue
        files.append(base)
        library = "torch.ops.load_library(os.path.join(HERE, {!r}))".format(base)
        lines.append(library if base.endswith(".so") else "import " + base[:-3])
    return files, "\n".join(["sys.path.insert(0, HERE)", *lines]) + "\n" if lines else ""


def _model(found: Cut) -> tuple[str, set[str]]:
    """The model's class after those of its subgraphs, and the import lines that they need."""
    texts, imports, register = _subgraphs("", found.submodules)
    forward, more = _forward(found.graph)
    buffers = ['self.register_buffer("{0}", weights["{0}"])'.format(name) for name in found.weights]
    return "\n\n".join(
        [*texts, _class("Model", forward, [*buffers, *register], "self, weights")]
    ), imports | more


def _subgraphs(prefix: str, modules: dict[str, Any]) -> tuple[list[str], set[str], list[str]]:
    """Classes of these submodules and theirs, imports, and the lines that make one of each."""
    texts: list[str] = []
    imports: set[str] = set()
    register: list[str] = []
    for name, module in modules.items():
        full = prefix + "_" + name if prefix else name
        inner, more, lines = _subgraphs(full, dict(module.named_children()))
        forward, used = _forward(module.graph)
        title = "".join(part.capitalize() for part in full.split("_"))
        texts += [*inner, _class(title, forward, lines, "self")]
        imports |= more | used
        register.append("self.{} = {}()".format(name, title))
    return texts, imports, register


def _class(name: str, forward: str, register: list[str], parameters: str) -> str:
    head = ["class {}(torch.nn.Module):".format(name), "    def __init__({}):".format(parameters)]
    head += ["        super().__init__()", *("        " + line for line in register)]
    return "\n".join([*head, "", *("    " + line if line.strip() else "" for line in forward.split("\n"))])


def _forward(graph: torch.fx.Graph) -> tuple[str, set[str]]:
    """The graph as a method, and the imports of the names in it."""
    code = graph.python_code("self")
    text = re.sub(r";  (\w+ = )+None", "", code.src.strip("\n"))
    imports = set()
    for name, value in code.globals.items():
        if name == "torch" or not re.search(r"\b%s\b" % re.escape(name), text):
            continue
        source, qualified = "math", name
        if isinstance(value, types.ModuleType):
            source, qualified = "", value.__name__
        elif name not in ("inf", "nan"):
            source = "torch" if name == "device" else getattr(value, "__module__", "torch")
            qualified = getattr(value, "__qualname__", getattr(value, "__name__", name))
        line = "from {} import {}".format(source, qualified) if source else "import " + qualified
        imports.add(line if qualified == name else "{} as {}".format(line, name))
    return text, imports


def _main(found: Cut, seeded: frozenset[str], setting: Setting, saved: bool) -> str:
    lines = ["def values():", '    """Weights and arguments of the model."""']
    if saved:
        lines.append('    saved = torch.load(os.path.join(HERE, "{}"), weights_only=True)'.format(INPUTS))
    values = {
        name: _value(name, tensor, seed if name in seeded else None)
        for seed, (name, tensor) in enumerate(found.tensors.items())
    }
    lines += ["    weights = {}"]
    lines += ['    weights["{}"] = {}'.format(name, values[name]) for name in found.weights]
    lines += ["    arguments = ("]
    lines += ["        {},  # {}".format(values[name], name) for name in found.arguments]
    lines += ["    )", "    return weights, arguments", "", "", 'if __name__ == "__main__":']
    lines += ["    weights, arguments = values()", "    dynamic_shapes = " + _dynamic_shapes(found)]
    configs = _configs(found, setting.configs)
    lines += ["    end(show(Model(weights), arguments, dynamic_shapes, {}))".format(configs), ""]
    return "\n".join(lines)


def _value(name: str, tensor: torch.Tensor, seed: Optional[int]) -> str:
    """An expression for a tensor; with a seed: values between its smallest and largest finite ones."""
    device = "" if tensor.device.type == "cpu" else '.to("{}")'.format(tensor.device)
    if seed is None:
        return 'saved["{}"]{}'.format(name, device)
    small = compact(tensor)
    wide = small.to(torch.float64).reshape(-1)
    wide = wide[torch.isfinite(wide)]
    low, high = (wide.min().item(), wide.max().item()) if wide.numel() else (0, 1)
    if not tensor.is_floating_point():
        low, high = int(low), int(high)
    layout = "{}, {}, {}".format(tuple(tensor.shape), small.stride(), tensor.dtype)
    return "seeded({}, {!r}, {!r}, {}){}".format(layout, low, high, seed, device)


def _dynamic_shapes(found: Cut) -> str:
    """The `dynamic_shapes` of the export; static sizes are None."""
    if not any(found.dynamic.values()):
        return "None"
    arguments = []
    for name in found.arguments:
        dimensions = []
        for dim, bounds in found.dynamic.get(name, {}).items():
            limits = ["{}={}".format(*pair) for pair in zip(("min", "max"), bounds) if pair[1] is not None]
            dimensions.append("{}: torch.export.Dim.AUTO({})".format(dim, ", ".join(limits)))
        arguments.append("{" + ", ".join(dimensions) + "}")
    return "({},)".format(", ".join(arguments))


def _configs(found: Cut, configs: dict[str, Any]) -> str:
    """The options of the compile; those of operators for the ones that the cut has."""
    shims = configs.get(BY_OPERATOR)
    if not isinstance(shims, dict):
        return repr(configs)
    there = {str(operator) for _, operator in users_operators(found)}
    kept = [name for name in shims if name in there or name.partition(".")[0] in TORCHS]
    inner = ", ".join("torch.ops.{}: {!r}".format(name, shims[name]) for name in kept)
    others = ["{!r}: {!r}".format(name, value) for name, value in configs.items() if name != BY_OPERATOR]
    return "{" + ", ".join([*others, "{!r}: {{{}}}".format(BY_OPERATOR, inner)]) + "}"
