"""Opens an AOTInductor package: metadata, proxy nodes, constants, weights.

Nothing is loaded, executed, unpickled or extracted.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from mcp_server.errors import argument, read_json
from mcp_server.package.dataflow import Dataflow
from mcp_server.package.defects import Library, LibraryError, find_defects, read_library
from mcp_server.package.members import (
    Container,
    DirectoryContainer,
    Member,
    ModelFiles,
    ZipContainer,
    find_models,
    flat_model,
    read_text,
)
from mcp_server.package.problems import Defect, PackageError, check_is_zip, no_model
from mcp_server.package.signature import CompiledInput, Signature, read_signature
from mcp_server.package.terms.term import dtype_of
from mcp_server.package.wrapper import Wrapper, read_wrapper

_FIELD = re.compile(r"constants_info_\[(?P<number>\d{1,6})\]\.(?P<field>\w+) = (?P<value>.*?);\s*$", re.M)
_INCLUDED = re.compile(r":\s*AOTInductorModelBase\([^{]*?,\s*(true|false)\)\s*\{", re.S)
DEFAULT_MODEL = "model"
_CAPABILITY = re.compile(r"DeviceProperties\(type='cuda'[^)]*?\bcc=(\d+)")


@dataclass(frozen=True)
class Metadata:
    """The content of `*_metadata.json`. torch 2.8 and 2.9 write only the device, 2.10 and later all fields.

    `isa` lists the vector instruction sets of the compiling CPU ("AVX512", "AVX512_VNNI").
    `compute_capability` is digits such as "90"; None on the CPU.
    """

    device: str | None = None
    platform: str | None = None
    machine: str | None = None
    isa: tuple[str, ...] = ()
    compute_capability: str | None = None


def read_metadata(text: str) -> Metadata:
    """Parse `*_metadata.json`. Raise `ValueError` for text that is not a JSON object."""
    raw = read_json(text)
    if not isinstance(raw, dict):
        raise ValueError("metadata is not a JSON object")
    values = {str(key): str(value) for key, value in raw.items()}
    return Metadata(
        device=values.get("AOTI_DEVICE_KEY") or None,
        platform=values.get("AOTI_PLATFORM") or None,
        machine=values.get("AOTI_MACHINE") or None,
        isa=tuple(values.get("AOTI_CPU_ISA", "").split()),
        compute_capability=values.get("AOTI_COMPUTE_CAPABILITY") or None,
    )


def read_proxy_calls(text: str) -> tuple[dict[str, Any], ...]:
    """Read the calls that the proxy executor makes, in order, from `<hash>.wrapper.json`.

    Raise `ValueError` for text that is not a node list.
    """
    raw = read_json(text)
    if not isinstance(raw, dict) or not isinstance(raw.get("nodes"), list):
        raise ValueError("no list of nodes")
    nodes = (entry.get("node") for entry in raw["nodes"] if isinstance(entry, dict))
    return tuple(node if isinstance(node, dict) else {} for node in nodes)


@dataclass(frozen=True)
class CompiledConstant:
    """One constant. `fqn` is its name in the model, `bytes` its size (on the CPU, a multiple of 64).

    `kind` is Parameter, Buffer, TensorConstant, FoldedConstant or Unknown.
    """

    index: int
    name: str
    fqn: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    bytes: int
    device_type: str
    kind: str
    folded: bool


def read_constants(wrapper: str) -> tuple[CompiledConstant, ...]:
    """Parse `constants_info_[i]` in a wrapper's text (torch 2.8-2.15, cpp_wrapper_cpu.py)."""
    start = wrapper.find("constants_info_[")
    end = wrapper.find("const_run_impl(", max(start, 0))
    found: dict[int, dict[str, str]] = defaultdict(lambda: defaultdict(str))
    for match in _FIELD.finditer(wrapper[start : end if end > 0 else None] if start >= 0 else ""):
        found[int(match["number"])][match["field"]] = match["value"]
    constants = []
    for index, fields in sorted(found.items()):
        shape, stride, size = (
            tuple(map(int, re.findall(r"-?\d{1,19}", fields[name])))
            for name in ("shape", "stride", "data_size")
        )
        name, dtype = fields["name"].strip('"'), fields["dtype"].rpartition("cached_torch_dtype_")[2]
        constants.append(
            CompiledConstant(
                index=index,
                name=name,
                fqn=fields["original_fqn"].strip('"') or name,
                dtype=dtype_of(dtype.removeprefix("at::k").lower()) or dtype.rstrip(")"),
                shape=shape,
                stride=stride,
                bytes=size[0] if size else 0,
                device_type=fields["device_type"].rpartition("_")[2],
                kind=fields["type"].rstrip(")").rpartition("::")[2] or "Unknown",
                folded=fields["from_folded"] == "true",
            )
        )
    return tuple(constants)


Place = Literal["no_weights", "in_library", "appended", "blob", "weight_files", "absent", "unknown"]


@dataclass(frozen=True)
class Weights:
    """Where the weights are stored, and their size in bytes.

    in_library: section `.lrodata` of the .so. appended: after its ELF image, mapped at load
    (`force_mmap_weights`). blob: `*_weights.blob`. weight_files: `data/weights/` (`pickle_weights`). absent:
    the caller must load them before the first run.
    """

    place: Place
    bytes: int = 0


@dataclass(frozen=True)
class Package:
    """One model of a package. Properties are read on first use and cached."""

    path: Path
    container: Container
    models: tuple[str, ...]
    files: ModelFiles

    @property
    def model_name(self) -> str:
        return self.files.name

    @property
    def members(self) -> tuple[Member, ...]:
        """Every file of the archive, including files of other models."""
        return self.container.members

    @cached_property
    def wrapper_text(self) -> str:
        """The text of wrapper.cpp. Empty if the package has none."""
        return self._text(self.files.wrapper_source)

    @cached_property
    def kernel_text(self) -> str:
        """The text of kernel.cpp: the C++ kernels of a CPU package; on CUDA little more than a comment."""
        return self._text(self.files.kernel_source)

    @cached_property
    def wrapper(self) -> Wrapper:
        return read_wrapper(self.wrapper_text, self.kernel_text)

    @cached_property
    def flow(self) -> Dataflow:
        return Dataflow(self.wrapper.run)

    @cached_property
    def metadata(self) -> Metadata:
        """The metadata. All fields are empty if it is missing or unreadable; `defects` reports this."""
        try:
            return read_metadata(self._text(self.files.metadata) or "{}")
        except ValueError:
            return Metadata()

    @property
    def device_type(self) -> str | None:
        """cpu, cuda, xpu or mps, from the metadata or else the wrapper's input checks. None if unknown."""
        return self.metadata.device or next((i.device_type for i in self.inputs if i.device_type), None)

    @cached_property
    def compute_capability(self) -> str | None:
        """The CUDA compute capability as digits. Before torch 2.10, only Triton sources contain it."""
        match = _CAPABILITY.search(self.wrapper_text) if self.metadata.device == "cuda" else None
        return self.metadata.compute_capability or (match[1] if match else None)

    @cached_property
    def signature(self) -> Signature:
        return read_signature(self.wrapper_text)

    @property
    def inputs(self) -> tuple[CompiledInput, ...]:
        return self.signature.inputs

    @cached_property
    def constants(self) -> tuple[CompiledConstant, ...]:
        return read_constants(self.wrapper_text)

    @cached_property
    def kernel_information(self) -> dict[str, object]:
        """Raw provenance by `kernel:handle`. Empty unless compiled with `INDUCTOR_PROVENANCE=1`."""
        try:
            raw = read_json(self._text(self.files.kernel_information) or "{}")
        except (ValueError, PackageError):
            return {}
        return raw if isinstance(raw, dict) else {}

    @cached_property
    def proxy_calls(self) -> tuple[dict[str, Any], ...]:
        try:
            return read_proxy_calls(self._text(self.files.proxy_nodes) or '{"nodes": []}')
        except ValueError:
            return ()

    @property
    def proxy_nodes(self) -> tuple[str, ...]:
        """The operators of the proxy calls."""
        return tuple(str(call.get("target", "")) for call in self.proxy_calls)

    def proxy_target(self, index: int | None) -> str:
        """The operator of proxy node `index` as `namespace::name`. Empty if there is no such node."""
        return self.proxy_nodes[index] if index is not None and index < len(self.proxy_nodes) else ""

    @cached_property
    def library(self) -> Library | None:
        """Facts about the .so. None if it is missing or not a readable ELF file."""
        if self.files.library is None:
            return None
        try:
            with self.container.open(self.files.library.name) as stream:
                return read_library(stream)
        except LibraryError:
            return None

    @cached_property
    def weights(self) -> Weights:
        text, library, known = self.wrapper_text, self.library, self.signature.known
        if known and all(constant.folded for constant in self.constants):
            return Weights("no_weights")
        if self.listed_weights is not None:
            return Weights("weight_files", sum(member.size for member in self.listed_weights))
        if self.files.weights_blob is not None:
            return Weights("blob", self.files.weights_blob.size)
        if library is None:
            return Weights("unknown")
        if library.mapped_weights_bytes is not None:
            return Weights("appended", library.mapped_weights_bytes)
        # The last argument of the base constructor: whether the weights are included.
        included = _INCLUDED.search(text, max(text.find("AOTInductorModelBase(") - 200, 0))
        if library.constants_bytes and (included is None or included[1] == "true"):
            return Weights("in_library", library.constants_bytes)
        return Weights("absent" if known else "unknown")

    @cached_property
    def weight_places(self) -> dict[str, list[Any]]:
        """The content of `weights_config.json`, `{fqn: [file, shape, stride, offset]}`. Empty if invalid."""
        try:
            raw = read_json(self._text(self.files.weights_config))
        except ValueError:
            return {}
        known = isinstance(raw, dict) and all(isinstance(v, list) and v for v in raw.values())
        return raw if known else {}

    @property
    def listed_weight_names(self) -> tuple[str, ...] | None:
        """The file names in `weights_config.json`. None if there is no list."""
        return tuple(dict.fromkeys(str(value[0]) for value in self.weight_places.values())) or None

    @cached_property
    def listed_weights(self) -> tuple[Member, ...] | None:
        """The members that weights_config.json lists and the package contains. None if there is no list."""
        if self.listed_weight_names is None:
            return None
        wanted = {f"data/weights/{name}" for name in self.listed_weight_names}
        # Members have a top folder, so compare the names from `data/weights/` on.
        return tuple(m for m in self.members if m.name[max(m.name.find("data/weights/"), 0) :] in wanted)

    @cached_property
    def defects(self) -> tuple[Defect, ...]:
        """Missing or inconsistent parts. If a defect is fatal, loading or running fails."""
        return tuple(find_defects(self))

    def text(self, name: str) -> str:
        """The text of a member by its full name. Raises `PackageError` if it cannot be read."""
        return read_text(self.container, name)

    def _text(self, member: Member | None) -> str:
        return read_text(self.container, member.name) if member is not None else ""


def open_package(path: Path | str, model_name: str | None = None) -> Package:
    """Open a .pt2 file, an unpacked directory, or a .so next to its wrapper.cpp.

    `model_name` selects one of several models; the default is `model`, or the first. Raise `PackageError`
    with a stable `slug`. An incomplete package can be opened; `Package.defects` lists what is missing.
    """
    path = Path(path).expanduser()
    container, models = _contents(path)
    if not models:
        raise no_model(path, (member.name for member in container.members))
    default = DEFAULT_MODEL if DEFAULT_MODEL in models else next(iter(models))
    name = default if model_name is None else model_name
    if name not in models:
        wanted = name.lower()
        nearest = max(models, key=lambda model: SequenceMatcher(None, wanted, model.lower()).ratio())
        raise PackageError(
            "unknown_model",
            f"{path} has no model of this name",
            value=name,
            allowed=", ".join(models),
            next_call=f"give {argument('model_name')} {nearest}",
        )
    package = Package(path, container, tuple(models), models[name])
    # Every use needs these texts, so damage is reported now.
    _ = package.wrapper_text, package.kernel_text, package.metadata, package.proxy_nodes
    return package


def _contents(path: Path) -> tuple[Container, dict[str, ModelFiles]]:
    """The container and its models: of a .pt2, a .so, or an unpacked or flat directory."""
    if path.is_dir():
        for root in (path, *sorted(child for child in path.iterdir() if child.is_dir())):
            if (root / "data" / "aotinductor").is_dir():
                container: Container = DirectoryContainer(root)
                return container, find_models(container)
        container = DirectoryContainer(path, recursive=False)
        if models := flat_model(container):  # a flat directory, as a compile leaves it
            return container, models
        raise PackageError(
            "not_a_package_directory",
            f"{path} is a directory without data/aotinductor/<model>/ and without a wrapper.cpp",
            next_call="give the .pt2 file",
        )
    if path.suffix == ".so" and path.is_file():
        container = DirectoryContainer(path.parent, recursive=False)
        if models := flat_model(container, path.stem):
            return container, models
    check_is_zip(path)
    container = ZipContainer(path)
    return container, find_models(container)
