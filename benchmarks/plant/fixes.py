"""Applies the fix that a verdict prints, if that is code, and tells whether the failure goes.

A fix is code if it is lines of the model or of the program, or statements about the call's `args`.
"""

import ast
import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.plant.disguises import outputs_of
from benchmarks.plant.models import Model
from benchmarks.plant.program import ENDED, PLANTING, draw_inputs, eager_model, run_program

DRAWN = 3  # calls with usual inputs, on which a changed model must be right
ABOUT = 0.05  # the tolerance for another epsilon
FIXED = "fixed"  # the folder of the program with the fix
ASKED_OF = frozenset({"args", "torch", "float"})  # names that statements about the call may have


def fix_right(
    folder: Path, source: Sequence[str], model: Model, inputs: list[Any], fix: dict[str, Any]
) -> bool | None:
    """Whether the printed change removes the failure. None if it is no change that can be applied.

    `source` has the lines of the program's model, and `inputs` are those of the failing call.
    """
    before, after = fix.get("before") or "", fix.get("after") or ""
    program = (folder / "program.py").read_text()
    edited = replaced(source, before, after)
    if edited is not None:
        return model_right(folder, "\n".join(edited) + "\n", "\n".join(source) + "\n", model, inputs)
    edited = replaced(program.splitlines(), before, after)
    if edited is not None:
        return program_ends(folder, "\n".join(edited) + "\n", inputs)
    if "args" in before and len(about_args(f"{before} = {after}")) == 1:  # the arguments in another order
        after = f"{before} = {after}"
    statements = about_args(after)
    if not statements:
        return None
    if all(isinstance(each, ast.Assert | ast.If) for each in statements):
        good = list(torch.load(folder / "before.pt"))
        return refuses(after, inputs) and not refuses(after, good)
    changed = list(inputs)
    try:
        exec(after, {"torch": torch, "args": changed})
    except Exception:  # the change may be wrong in any way
        return False
    return program_ends(folder, program, changed)


def replaced(lines: Sequence[str], before: str, after: str) -> list[str] | None:
    """The lines with `after` in place of `before`. None if these do not fit together."""
    old, new = before.splitlines(), after.splitlines()
    if not old or not new or not {each.strip() for each in old} <= {each.strip() for each in lines}:
        return None
    if len(old) == len(new):
        pairs = {one.strip(): [other.strip()] for one, other in zip(old, new, strict=True)}
    elif len(old) == 1:
        pairs = {old[0].strip(): new}
    else:
        return None
    made: list[str] = []
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        made += [f"{indent}{each}" for each in pairs[line.strip()]] if line.strip() in pairs else [line]
    return made


def about_args(code: str) -> list[ast.stmt]:
    """The statements of code that uses only the arguments of the call. Empty for other code."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return []
    kinds = ast.Assign | ast.Expr | ast.Assert | ast.If
    values = [each.value for each in tree.body if isinstance(each, ast.Expr)]
    if not all(isinstance(value, ast.Call) for value in values):
        return []
    builtin = {"bool", "int", "ValueError"}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    fitting = "args" in names and names <= ASKED_OF | builtin
    return tree.body if fitting and all(isinstance(each, kinds) for each in tree.body) else []


def refuses(check: str, inputs: list[Any]) -> bool:
    """Whether a check of the call's arguments fails."""
    try:
        exec(check, {"torch": torch, "args": list(inputs)})
    except (AssertionError, ValueError, IndexError):
        return True
    return False


def model_right(folder: Path, text: str, faulty: str, model: Model, inputs: list[Any]) -> bool:
    """Whether the changed model is finite for the failing call, and right for usual ones.

    Right is what the model without the mistake gives, or the model with it where finite, since the epsilon
    that the author had in mind cannot be known. All run in eager mode: the change is one of the source.
    """
    wrong = contextlib.suppress(Exception)  # the change may be wrong in any way
    with applied(folder, "model.py", text) as file, PLANTING, torch.no_grad(), wrong:
        (folder / FIXED / "right.py").write_text(model.text)
        (folder / FIXED / "faulty.py").write_text(faulty)
        eager, right, as_is = (
            eager_model(each, "cpu")
            for each in (file, folder / FIXED / "right.py", folder / FIXED / "faulty.py")
        )
        found = outputs_of(eager(*[tensor.clone() for tensor in inputs]))
        usual = [draw_inputs(model, seed, "cpu") for seed in range(DRAWN)]
        finite = all(bool(torch.isfinite(output).all()) for output in found)
        return finite and all(
            same(eager(*given), right(*given), _unless_refused(as_is, given)) for given in usual
        )
    return False


def _unless_refused(model: Any, given: list[Any]) -> Any:
    """What a model gives. None if it refuses these inputs."""
    with contextlib.suppress(RuntimeError, IndexError):
        return model(*given)
    return None


def same(found: Any, right: Any, as_is: Any) -> bool:
    """Whether each element is right or as with the mistake, or about right where that is not finite."""
    for place, output in enumerate(outputs_of(found)):
        wanted = outputs_of(right)[place]
        close = torch.isclose(output, wanted, 1e-3, 1e-3)
        if as_is is not None:
            faulty = outputs_of(as_is)[place]
            about = torch.isclose(output, wanted, ABOUT, ABOUT) & ~torch.isfinite(faulty)
            close = close | torch.isclose(output, faulty, 1e-3, 1e-3) | about
        if not close.all():
            return False
    return True


def program_ends(folder: Path, text: str, inputs: list[Any]) -> bool:
    """Whether the program ends well with that text and these inputs."""
    with applied(folder, "program.py", text) as file:
        for name in ("model.pt2", "before.pt", "expected.pt", "weights.pt"):
            if (folder / name).exists():
                shutil.copyfile(folder / name, file.parent / name)
        device = torch.load(folder / "inputs.pt")[0].device
        torch.save(tuple(tensor.to(device) for tensor in inputs), file.parent / "inputs.pt")
        return run_program(file.parent) == ENDED


@contextlib.contextmanager
def applied(folder: Path, name: str, text: str) -> Iterator[Path]:
    """Write a file of that name and text to a folder of its own."""
    shutil.rmtree(folder / FIXED, ignore_errors=True)
    (folder / FIXED).mkdir()
    (folder / FIXED / name).write_text(text)
    yield folder / FIXED / name
