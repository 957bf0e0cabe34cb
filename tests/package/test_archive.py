"""Opening packages: real ones in every layout, incomplete ones, several models, also under several names."""

from __future__ import annotations

import os
import time
import zipfile
from pathlib import Path

import pytest

from mcp_server.package.archive import open_package
from mcp_server.package.defects import same_models
from mcp_server.package.problems import PackageError
from tests.conftest import ZooPackage
from tests.package.archives import (
    Members,
    added,
    changed,
    declared,
    members_of,
    name_ending,
    unweighted,
    without,
    write,
)


def test_a_real_package_is_described(zoo: ZooPackage) -> None:
    """Device, machine, constants, weights, outputs and provenance of a compiled model are read."""
    package = open_package(zoo("ranker"))
    assert (package.models, package.model_name, package.device_type) == (("model",), "model", "cpu")
    assert package.metadata.machine == os.uname().machine and package.metadata.platform == "linux"
    assert [constant.fqn for constant in package.constants] == [
        "table.weight",
        "hidden.weight",
        "hidden.bias",
        "head.weight",  # head.bias has four elements: constants that small become code
    ]
    table = package.constants[0]
    assert (table.dtype, table.shape, table.stride) == ("float32", (32, 16), (16, 1))
    assert (table.kind, table.bytes, table.device_type, table.folded) == ("Parameter", 2048, "cpu", False)
    assert package.weights.place == "in_library"
    assert package.weights.bytes == sum(constant.bytes for constant in package.constants)
    assert package.signature.output_count == 1
    assert package.kernel_information and 'extern "C"' in package.kernel_text
    assert package.defects == ()


def test_custom_operators_are_listed(zoo: ZooPackage) -> None:
    """The nodes of the proxy executor tell the operator."""
    assert open_package(zoo("plugin")).proxy_nodes == ("aotizoo::halve_rows",)


def test_directories_and_libraries_read_like_the_archive(zoo: ZooPackage, tmp_path: Path) -> None:
    """An unpacked package, the directory of its files, and its .so give the inputs of the .pt2."""
    expected = open_package(zoo("ranker")).inputs
    with zipfile.ZipFile(zoo("ranker")) as archive:
        archive.extractall(tmp_path)
    flat = next(tmp_path.rglob("*.wrapper.so")).parent
    for path in (tmp_path, flat.parents[2], flat, next(flat.glob("*.wrapper.so"))):
        assert open_package(path).inputs == expected, path


def test_a_compressed_copy_reads_the_same(zoo: ZooPackage, tmp_path: Path) -> None:
    """A package that somebody zipped again with deflate is read like the stored one."""
    copy = write(tmp_path / "copy.pt2", members_of(zoo("ranker")), zipfile.ZIP_DEFLATED)
    package, original = open_package(copy), open_package(zoo("ranker"))
    assert package.signature == original.signature and package.library == original.library


def test_one_of_several_models_is_chosen(zoo: ZooPackage, tmp_path: Path) -> None:
    """Models are distinguished by folder; a name that is not there lists those that are."""

    def add_second(members: Members) -> None:
        for name, data in list(members.items()):
            if "/model/" in name:
                members[name.replace("/model/", "/decoder/")] = data

    both = changed(zoo("ranker"), tmp_path / "both.pt2", add_second)
    assert open_package(both).models == ("model", "decoder")
    assert open_package(both).model_name == "model"
    assert open_package(both, "decoder").model_name == "decoder"
    with pytest.raises(PackageError) as caught:
        open_package(both, "nope")
    assert caught.value.slug == "unknown_model" and caught.value.allowed == "model, decoder"


@pytest.mark.parametrize(
    ("suffix", "slug", "fatal"),
    [
        (".wrapper.so", "missing_library", True),
        (".wrapper_metadata.json", "missing_metadata", True),
        (".kernel_metadata.json", "missing_metadata", True),
        (".wrapper.json", "missing_proxy_nodes", True),
        (".wrapper.cpp", "missing_wrapper_source", False),
    ],
)
def test_missing_members_are_defects(
    zoo: ZooPackage, tmp_path: Path, suffix: str, slug: str, fatal: bool
) -> None:
    """A package without one of its files still opens, and names what is missing."""
    package = open_package(changed(zoo("plugin"), tmp_path / "cut.pt2", without(suffix)))
    found = {defect.slug: defect.fatal for defect in package.defects}
    assert slug in found and found[slug] is fatal


@pytest.mark.parametrize(
    ("place", "slugs"), [(0, ["mixed_folders"]), (1, ["mixed_folders"]), (2, []), (None, [])]
)
def test_a_member_among_the_first_two_hides_the_model(
    zoo: ZooPackage, tmp_path: Path, place: int | None, slugs: list[str]
) -> None:
    """As torch 2.13 loads these four: only where the first two members share their folder."""
    members = list(members_of(zoo("ranker")).items())
    if place is not None:
        members.insert(place, ("MANIFEST.json", b"{}"))
    package = open_package(write(tmp_path / "sealed.pt2", dict(members)))
    assert [defect.slug for defect in package.defects] == slugs
    assert package.model_name == "model"


def test_sources_without_a_library_are_built_at_load(zoo: ZooPackage, tmp_path: Path) -> None:
    """package_cpp_only: no .so, but compile flags; that is a note and no missing library."""

    def sources_only(members: Members) -> None:
        library = name_ending(members, ".wrapper.so")
        del members[library]
        members[library.replace(".wrapper.so", ".wrapper_compile_flags.json")] = b"{}"

    package = open_package(changed(zoo("ranker"), tmp_path / "cpp.pt2", sources_only))
    assert [(d.slug, d.fatal) for d in package.defects] == [("built_at_load", False)]
    assert package.library is None and package.weights.place == "unknown"


def test_a_missing_kernel_binary_is_named(zoo: ZooPackage, tmp_path: Path) -> None:
    """A cubin that loadKernel names must be in the package; the compile-time directory does not count."""

    def load_a_cubin(members: Members) -> None:
        name = name_ending(members, ".wrapper.cpp")
        members[name] += b'kernels_.k = loadKernel("/build/ab/cd12.cubin", "k", 0, cubin_dir_);'

    path = changed(zoo("ranker"), tmp_path / "cuda.pt2", load_a_cubin)
    (defect,) = open_package(path).defects
    assert defect.slug == "missing_kernel_binary" and "cd12.cubin" in defect.what and defect.fatal
    assert open_package(changed(path, path, added("model/cd12.cubin", b"x"))).defects == ()


def test_metadata_of_another_device(zoo: ZooPackage, tmp_path: Path) -> None:
    """Metadata that names a device type for which neither the library nor the wrapper is contradicts them."""

    def stamp(members: Members) -> None:
        for name in [name for name in members if name.endswith("_metadata.json")]:
            members[name] = members[name].replace(b'"cpu"', b'"cuda"')

    (defect,) = open_package(changed(zoo("ranker"), tmp_path / "stamped.pt2", stamp)).defects
    assert defect.slug == "contradicted_device" and "library is for cpu" in defect.what and defect.fatal


def test_weights_outside_the_library(zoo: ZooPackage, tmp_path: Path) -> None:
    """Weight files are looked up by the config; a lost one is fatal; no weights at all is a warning."""
    config = b'{"table.weight": ["weight_0", [32, 16], [16, 1], 0], "head.bias": ["weight_1", [4], [1], 0]}'
    lost_path = changed(zoo("ranker"), tmp_path / "lost.pt2", added("model/weights_config.json", config))
    lost = open_package(changed(lost_path, lost_path, added("../weights/weight_0", b"12345678")))
    assert [d.slug for d in lost.defects] == ["missing_weights"] and lost.weights.bytes == 8

    path = changed(zoo("ranker"), tmp_path / "none.pt2", unweighted)
    without_weights = open_package(path)
    assert without_weights.weights.place == "absent"
    assert [d.slug for d in without_weights.defects] == ["weights_not_included"]
    blob = changed(path, path, added("model/x.wrapper_weights.blob", b"1234"))
    assert open_package(blob).weights.place == "blob" and open_package(blob).weights.bytes == 4


def test_gigabytes_of_weights_cost_nothing(zoo: ZooPackage, tmp_path: Path) -> None:
    """A 5 GB package (a sparse file) opens, with library and inputs, in less than a second of work."""
    path = changed(zoo("ranker"), tmp_path / "large.pt2", lambda m: None)
    hole = 5 << 30
    with zipfile.ZipFile(path, "a") as archive:
        large = declared("m/data/weights/weight_0", hole - 1024, archive.start_dir)
        archive.start_dir += hole
        archive.filelist.append(large)
        archive._didModify = True  # type: ignore[attr-defined]
    started = time.process_time()
    package = open_package(path)
    assert package.inputs and package.library is not None and package.weights.place == "in_library"
    assert sum(member.size for member in package.members) > 5_000_000_000
    assert time.process_time() - started < 1


def twice(members: Members) -> None:
    """The one model again, under the name `coast`."""
    again = {name.replace("/model/", "/coast/"): data for name, data in members.items()}
    members.update(again)


def twice_with_other_weights(members: Members) -> None:
    """The same, with a library of the same size and other bytes."""
    twice(members)
    library = name_ending(members, "wrapper.so").replace("/model/", "/coast/")
    members[library] = members[library][:-1] + bytes([members[library][-1] ^ 1])


@pytest.mark.parametrize(("change", "found"), [(twice, ("coast",)), (twice_with_other_weights, ())])
def test_models_that_are_the_same_byte_for_byte(
    zoo: ZooPackage, tmp_path: Path, change: object, found: tuple[str, ...]
) -> None:
    """They are reported as a note, since it may be intended. One different byte makes two models."""
    assert callable(change)
    package = open_package(changed(zoo("ranker"), tmp_path / "two.pt2", change), "model")
    assert same_models(package) == found
    assert [d.fatal for d in package.defects if d.slug == "same_model"] == [False] * len(found)


def test_a_single_model_has_no_twin(zoo: ZooPackage) -> None:
    """It is one under one name."""
    assert same_models(open_package(zoo("ranker"))) == ()
