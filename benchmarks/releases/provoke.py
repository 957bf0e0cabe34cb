"""Makes a torch print its errors: `python -m benchmarks.releases.provoke ZOO OUT [KIND…]`.

Writes `OUT/KIND.log` for each kind of fault. Imports torch once and forks for each kind; needs Python 3.9,
and nothing of the product.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._inductor.codecache  # torch 2.10.0 needs it for a load, and does not import it
from torch import nn
from torch.export import Dim

import tests.zoo.models  # noqa: F401 - registers the custom op

CHECKED = "AOTI_RUNTIME_CHECK_INPUTS"


def loaded(package: Path, model: str = "model") -> Any:
    return torch._C._aoti.AOTIModelPackageLoader(str(package), model, False, 1, -1)


def checked_call(zoo: Path, name: str, *inputs: torch.Tensor) -> Any:
    os.environ[CHECKED] = "1"
    return loaded(zoo / f"{name}.pt2").run(list(inputs))


def compiled(
    model: nn.Module, inputs: tuple[torch.Tensor, ...], own: Path, dynamic: Any = None, **config: Any
) -> Path:
    with torch.no_grad():
        exported = torch.export.export(model, inputs, dynamic_shapes=dynamic)
        package = str(own / "own.pt2")
        torch._inductor.aoti_compile_and_package(exported, package_path=package, inductor_configs=config)
    return own / "own.pt2"


def changed(zoo: Path, own: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """The ranker's package with members changed or left out."""
    target = own / "changed.pt2"
    with zipfile.ZipFile(zoo / "ranker.pt2") as source, zipfile.ZipFile(target, "w") as archive:
        for info in source.infolist():
            data = change(info.filename, source.read(info))
            if data is not None:
                archive.writestr(info, data, compress_type=zipfile.ZIP_STORED)
    return target


def ids(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def through_python(zoo: Path) -> Any:
    """The ranker as a program loads it."""
    return torch._inductor.aoti_load_package(str(zoo / "ranker.pt2"))


def through_operator(operator: str, own: Path) -> Any:
    """A checked call of an operator whose fake function is wrong."""
    os.environ[CHECKED] = "1"
    return loaded(compiled(Through(operator), (ROWS,), own)).run([ROWS])


class Logarithm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x) + 1


class Kept(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = (x[:, 0] > 0.5).sum().item()
        torch._check(n >= 0)
        torch._check(n <= 4)
        return torch.ones(n) + 1


class Divides(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] < 16 else x - 1


class Asks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.sum().int().item()
        return x + 1 if n > 3 else x - 1


class Through(nn.Module):
    def __init__(self, operator: str) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(torch.ops.aotireleases, self.operator)(x + 1) * 2


@torch.library.custom_op("aotireleases::shorter", mutates_args=())
def shorter(x: torch.Tensor) -> torch.Tensor:
    return x[:-2].clone()


@torch.library.custom_op("aotireleases::wider", mutates_args=())
def wider(x: torch.Tensor) -> torch.Tensor:
    return x.double()


@torch.library.custom_op("aotireleases::refuse", mutates_args=())
def refuse(x: torch.Tensor) -> torch.Tensor:
    if x.min() < 1:
        raise ValueError("no value below one is allowed")
    return x.clone()


for operator in (shorter, wider, refuse):
    operator.register_fake(torch.empty_like)


def unknown_operator(zoo: Path) -> None:
    """Loads a package in a process that does not register its operator."""
    load = "torch._inductor.aoti_load_package(sys.argv[1])"
    code = f"import sys, torch._inductor.codecache; {load}(torch.rand(8, 8))"
    os.execv(sys.executable, [sys.executable, "-W", "ignore", "-c", code, str(zoo / "plugin.pt2")])


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def without(zoo: Path, own: Path, ending: str) -> Path:
    """The ranker's package without one member."""
    return changed(zoo, own, lambda name, data: None if name.endswith(ending) else data)


def in_linear(own: Path, **config: Any) -> Path:
    return compiled(nn.Linear(4, 4), (ROWS,), own, **config)


ROWS = torch.rand(8, 4)
# What each kind does with the packages' directory and a directory of its own.
KINDS: dict[str, Callable[[Path, Path], Any]] = {
    "input_dtype": lambda zoo, own: checked_call(zoo, "ranker", ids(8, 6).int()),
    "input_static_size": lambda zoo, own: checked_call(
        zoo, "logarithm", torch.rand(8, 17), torch.rand(8, 16)
    ),
    "input_stride": lambda zoo, own: checked_call(zoo, "logarithm", torch.rand(16, 8).t(), torch.rand(8, 16)),
    "input_too_large": lambda zoo, own: checked_call(zoo, "ranker", ids(100, 6)),
    "input_too_small": lambda zoo, own: checked_call(zoo, "ranker", ids(1, 6)),
    "input_on_another_device": lambda zoo, own: checked_call(zoo, "ranker", ids(8, 6).to("meta")),
    "input_sizes_disagree": lambda zoo, own: checked_call(
        zoo, "logarithm", torch.rand(8, 16), torch.rand(6, 16)
    ),
    "too_few_inputs": lambda zoo, own: loaded(zoo / "ranker.pt2").run([]),
    "too_many_arguments": lambda zoo, own: through_python(zoo)(ids(8, 6), ids(8, 6)),
    "other_keywords": lambda zoo, own: through_python(zoo)(numbers=ids(8, 6)),
    "bad_index": lambda zoo, own: loaded(zoo / "ranker.pt2").run(torch.load(zoo / "ranker.bad-index.pt")),
    "bad_scatter_index": lambda zoo, own: loaded(zoo / "scatter.pt2").run(
        torch.load(zoo / "scatter.bad-index.pt")
    ),
    "nan_assertion": lambda zoo, own: loaded(compiled(Logarithm(), (ROWS,), own, nan_asserts=True)).run(
        [ROWS / 0 * 0]
    ),
    "size_assertion": lambda zoo, own: loaded(compiled(Kept(), (torch.eye(8, 4),), own)).run(
        [torch.ones(8, 4)]
    ),
    "wrong_fake_size": lambda zoo, own: through_operator("shorter", own),
    "wrong_fake_dtype": lambda zoo, own: through_operator("wider", own),
    "operator_raises": lambda zoo, own: loaded(compiled(Through("refuse"), (ROWS,), own)).run([-ROWS]),
    "operator_unknown": lambda zoo, own: unknown_operator(zoo),
    "no_such_file": lambda zoo, own: loaded(own / "none.pt2"),
    "no_archive": lambda zoo, own: loaded(written(own / "text.pt2", b"no archive")),
    "cut_archive": lambda zoo, own: loaded(
        written(own / "cut.pt2", (data := (zoo / "ranker.pt2").read_bytes())[: len(data) // 2])
    ),
    "no_such_model": lambda zoo, own: loaded(zoo / "ranker.pt2", "nope"),
    "no_library": lambda zoo, own: loaded(without(zoo, own, ".so")),
    "no_metadata": lambda zoo, own: loaded(without(zoo, own, "_metadata.json")),
    "cut_library": lambda zoo, own: loaded(
        changed(zoo, own, lambda name, data: data[:5000] if name.endswith(".so") else data)
    ),
    "unknown_constant": lambda zoo, own: loaded(zoo / "ranker.pt2").load_constants(
        {"none": torch.rand(4)}, False, False
    ),
    "constant_left_out": lambda zoo, own: loaded(zoo / "ranker.pt2").load_constants(
        {"table.weight": torch.rand(32, 16)}, False, True
    ),
    "dim_too_wide": lambda zoo, own: torch.export.export(
        Divides(), (ROWS,), dynamic_shapes=({0: Dim("n", min=2, max=64)},)
    ),
    "data_dependent_guard": lambda zoo, own: torch.export.export(Asks(), (ROWS,)),
    "unknown_option": lambda zoo, own: in_linear(own, **{"aot_inductor.nope": True}),
    "bad_printer_level": lambda zoo, own: in_linear(
        own, **{"aot_inductor.debug_intermediate_value_printer": "4"}
    ),
    "exported_guard": lambda zoo, own: torch.export.load(zoo / "ranker.exported.pt2").module()(ids(100, 6)),
    "no_compiler": lambda zoo, own: in_linear(own, **{"cpp.cxx": ("none-such-compiler",)}),
}


def provoke(name: str, zoo: Path, out: Path) -> None:
    """Run one kind in a child with its output in the kind's log."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    file = os.open(out / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    faulthandler.enable()
    own = out / name
    own.mkdir(exist_ok=True)
    try:
        KINDS[name](zoo, own)
        print("no error")
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    where = Path(sys.argv[2])
    where.mkdir(parents=True, exist_ok=True)
    for each in sys.argv[3:] or KINDS:
        provoke(each, Path(sys.argv[1]), where)
