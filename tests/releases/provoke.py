"""Makes a release print its errors: `python -m tests.releases.provoke ZOO OUT [KIND…]`, with a torch to try.

Writes `OUT/KIND.log` for each kind of fault. Imports torch once and forks for each; needs Python 3.9 and
nothing of the product.
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

KINDS: dict[str, Callable[[Path, Path], Any]] = {}
CHECKED = "AOTI_RUNTIME_CHECK_INPUTS"


def kind(function: Callable[[Path, Path], Any]) -> Callable[[Path, Path], Any]:
    """Adds a fault; it gets the packages' directory and one for its own files."""
    KINDS[function.__name__] = function
    return function


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
    """The ranker's package with members changed, or left out."""
    target = own / "changed.pt2"
    with zipfile.ZipFile(zoo / "ranker.pt2") as source, zipfile.ZipFile(target, "w") as archive:
        for info in source.infolist():
            data = change(info.filename, source.read(info))
            if data is not None:
                archive.writestr(info, data, compress_type=zipfile.ZIP_STORED)
    return target


def ids(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


@kind
def input_dtype(zoo: Path, own: Path) -> None:
    checked_call(zoo, "ranker", ids(8, 6).int())


@kind
def input_static_size(zoo: Path, own: Path) -> None:
    checked_call(zoo, "logarithm", torch.rand(8, 17), torch.rand(8, 16))


@kind
def input_stride(zoo: Path, own: Path) -> None:
    checked_call(zoo, "logarithm", torch.rand(16, 8).t(), torch.rand(8, 16))


@kind
def input_too_large(zoo: Path, own: Path) -> None:
    checked_call(zoo, "ranker", ids(100, 6))


@kind
def input_too_small(zoo: Path, own: Path) -> None:
    checked_call(zoo, "ranker", ids(1, 6))


@kind
def input_on_another_device(zoo: Path, own: Path) -> None:
    checked_call(zoo, "ranker", torch.empty(8, 6, dtype=torch.int64, device="meta"))


@kind
def input_sizes_disagree(zoo: Path, own: Path) -> None:
    checked_call(zoo, "logarithm", torch.rand(8, 16), torch.rand(6, 16))


@kind
def too_few_inputs(zoo: Path, own: Path) -> None:
    loaded(zoo / "ranker.pt2").run([])


@kind
def too_many_arguments(zoo: Path, own: Path) -> None:
    torch._inductor.aoti_load_package(str(zoo / "ranker.pt2"))(ids(8, 6), ids(8, 6))


@kind
def other_keywords(zoo: Path, own: Path) -> None:
    torch._inductor.aoti_load_package(str(zoo / "ranker.pt2"))(numbers=ids(8, 6))


@kind
def bad_index(zoo: Path, own: Path) -> None:
    loaded(zoo / "ranker.pt2").run(torch.load(zoo / "ranker.bad-index.pt"))


@kind
def bad_scatter_index(zoo: Path, own: Path) -> None:
    loaded(zoo / "scatter.pt2").run(torch.load(zoo / "scatter.bad-index.pt"))


@kind
def nan_assertion(zoo: Path, own: Path) -> None:
    x = torch.rand(4, 4)
    package = compiled(Logarithm(), (x,), own, nan_asserts=True)
    loaded(package).run([x / 0 * 0])


@kind
def size_assertion(zoo: Path, own: Path) -> None:
    package = compiled(Kept(), (torch.eye(8, 4),), own)
    loaded(package).run([torch.ones(8, 4)])


@kind
def wrong_fake_size(zoo: Path, own: Path) -> None:
    os.environ[CHECKED] = "1"
    loaded(compiled(Through("shorter"), (torch.rand(8, 4),), own)).run([torch.rand(8, 4)])


@kind
def wrong_fake_dtype(zoo: Path, own: Path) -> None:
    os.environ[CHECKED] = "1"
    loaded(compiled(Through("wider"), (torch.rand(8, 4),), own)).run([torch.rand(8, 4)])


@kind
def operator_raises(zoo: Path, own: Path) -> None:
    loaded(compiled(Through("refuse"), (torch.rand(8, 4),), own)).run([-torch.rand(8, 4)])


@kind
def operator_unknown(zoo: Path, own: Path) -> None:
    load = "torch._inductor.aoti_load_package(sys.argv[1])"
    code = f"import sys, torch._inductor.codecache; {load}(torch.rand(8, 8))"
    os.execv(sys.executable, [sys.executable, "-W", "ignore", "-c", code, str(zoo / "plugin.pt2")])


@kind
def no_such_file(zoo: Path, own: Path) -> None:
    loaded(own / "none.pt2")


@kind
def no_archive(zoo: Path, own: Path) -> None:
    (own / "text.pt2").write_text("no archive")
    loaded(own / "text.pt2")


@kind
def cut_archive(zoo: Path, own: Path) -> None:
    data = (zoo / "ranker.pt2").read_bytes()
    (own / "cut.pt2").write_bytes(data[: len(data) // 2])
    loaded(own / "cut.pt2")


@kind
def no_such_model(zoo: Path, own: Path) -> None:
    loaded(zoo / "ranker.pt2", "nope")


@kind
def no_library(zoo: Path, own: Path) -> None:
    loaded(changed(zoo, own, lambda name, data: None if name.endswith(".so") else data))


@kind
def no_metadata(zoo: Path, own: Path) -> None:
    loaded(changed(zoo, own, lambda name, data: None if name.endswith("_metadata.json") else data))


@kind
def cut_library(zoo: Path, own: Path) -> None:
    loaded(changed(zoo, own, lambda name, data: data[:5000] if name.endswith(".so") else data))


@kind
def unknown_constant(zoo: Path, own: Path) -> None:
    loaded(zoo / "ranker.pt2").load_constants({"none": torch.rand(4)}, False, False)


@kind
def constant_left_out(zoo: Path, own: Path) -> None:
    loaded(zoo / "ranker.pt2").load_constants({"table.weight": torch.rand(32, 16)}, False, True)


@kind
def dim_too_wide(zoo: Path, own: Path) -> None:
    torch.export.export(Divides(), (torch.rand(8, 4),), dynamic_shapes=({0: Dim("n", min=2, max=64)},))


@kind
def data_dependent_guard(zoo: Path, own: Path) -> None:
    torch.export.export(Asks(), (torch.rand(8, 4),))


@kind
def unknown_option(zoo: Path, own: Path) -> None:
    compiled(nn.Linear(4, 4), (torch.rand(8, 4),), own, **{"aot_inductor.nope": True})


@kind
def bad_printer_level(zoo: Path, own: Path) -> None:
    config = {"aot_inductor.debug_intermediate_value_printer": "4"}
    compiled(nn.Linear(4, 4), (torch.rand(8, 4),), own, **config)


@kind
def exported_guard(zoo: Path, own: Path) -> None:
    torch.export.load(zoo / "ranker.exported.pt2").module()(ids(100, 6))


@kind
def no_compiler(zoo: Path, own: Path) -> None:
    compiled(nn.Linear(4, 4), (torch.rand(8, 4),), own, **{"cpp.cxx": ("none-such-compiler",)})


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


def provoke(name: str, zoo: Path, out: Path) -> None:
    """Run one kind in a child, whose output goes into its log."""
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
