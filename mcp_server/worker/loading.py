"""Loads packages and exported programs, updates their constants as captured, and compiles with options.

Torch 2.13 cannot save or reload programs with some higher-order operators (flex_attention), sparse weights or
a user's Triton kernels. To get such a program, the script that compiles it is run again.
"""

from __future__ import annotations

import io
import json
import math
import os
import runpy
import struct
import sys
import time
import zipfile
from functools import partial
from typing import Any, Callable

import torch
from torch.utils import _pytree

from .encode import decode
from .events import Compiled, NotApplied
from .imports import module_of, run
from .inputs import apply, load_file, read
from .protocol import (
    CompileRequest,
    Configs,
    ExportedRequest,
    LoadRequest,
    MadeBy,
    RecompileRequest,
    ReplayRequest,
    Step,
)
from .report import Refused, Report
from .tensors import dtype_name

# A runner does not copy user-managed weights: they must live as long as this process.
_alive: list[dict[str, torch.Tensor]] = []


def load(request: LoadRequest, report: Report, *, weights: bool = True) -> Any:
    """The `AOTIModelPackageLoader` of a package.

    `load_package` (torch/_inductor/package/package.py, 2.8-2.15) would probe the CPU's ISA (tens of seconds
    on some machines), and hide the first error behind a second attempt. Neither of the two loads weights in
    files next to the .so, and a call without them crashes. With `weights`, this function loads them.
    """
    package = request["package"]
    if not os.path.exists(package):
        raise Refused("no such package", package)
    model, threads = request.get("model_name", "model"), request.get("run_single_threaded", False)
    options = (threads, request.get("num_runners", 1), request.get("device_index", -1))
    report.phase("loading", package)
    try:
        loader = torch._C._aoti.AOTIModelPackageLoader(package, model, *options)
    except RuntimeError as error:
        report.phase("load_failed", "{}: {}".format(type(error).__name__, error)[:4000])
        from torch._inductor.package import load_package

        report.phase("loading", package)
        loader = load_package(package, model, *options).loader
    report.phase("loaded", package)
    if weights and zipfile.is_zipfile(package):
        _load_weight_files(loader, package, model)
    return loader


def _load_weight_files(loader: Any, package: str, model: str) -> None:
    """Give `loader` the weights that the package keeps outside its library, if any.

    This is done as in `load_pt2(..., load_weights_from_disk=True)` (torch/export/pt2_archive/_package.py,
    2.9-2.15, for packages made with `package_constants_on_disk_format="pickle_weights"`).
    """
    with zipfile.ZipFile(package) as archive:
        members = {name.partition("/")[2]: name for name in archive.namelist()}
        config = members.get("data/aotinductor/{}/weights_config.json".format(model))
        places = json.loads(archive.read(config)) if config else {}
        files: dict[str, torch.Tensor] = {
            file: torch.load(io.BytesIO(archive.read(members["data/weights/" + file])), weights_only=True)
            for file in {place[0] for place in places.values()}
        }
    if not places:
        return
    weights = {
        name: files[file].as_strided(shape, stride, offset)
        for name, (file, shape, stride, offset) in places.items()
    }
    _alive.append(weights)
    use_inactive, check_full_update, user_managed = False, True, True
    loader.load_constants(weights, use_inactive, check_full_update, user_managed)


def load_captured(request: ReplayRequest, report: Report, *, weights: bool) -> Any:
    """Load the package, or a bare .so like `torch._export.aot_load`. Make `current_device` current."""
    if request.get("library"):
        library, device = request["library"], request.get("device", "cpu")
        report.phase("loading", library)
        if device == "cpu":
            loader = torch._C._aoti.AOTIModelContainerRunnerCpu(library, 1)
        else:
            loader = torch._C._aoti.AOTIModelContainerRunnerCuda(library, 1, device)
        report.phase("loaded", library)
    else:
        loader = load(request, report, weights=weights)
    place = request.get("current_device")
    if place is not None and (place or torch.cuda.is_initialized()):
        torch.cuda.set_device(place)  # because the load may have made another device current
    return loader


def given_constants(step: Step) -> dict[str, torch.Tensor]:
    """The constants of an update, by name."""
    if "own" in step:
        own = step["own"]
        dtype = getattr(torch, own["dtype"])
        size = os.path.getsize(step["file"]) // torch.empty((), dtype=dtype).element_size()
        flat = torch.from_file(step["file"], shared=False, size=size, dtype=dtype)
        value = flat.as_strided(own["shape"], own["stride"])
        factor = own["factor"]
        if factor is not None and not value.any():  # no factor changes zeros
            value = torch.linspace(1, 2, value.numel()).reshape(value.shape).to(dtype)
        made = torch.nan_to_num(value, 0.0, 0.0, -math.inf) if factor is None else value * factor
        # An update with a tensor on another device is rejected (model_container.h of aoti_runtime, 2.13).
        return {own["name"]: made.to(own["device"])}
    if step.get("program"):
        program = torch.export.load(step["file"])
        held = {**program.constants, **program.state_dict}
        return {name: value.detach() for name, value in held.items() if isinstance(value, torch.Tensor)}
    return dict(load_file(step["file"]))


FULL_UPDATE = 1  # place of `check_full_update` among the arguments after the constants


def update_package(
    loader: Any, step: Step, report: Report, changed: ReplayRequest | None = None
) -> dict[str, torch.Tensor]:
    """Apply an update, altered by `changed`. Return its constants, which the caller must keep alive."""
    changed = changed or {}
    cast = changed.get("cast", {})
    constants = given_constants(step)
    if "names" in step:
        constants = {name: constants[name] for name in step["names"]}
    if step.get("only_known"):
        known = set(loader.get_constant_fqns())
        unknown = sorted(constants.keys() - known)
        constants = {name: value for name, value in constants.items() if name in known}
        if not constants:
            names = ", ".join(sorted(known)[:40])
            raise Refused("the package has none of these constants", unknown[:10], names)
    for name in constants.keys() & cast.keys():
        constants[name] = constants[name].to(getattr(torch, cast[name]))
    for name in constants.keys() & set(changed.get("copied", ())):
        constants[name] = constants[name].clone()
    exchanged = changed.get("exchanged", {})
    constants = {name: constants.get(exchanged.get(name, name), value) for name, value in constants.items()}
    arguments = list(step.get("arguments", ()))
    if omitted := constants.keys() & set(changed.get("omitted", ())):
        constants = {name: value for name, value in constants.items() if name not in omitted}
        arguments[FULL_UPDATE : FULL_UPDATE + 1] = [False]
        if not constants:
            return {}
    report.phase("updating_constants", step["how"])
    getattr(loader, step["how"])(constants, *arguments)
    report.phase("updated_constants")
    return constants


def update_program(module: Any, step: Step, report: Report) -> None:
    """Apply an update to an eager module. Report `not_applied` for each constant that does not fit it."""
    known = constants_of(module)
    known.update({name.replace(".", "_"): tensor for name, tensor in known.items()})
    for name, value in load_file(step["file"]).items():
        own = known.get(name)
        if own is None:
            report.event(NotApplied(name, "the program has no constant of that name"))
        elif own.shape != value.shape or own.dtype != value.dtype:
            sides = ("{} {}".format(dtype_name(one.dtype), list(one.shape)) for one in (value, own))
            report.event(NotApplied(name, "it is {} and the program has {}".format(*sides)))
        else:
            with torch.no_grad():
                own.copy_(value)


def constants_of(module: Any) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


# Members of an archive of torch.export.save: since 2.8, and before.
MARKS = ("models/", "serialized_exported_program.json")
EXPORTED = "a file of torch.export.save"


def load_exported(request: ExportedRequest, report: Report) -> Any:
    """Load the program from its file, or, if that cannot be loaded, from `made_by`. May raise `Refused`."""
    path, made_by = request.get("exported"), request.get("made_by")
    if path is None and made_by:
        return recapture(made_by, report)
    try:
        _check_exported(str(path))
        report.phase("loading_exported", str(path))
        return torch.export.load(str(path))
    except Exception as error:
        if not made_by:
            raise
        report.phase("not_loaded", str(error)[:500])
        return recapture(made_by, report)


def _check_exported(path: str) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise Refused("the exported program cannot be read: {}".format(error), path, EXPORTED) from None
    if not any(mark in name for name in names for mark in MARKS):
        packaged = any("data/aotinductor/" in name for name in names)
        kind = "an AOTInductor package" if packaged else "another kind of archive"
        raise Refused("this is {}, not an exported program".format(kind), path, EXPORTED)


class _ProgramFound(BaseException):
    """Ends the script. Not an Exception, so that the script does not catch it."""


def recapture(made_by: MadeBy, report: Report) -> Any:
    """Run the script up to the compile that `made_by` names. Return its program. May raise `Refused`."""
    import torch._inductor
    import torch.export

    script = made_by["script"]
    report.phase("taking", script)
    names = ("aoti_compile_and_package", "aot_compile")
    originals = {name: getattr(torch._inductor, name) for name in names if hasattr(torch._inductor, name)}
    compiles, inside = 0, False

    def counting(function: Callable[..., Any], program: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal compiles, inside
        if inside:  # a nested compile is part of the outer one
            return function(program, *args, **kwargs)
        if compiles == made_by["compile"]:
            raise _ProgramFound(program)
        compiles, inside = compiles + 1, True
        try:
            return function(program, *args, **kwargs)
        finally:
            inside = False

    try:
        for name, function in originals.items():
            setattr(torch._inductor, name, partial(counting, function))
        # Like `python script args`, but operators that the script registers stay registered.
        sys.argv[:] = [script, *made_by.get("args", ())]
        sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
        runpy.run_path(script, run_name="__main__")
    except _ProgramFound as found:
        if isinstance(found.args[0], torch.export.ExportedProgram):
            return found.args[0]
    except SystemExit:
        pass
    finally:
        for name, function in originals.items():
            setattr(torch._inductor, name, function)
    raise Refused("the script did not reach the compile of its program again", script)


def load_with_inputs(request: ExportedRequest, report: Report) -> tuple[Any, tuple[Any, ...], Any]:
    """The program, args and kwargs."""
    program = load_exported(request, report)
    report.phase("reading_inputs")
    return (program, *arguments(program, request))


def arguments(program: Any, request: ExportedRequest) -> tuple[tuple[Any, ...], Any]:
    """The requested (args, kwargs) with the requested changes."""
    given = _given_arguments(program, request)
    leaves, tree = _pytree.tree_flatten(given)
    tensors = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    for place, tensor in zip(tensors, apply([leaves[n] for n in tensors], request.get("changes") or ())):
        leaves[place] = tensor
    args, kwargs = _pytree.tree_unflatten(leaves, tree)
    return args, kwargs


def _given_arguments(program: Any, request: ExportedRequest) -> tuple[tuple[Any, ...], Any]:
    """The requested (args, kwargs), or the program's own example inputs if none are requested."""
    if request.get("inputs") is None:
        args, kwargs = program.example_inputs
        return tuple(args), dict(kwargs)
    inputs, spec = read(request.get("inputs")), program.call_spec.in_spec
    if inputs.flat:  # captured leaves, put into the tree that the program was exported with
        if spec.num_leaves != len(inputs.args):
            what = "the captured leaves do not fill the program's inputs"
            raise Refused(what, len(inputs.args), str(spec.num_leaves))
        args, kwargs = _pytree.tree_unflatten(list(inputs.args), spec)
        return tuple(args), dict(kwargs)
    names = _pytree.tree_unflatten([0] * spec.num_leaves, spec)[1]
    if inputs.mapping and set(inputs.args[0]) == set(names):
        return (), dict(inputs.args[0])
    return inputs.args, inputs.kwargs


def operate_compile(request: CompileRequest, report: Report) -> None:
    """Compile the program. Report `compiled`."""
    package, seconds = compiled(load_exported(request, report), request, report)
    report.event(Compiled(package, seconds, os.path.getsize(package)))


def compiled(
    program: Any, request: CompileRequest, report: Report, more: Configs | None = None
) -> tuple[str, float]:
    """Compile a program to `package_path`, with `more` options. Return the path and the seconds."""
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

    The source does not say which configuration autotuning chose. Take the one with which `original` compiles
    to the code in the package. If there is none, because an assertion puts its line number into the code,
    take the only configuration with the warps, shared bytes and blocks of the launch.
    """
    kernel, shared = request["kernel"], request.get("shared")
    if not torch.cuda.is_available():
        raise Refused("compiling a Triton kernel needs the GPU that it is for", kernel)
    from torch._inductor import config

    config.use_static_cuda_launcher = False  # it does not keep the cubin (torch/_inductor/runtime, 2.8-2.15)
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
    """Compile a kernel as Inductor does. Return one result for each configuration."""
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
    """The result with the configuration of the package, and by what it was recognised."""
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
    """The code sections of a 64-bit ELF file by name. Empty for any other file.

    Line tables are omitted: they have the source's path. Offsets: ELF specification, version 1.2.
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
