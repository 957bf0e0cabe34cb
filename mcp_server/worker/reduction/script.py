"""Writes a reproduction: one plain script with its model, and a file of values that it cannot create.

The part below the line COPIED of this file is copied into the script.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import traceback
import types
from dataclasses import dataclass
from typing import Any

import torch

from ..encode import BY_OPERATOR
from ..imports import OPERATORS, registrations
from ..protocol import Configs
from .program import TORCHS, Cut, compact, users_operators

SCRIPT = "repro.py"
INPUTS = "inputs.pt"
COPIED = "# ---- copied into every reproduction ----\n"

HEADER = '''"""{title}

Run it with Python and torch {torch}; it needs nothing else{needs}.
Exit status: 0 nothing is wrong here, 1 an exception (the last `phase:` line says where), 3 an output is not
finite, 4 an output differs from eager, 5 it cannot be exported; killed by a signal: the process crashed.
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
    """What a reproduction takes from the failing workload in addition to its program."""

    title: str
    configs: Configs
    environment: dict[str, str]
    extra_imports: tuple[str, ...]


def write(found: Cut, seeded: frozenset[str], setting: Setting, directory: str) -> None:
    """Write `repro.py`, `inputs.pt` with values that are not seeded, and files that register operators."""
    saved = {name: compact(t) for name, t in found.tensors.items() if name not in seeded}
    needed = setting.extra_imports if users_operators(found) else ()
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
    with open(__file__, encoding="utf-8") as file:
        common = file.read().rpartition(COPIED)[2].strip() + "\n"
    parts = [header + loading, common, code, _main(found, seeded, setting, bool(saved))]
    with open(os.path.join(directory, SCRIPT), "w", encoding="utf-8") as file:
        file.write("\n\n".join(parts))


def _operators(names: tuple[str, ...], directory: str) -> tuple[list[str], str]:
    """Copy files that register the user's operators. Return their names, and the lines that load them."""
    files, lines = [], []
    for name in names:
        base = os.path.basename(name)
        if name.endswith(OPERATORS):
            # The new name differs from the script's, because the script may be in the same folder.
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
    """The text of the model's class, after the classes of its subgraphs, and the imports for them."""
    texts, imports, register = _subgraphs("", found.submodules)
    forward, more = _forward(found.graph)
    buffers = ['self.register_buffer("{0}", weights["{0}"])'.format(name) for name in found.weights]
    return "\n\n".join(
        [*texts, _class("Model", forward, [*buffers, *register], "self, weights")]
    ), imports | more


def _subgraphs(prefix: str, modules: dict[str, Any]) -> tuple[list[str], set[str], list[str]]:
    """Classes of submodules at all depths, their imports, and lines that create the outer ones."""
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
    """The graph as a method, and the imports for its names."""
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


def _value(name: str, tensor: torch.Tensor, seed: int | None) -> str:
    """Return an expression for a tensor. With a seed, use random values in the range of its finite ones."""
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
    """The `dynamic_shapes` of the export as text, `None` if all sizes are static."""
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


def _configs(found: Cut, configs: Configs) -> str:
    """Return the options of the compile as text. Keep shims of torch's operators and of those in the cut."""
    shims = configs.get(BY_OPERATOR)
    if not isinstance(shims, dict):
        return repr(configs)
    there = {str(operator) for _, operator in users_operators(found)}
    kept = [name for name in shims if name in there or name.partition(".")[0] in TORCHS]
    inner = ", ".join("torch.ops.{}: {!r}".format(name, shims[name]) for name in kept)
    others = ["{!r}: {!r}".format(name, value) for name, value in configs.items() if name != BY_OPERATOR]
    return "{" + ", ".join([*others, "{!r}: {{{}}}".format(BY_OPERATOR, inner)]) + "}"


# ---- copied into every reproduction ----

# Relative and absolute tolerance of an output, by its dtype; whole numbers must be equal.
TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1e-4, 1e-4),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (3e-2, 3e-2),
}
NO_FAULT, NOT_FINITE, DEPARTS, NOT_EXPORTED = 0, 3, 4, 5


def seeded(shape: Any, stride: Any, dtype: torch.dtype, low: float, high: float, seed: int) -> torch.Tensor:
    """A tensor of uniform values in [low, high], the same for the same seed."""
    drawn = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if not dtype.is_floating_point:
        drawn = (drawn * (high - low + 1) + low).floor().clamp(max=high)
    else:
        drawn = drawn * (high - low) + low
    return torch.empty_strided(shape, stride, dtype=dtype).copy_(drawn)


def show(model: Any, arguments: Any, dynamic_shapes: Any, configs: Any) -> int:
    """Export, compile, load and call, then compare the outputs with eager. Return the exit status."""
    phase("exporting")
    try:
        program = torch.export.export(model, arguments, dynamic_shapes=dynamic_shapes, strict=False)
    except Exception:
        traceback.print_exc()
        return NOT_EXPORTED
    phase("compiling")
    path = os.path.join(tempfile.mkdtemp(), "model.pt2")
    with torch.no_grad():
        package = torch._inductor.aoti_compile_and_package(
            program, package_path=path, inductor_configs=configs
        )
    phase("loading")
    loader = torch._C._aoti.AOTIModelPackageLoader(package, "model", False, 1, -1)
    phase("calling")
    outputs = loader.run([argument.clone() for argument in arguments])
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    phase("comparing")
    bad = [not_finite(place, output) for place, output in enumerate(outputs)]
    with torch.no_grad():
        expected = model(*arguments)
    away = [departs(place, got, want) for place, (got, want) in enumerate(zip(outputs, expected))]
    return NOT_FINITE if any(bad) else DEPARTS if any(away) else NO_FAULT


def phase(name: str) -> None:
    print("phase:", name, flush=True)


def not_finite(place: int, output: torch.Tensor) -> bool:
    """Print how many values of an output are not finite. Only minus infinity may come from a mask."""
    if not (output.is_floating_point() or output.is_complex()):
        return False
    wide = output.float() if output.element_size() == 1 else output
    nan = int(torch.isnan(wide).sum())
    inf = int(torch.isinf(wide).sum())
    if nan or inf:
        print("not finite: output", place, "holds", nan, "nan and", inf, "inf of", output.numel(), flush=True)
    return bool(nan) or bool((wide == float("inf")).any())


def departs(place: int, got: torch.Tensor, want: torch.Tensor) -> bool:
    """Print where the package's output differs from eager's."""
    if got.shape != want.shape or got.dtype != want.dtype:
        print("departs: output", place, "is", got.dtype, tuple(got.shape), flush=True)
        print("         eager gives", want.dtype, tuple(want.shape), flush=True)
        return True
    exact = torch.complex128 if want.is_complex() else torch.float64
    got, want, (rtol, atol) = got.cpu(), want.cpu(), TOLERANCES.get(want.dtype, (0.0, 0.0))
    bad = ~torch.isclose(got.to(exact), want.to(exact), rtol=rtol, atol=atol, equal_nan=True)
    if bool(bad.any()):
        at = tuple(int(i) for i in bad.nonzero()[0])
        print("departs: output", place, "in", int(bad.sum()), "of", got.numel(), "elements", flush=True)
        print("         first at", list(at), "package", got[at].item(), "eager", want[at].item(), flush=True)
    return bool(bad.any())


def end(status: int) -> None:
    print("exit status", status, flush=True)
    sys.exit(status)
