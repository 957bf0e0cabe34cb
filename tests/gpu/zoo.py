"""CUDA packages of the zoo, compiled in parallel, and one whose library links libstdc++ statically."""

import os
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mcp_server.model import ExportedWorkload, PackageWorkload, TensorSpec
from tests.conftest import ROOT, torch_environment
from tests.support.command import output_of

TF32, CONVOLVED = "tf32", "convolved"
USER = ("user_lookup", "user_spread", "user_shift", "user_wide", "user_tall")
NAMES = ("ranker", "logarithm", "jagged", "scatter", *USER)
STATIC = "static"  # a directory below the zoo's
COMPILER = "/usr/bin/g++"


@dataclass(frozen=True)
class CudaZoo:
    """A directory of packages made by `tests.zoo.build NAME DIRECTORY cuda`."""

    directory: Path

    def package(self, name: str) -> Path:
        return self.directory / f"{name}.pt2"

    def inputs(self, name: str, kind: str) -> Path:
        return self.directory / f"{name}.{kind}.pt"

    def call(self, name: str, inputs: str | list[TensorSpec]) -> PackageWorkload:
        """The package with inputs of one kind (`inputs` are good, `bad-index` and others are not)."""
        given = self.inputs(name, inputs) if isinstance(inputs, str) else inputs
        return PackageWorkload(package=self.package(name), inputs=given, timeout_s=60)

    def exported(self, name: str, inputs: str) -> ExportedWorkload:
        """The package's exported program, compiled with the zoo's cache."""
        return ExportedWorkload(
            exported=self.directory / f"{name}.exported.pt2",
            inputs=self.inputs(name, inputs),
            env={"TORCHINDUCTOR_CACHE_DIR": torch_environment()["TORCHINDUCTOR_CACHE_DIR"]},
            timeout_s=150,
        )

    def static_call(self) -> PackageWorkload:
        """Good inputs for a package compiled with a static libstdc++."""
        package = self.directory / STATIC / "ranker.pt2"
        return PackageWorkload(package=package, inputs=self.inputs("ranker", "inputs"), timeout_s=60)


def make(directory: Path) -> CudaZoo:
    """Make the packages for the tests of tools."""
    (directory / STATIC).mkdir(parents=True, exist_ok=True)
    wanted = [(name, directory, "") for name in NAMES]
    make_tf32(directory)
    return _make(directory, [*wanted, ("ranker", directory / STATIC, static_compiler(directory))])


def make_tf32(directory: Path) -> None:
    """Make the packages whose products use TF32."""
    if not (directory / f"{TF32}.pt2").exists():
        argv = [sys.executable, "-W", "ignore", "-m", "tests.gpu.tf32_model", str(directory)]
        env = torch_environment()
        done = output_of(argv, env=env, cwd=ROOT)
        assert done.returncode == 0, f"{TF32}: {done.stderr[-4000:]}"


def _make(directory: Path, wanted: Sequence[tuple[str, Path, str]]) -> CudaZoo:
    """Compile missing packages. Each compile has its own cache, so that none waits for another."""
    missing = [one for one in wanted if not (one[1] / f"{one[0]}.pt2").exists()]
    with ThreadPoolExecutor(len(missing) or 1) as pool:
        list(pool.map(lambda one: _compile(*one), missing))
    return CudaZoo(directory)


def _compile(name: str, directory: Path, compiler: str) -> None:
    """Inductor's cache does not know the linker behind a script, so our own compiler gets its own cache."""
    env = torch_environment()
    if compiler:
        env.update(CXX=compiler, TORCHINDUCTOR_CACHE_DIR=str(directory / "cache"))
    argv = [sys.executable, "-W", "ignore", "-m", "tests.zoo.build", name, str(directory), "cuda"]
    done = output_of(argv, env=env, cwd=ROOT)
    assert done.returncode == 0, f"{name}: {done.stderr[-4000:]}"


def static_compiler(directory: Path) -> str:
    """Write a script that is g++ with a static C++ runtime, as some toolchains are by default."""
    script = directory / "static-g++"
    # Only links get the option: with it, g++ would also link a precompiled header.
    script.write_text(
        f'#!/bin/sh\ncase " $* " in *" -shared "*) set -- "$@" -static-libstdc++ ;; esac\n'
        f'exec {plain_compiler()} "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


def plain_compiler() -> str:
    """The distribution's g++, which links libstdc++ dynamically."""
    return COMPILER if Path(COMPILER).exists() else shutil.which("g++") or os.environ.get("CXX", "g++")
