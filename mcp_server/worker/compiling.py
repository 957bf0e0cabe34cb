"""Compiles an exported program with chosen options, or a Triton kernel of a package from a changed source."""

from __future__ import annotations

import os
import struct
import time
from typing import Any, Optional

import torch

from .encode import decode
from .events import Compiled
from .imports import module_of, run
from .loading import load_exported
from .protocol import CompileRequest, Configs, RecompileRequest
from .report import Refused, Report


def operate_compile(request: CompileRequest, report: Report) -> None:
    """Event `compiled`, after `compiling`."""
    package, seconds = compiled(load_exported(request, report), request, report)
    report.event(Compiled(package, seconds, os.path.getsize(package)))


def compiled(
    program: Any, request: CompileRequest, report: Report, more: Optional[Configs] = None
) -> tuple[str, float]:
    """The package compiled from a program, at `package_path`, and the compile time in seconds.

    `more` are options in addition to those of the request.
    """
    configs = {**decode(request.get("inductor_configs") or {}), **(more or {})}
    report.phase("importing_inductor")
    from torch._inductor import aoti_compile_and_package

    report.phase("compiling", str(configs))
    start = time.monotonic()
    with torch.no_grad():
        package = aoti_compile_and_package(
            program, package_path=request["package_path"], inductor_configs=configs
        )
    return package, time.monotonic() - start


def operate_recompile_triton(request: RecompileRequest, report: Report) -> None:
    """Compile the file `changed` with Inductor, and write its binary to `target`; event `recompiled`.

    The configuration that autotuning chose is not in the source: it is the one whose compile of `original`
    gives the package's own code, else the only one with the warps, shared bytes and blocks of the launch.
    Code with an assertion contains its line number, and so differs if it moves to another file.
    """
    kernel, shared = request["kernel"], request.get("shared")
    if not torch.cuda.is_available():
        raise Refused("compiling a Triton kernel needs the GPU that it is for", kernel)
    from torch._inductor import config

    config.use_static_cuda_launcher = False  # it keeps no binary (torch/_inductor/runtime, 2.8-2.15)
    report.phase("compiling_kernel", kernel)
    before = _compiled(request["original"], kernel, "aoti_debug_original")
    chosen, by = _chosen(before, request)
    after = _compiled(request["changed"], kernel, "aoti_debug_changed")
    found = next((one for one in after if _settings(one) == _settings(chosen)), None)
    if found is None:
        raise Refused("the changed source has other configurations", kernel)
    metadata = found.kernel.metadata
    if int(metadata.shared) > int(shared or 0):
        what = "the changed kernel needs more shared memory than the package gives it"
        raise Refused(what, int(metadata.shared), "at most {} bytes".format(shared))
    with open(request["target"], "wb") as file:
        file.write(found.kernel.asm["cubin"])
    report.phase("recompiled", "{}, chosen by {}".format(metadata.name, by))


def _compiled(path: str, name: str, module: str) -> list[Any]:
    """The results of Inductor's own compile, one for each configuration."""
    loaded = module_of(path, module)
    run(loaded)
    kernel = getattr(loaded, name, None)
    if kernel is None or not hasattr(kernel, "precompile"):
        raise Refused("the source has no such kernel of Inductor", name)
    kernel.precompile()
    results = list(kernel.compile_results)
    if not results:
        raise Refused("the kernel compiles in no configuration", name)
    return results


def _chosen(results: list[Any], request: RecompileRequest) -> tuple[Any, str]:
    """The result with the configuration that the package was compiled with, and how it was identified."""
    with open(request["binary"], "rb") as file:
        code = code_of(file.read())
    same = [one for one in results if code_of(one.kernel.asm["cubin"]) == code]
    if code and same:
        return same[0], "the same code"
    launched = (request.get("num_warps"), request.get("shared"))
    blocks = request.get("blocks", {}).items()
    made = ((one, int(one.config.num_warps), int(one.kernel.metadata.shared)) for one in results)
    alike = [
        one
        for one, warps, shared in made
        if (warps, shared) == launched
        and all(one.config.kwargs.get(name, size) == size for name, size in blocks)
    ]
    if len(alike) != 1:
        raise Refused(
            "it is not known with which configuration the kernel was compiled",
            [_settings(one) for one in results][:8],
            "one configuration that gives the package's code",
        )
    return alike[0], "warps, shared memory and blocks of the launch"


def code_of(binary: bytes) -> dict[str, bytes]:
    """The sections with code of a 64-bit ELF file, without the line tables, which name the source's path.

    Empty for any other file. Offsets as in the ELF specification, version 1.2.
    """
    if binary[:5] != b"\x7fELF\x02" or len(binary) < 64:
        return {}
    (table,) = struct.unpack_from("<Q", binary, 0x28)
    size, count, names = struct.unpack_from("<HHH", binary, 0x3A)
    if table + size * count > len(binary) or size < 64:
        return {}
    headers = [struct.unpack_from("<IIQQQQ", binary, table + size * place) for place in range(count)]
    found = {}
    for name, _kind, _flags, _address, offset, length in headers:
        start = headers[names][4] + name
        text = binary[start : binary.find(b"\0", start)].decode("ascii", "replace")
        if text.startswith(".text"):
            found[text] = binary[offset : offset + length]
    return found


def _settings(result: Any) -> str:
    config = result.config
    return "{} warps={} stages={}".format(sorted(config.kwargs.items()), config.num_warps, config.num_stages)
