"""`recompile_triton`: a Triton kernel of a package compiled again from a changed source, by Inductor."""

from __future__ import annotations

import importlib.util
import struct
import sys
from typing import Any, Optional

from .lease import take
from .report import Refused, Report


def operate(request: dict[str, Any], report: Report) -> None:
    """Compile the file `changed`, and write its binary to `target`; event `recompiled`.

    Request: `kernel`, the name of the kernel in both files; `original`, the package's source; `binary`, the
    cubin that the package has of it; `num_warps` and `shared`, with which the wrapper launches it. The
    configuration that autotuning chose is not in the source: it is the one whose compile of `original` gives
    the package's own code, else the only one with the number of warps and shared bytes of the launch.
    """
    import torch
    from torch._inductor import config

    if not torch.cuda.is_available():
        raise Refused("compiling a Triton kernel needs the GPU that it is for", request["kernel"])
    config.use_static_cuda_launcher = False  # it keeps no binary (torch/_inductor/runtime, 2.8-2.15)
    take()  # compiling a kernel loads it
    report.event("compiling_kernel", kernel=request["kernel"])
    before = _compiled(str(request["original"]), str(request["kernel"]), "aoti_debug_original")
    chosen, by = _chosen(before, request)
    after = _compiled(str(request["changed"]), str(request["kernel"]), "aoti_debug_changed")
    found = next((one for one in after if _settings(one) == _settings(before[chosen])), None)
    if found is None:
        raise Refused("the changed source has other configurations", request["kernel"])
    metadata = found.kernel.metadata
    if int(metadata.shared) > int(request["shared"] or 0):
        raise Refused(
            "the changed kernel needs more shared memory than the package gives it",
            int(metadata.shared),
            "at most {} bytes".format(request["shared"]),
        )
    with open(str(request["target"]), "wb") as file:
        file.write(found.kernel.asm["cubin"])
    report.event("recompiled", by=by, symbol=str(metadata.name), shared=int(metadata.shared))


def _compiled(path: str, name: str, module: str) -> list[Any]:
    """The results of Inductor's own compile, one for each configuration."""
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    spec.loader.exec_module(loaded)
    kernel = getattr(loaded, name, None)
    if kernel is None or not hasattr(kernel, "precompile"):
        raise Refused("the source has no such kernel of Inductor", name)
    kernel.precompile()
    results = list(kernel.compile_results)
    if not results:
        raise Refused("the kernel compiles in no configuration", name)
    return results


def _chosen(results: list[Any], request: dict[str, Any]) -> tuple[int, str]:
    """The place of the configuration that the package was compiled with, and how it is known."""
    with open(str(request["binary"]), "rb") as file:
        code = code_of(file.read())
    same = [place for place, one in enumerate(results) if code_of(one.kernel.asm["cubin"]) == code]
    if code and same:
        return same[0], "the same code"
    alike = [place for place, one in enumerate(results) if _launched(one) == _asked(request)]
    if len(alike) != 1:
        raise Refused(
            "it is not known with which configuration the kernel was compiled",
            [_settings(one) for one in results][:8],
            "one configuration that gives the package's code",
        )
    return alike[0], "warps and shared memory of the launch"


def code_of(binary: bytes) -> "dict[str, bytes]":
    """The sections with code of a 64-bit ELF file; line tables beside them name the source's path.

    Empty for what is no such file. Offsets as in the ELF specification, version 1.2.
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


def _launched(result: Any) -> tuple[int, int]:
    return int(result.config.num_warps), int(result.kernel.metadata.shared)


def _asked(request: dict[str, Any]) -> "tuple[Optional[int], Optional[int]]":
    return request.get("num_warps"), request.get("shared")
