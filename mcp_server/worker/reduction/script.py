"""The text of a reproduction: one plain script with its model, and a file for the values it cannot make."""

from __future__ import annotations

import os
import re
import shutil
import types
from dataclasses import dataclass
from typing import Any

import torch

from ..encode import BY_OPERATOR
from ..imports import OPERATORS, registrations
from . import cut, show
from .cut import TORCHS, Cut, users_operators

SCRIPT = "repro.py"
INPUTS = "inputs.pt"
LINE = "# ---- from here on copied ----\n"

HEADER = '''"""{title}

Run it with Python and torch {torch}; it needs nothing else{beside}.
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


def write(found: Cut, made: frozenset[str], setting: Setting, directory: str) -> None:
    """`repro.py`, and beside it `inputs.pt` when there are values that the script does not make."""
    saved = {name: _portable(t) for name, t in found.tensors.items() if name not in made}
    if saved:
        torch.save(saved, os.path.join(directory, INPUTS))
    needed = setting.extra_imports if users_operators(found) and not found.stand_ins else ()
    beside = [*([INPUTS] if saved else []), *_copied(needed, directory)]
    with open(os.path.join(directory, SCRIPT), "w", encoding="utf-8") as file:
        file.write(_text(found, made, setting, needed, beside))


def _portable(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().clone(memory_format=torch.preserve_format)


def _copied(names: tuple[str, ...], directory: str) -> list[str]:
    """Files that register operators, copied beside the script."""
    files = [name for name in names if name.endswith((".py", ".so"))]
    for name in files:
        shutil.copyfile(name, os.path.join(directory, os.path.basename(name)))
    taken = [name[: -len(OPERATORS)] for name in names if name.endswith(OPERATORS)]
    for name in taken:
        with open(name, "rb") as file, open(os.path.join(directory, _module(name) + ".py"), "w") as copy:
            copy.write(registrations(file.read(), name).text())
    return [*(os.path.basename(name) for name in files), *(_module(name) + ".py" for name in taken)]


def _module(path: str) -> str:
    """The module's name for the operators of a script, whose own file may be what a reader has open."""
    return os.path.basename(path)[:-3] + "_operators"


def _text(found: Cut, made: frozenset[str], setting: Setting, needed: Any, beside: list[str]) -> str:
    code, imports = _classes(found)
    header = HEADER.format(
        title=setting.title,
        torch=torch.__version__,
        beside=" but " + " and ".join(beside) + " beside it" if beside else "",
        environment="".join(
            "os.environ.setdefault({!r}, {!r})\n".format(*pair)
            for pair in sorted(setting.environment.items())
        ),
        imports="".join(line + "\n" for line in sorted(imports)),
    )
    operators = [_copied_part(cut), "\n".join(found.stand_ins)] if found.stand_ins else []
    main = _main(found, made, setting, INPUTS in beside)
    return "\n\n".join([header + _loading(needed), _copied_part(show), *operators, code, main])


def _copied_part(module: types.ModuleType) -> str:
    with open(str(module.__file__), encoding="utf-8") as file:
        return file.read().split(LINE, 1)[1].strip() + "\n"


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


def _loading(names: tuple[str, ...]) -> str:
    """Lines that register the user's operators."""
    lines = []
    for name in names:
        base = os.path.basename(name)
        if name.endswith(".so"):
            lines.append("torch.ops.load_library(os.path.join(HERE, {!r}))".format(base))
        elif name.endswith(OPERATORS):
            lines.append("import " + _module(name[: -len(OPERATORS)]))
        else:
            lines.append("import " + (base[:-3] if name.endswith(".py") else name))
    return "\n".join(["sys.path.insert(0, HERE)", *lines]) + "\n" if lines else ""


def _classes(found: Cut) -> tuple[str, set[str]]:
    """The model's class after those of its subgraphs, and the import lines that they need."""
    names: dict[str, str] = {}
    texts, imports = [], set()
    for attribute, module in found.submodules.items():
        text, more = _subgraph(attribute, module)
        texts.append(text)
        imports |= more
        names[attribute] = _camel(attribute)
    forward, more = _forward(found.graph)
    register = ['self.register_buffer("{0}", weights["{0}"])'.format(name) for name in found.weights]
    register += ["self.{} = {}()".format(*pair) for pair in names.items()]
    return "\n\n".join([*texts, _class("Model", forward, register, "weights")]), imports | more


def _subgraph(attribute: str, module: torch.fx.GraphModule) -> tuple[str, set[str]]:
    texts, imports, register = [], set(), []
    for name, inner in module.named_children():
        text, more = _subgraph(attribute + "_" + name, inner)
        texts.append(text)
        imports |= more
        register.append("self.{} = {}()".format(name, _camel(attribute + "_" + name)))
    forward, more = _forward(module.graph)
    return "\n\n".join([*texts, _class(_camel(attribute), forward, register, "")]), imports | more


def _class(name: str, forward: str, register: list[str], parameter: str) -> str:
    head = ["class {}(torch.nn.Module):".format(name)]
    signature = "self, " + parameter if parameter else "self"
    head += ["    def __init__({}):".format(signature), "        super().__init__()"]
    head += ["        " + line for line in register]
    return "\n".join([*head, "", *("    " + line if line.strip() else "" for line in forward.split("\n"))])


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _forward(graph: torch.fx.Graph) -> tuple[str, set[str]]:
    """The graph as a method, and the imports of the names in it."""
    code = graph.python_code("self")
    text = re.sub(r";  (\w+ = )+None", "", code.src.strip("\n"))
    used = {
        name: value for name, value in code.globals.items() if re.search(r"\b%s\b" % re.escape(name), text)
    }
    return text, {line for line in map(_import_of, used.items()) if line}


def _import_of(pair: tuple[str, Any]) -> str:
    name, value = pair
    if name == "torch":
        return ""
    if name in ("inf", "nan"):
        return "from math import " + name
    if isinstance(value, types.ModuleType):
        return "import {} as {}".format(value.__name__, name) if value.__name__ != name else "import " + name
    qualified = getattr(value, "__qualname__", getattr(value, "__name__", name))
    source = getattr(value, "__module__", "torch")
    source = "torch" if name == "device" else source
    return (
        "from {} import {} as {}".format(source, qualified, name)
        if qualified != name
        else ("from {} import {}".format(source, name))
    )


def _main(found: Cut, made: frozenset[str], setting: Setting, saved: bool) -> str:
    lines = ["def values():", '    """Weights and arguments of the model."""']
    if saved:
        lines.append('    saved = torch.load(os.path.join(HERE, "{}"), weights_only=True)'.format(INPUTS))
    values = {
        name: _value(name, tensor, name in made, seed)
        for seed, (name, tensor) in enumerate(found.tensors.items())
    }
    lines += ["    weights = {}"]
    lines += ['    weights["{}"] = {}'.format(name, values[name]) for name in found.weights]
    lines += ["    arguments = ("]
    lines += ["        {},  # {}".format(values[name], name) for name in found.arguments]
    lines += ["    )", "    return weights, arguments", "", "", 'if __name__ == "__main__":']
    lines += ["    weights, arguments = values()", "    dynamic_shapes = " + _dynamic(found)]
    configs = _configs(found, setting.configs)
    lines += ["    end(show(Model(weights), arguments, dynamic_shapes, {}))".format(configs), ""]
    return "\n".join(lines)


def _value(name: str, tensor: torch.Tensor, is_made: bool, seed: int) -> str:
    device = "" if tensor.device.type == "cpu" else '.to("{}")'.format(tensor.device)
    if not is_made:
        return 'saved["{}"]{}'.format(name, device)
    low, high = bounds(tensor)
    return "made({}, {}, {}, {!r}, {!r}, {}){}".format(
        tuple(tensor.shape), _portable(tensor).stride(), tensor.dtype, low, high, seed, device
    )


def bounds(tensor: torch.Tensor) -> tuple[float, float]:
    """Smallest and largest finite value."""
    wide = tensor.detach().cpu().to(torch.float64).reshape(-1)
    wide = wide[torch.isfinite(wide)]
    if not wide.numel():
        return 0, 1
    low, high = float(wide.min()), float(wide.max())
    return (low, high) if tensor.is_floating_point() else (int(low), int(high))


def _dynamic(found: Cut) -> str:
    """The `dynamic_shapes` of the export; static sizes are None."""
    if not any(found.dynamic.values()):
        return "None"
    each = (_dimensions(found.dynamic.get(name, {})) for name in found.arguments)
    return "({},)".format(", ".join(each))


def _dimensions(symbolic: dict[int, Any]) -> str:
    ranges = (
        "{}: torch.export.Dim.AUTO({})".format(dim, _limits(*bounds)) for dim, bounds in symbolic.items()
    )
    return "{" + ", ".join(ranges) + "}"


def _limits(low: Any, high: Any) -> str:
    pairs = (("min", low), ("max", high))
    return ", ".join("{}={}".format(name, value) for name, value in pairs if value is not None)
