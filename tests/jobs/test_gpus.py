"""A GPU has one name, two jobs never hold it, and a lease ends with whoever holds it."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.errors import ProblemError
from mcp_server.jobs.gpus import Gpu, Waits, canonical_name, device_names, leased, read_listing


@pytest.fixture(autouse=True)
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of these tests alone."""
    monkeypatch.setattr("mcp_server.jobs.gpus.lease_root", lambda: tmp_path)


@pytest.mark.anyio
async def test_second_job_waits(tmp_path: Path) -> None:
    """A lease is waited for, the holder is named, and it is had once the first is over."""
    order: list[str] = []

    async def second() -> None:
        async with leased(["0", "1"], Waits("job two", order.append)):
            order.append("second runs")

    async with anyio.create_task_group() as tasks, leased(["1"], Waits("job one")):
        tasks.start_soon(second)
        await anyio.sleep(0.15)
        order.append("first ends")
    assert order == ["waiting for GPU 1, in use by job one", "first ends", "second runs"]


@pytest.mark.anyio
async def test_lock_that_is_a_link(tmp_path: Path) -> None:
    """A link in place of a lock is refused, not written through."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "gpu-0.lock").symlink_to(victim)
    with pytest.raises(ProblemError):
        async with leased(["0"], Waits("one")):
            pass
    assert victim.read_text() == "precious"


# As the NVIDIA MIG User Guide prints it, with a second GPU that is not divided.
LISTING = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 1g.5gb      Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1g.5gb      Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 1: NVIDIA H200 (UUID: GPU-e6489c45-5b68-3b03-bab7-0e7c8e809643)
"""
FIRST_PART, SECOND_PART = (
    "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f",
    "MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb",
)
WHOLE = "GPU-e6489c45-5b68-3b03-bab7-0e7c8e809643"
KNOWN = read_listing(LISTING)


@pytest.mark.parametrize(
    ("gpus", "visible", "names"),
    [
        ((0, 1), None, ("0", "1")),
        ((1, 0, 1), None, ("0", "1")),
        ((0,), "", ()),
        ((0,), "3,2", ("3",)),
        ((0, 1), "GPU-abc, 5", ("5", "GPU-abc")),
        ((7,), "3", ("7",)),
    ],
)
def test_device_names(gpus: tuple[int, ...], visible: str | None, names: tuple[str, ...]) -> None:
    """An index means what it means to the child, under its CUDA_VISIBLE_DEVICES."""
    assert device_names(gpus, visible) == names


def test_the_listing_is_read() -> None:
    """Each GPU with its MIG devices; what is no listing has none."""
    assert (
        Gpu(0, "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77", (FIRST_PART, SECOND_PART)),
        Gpu(1, WHOLE),
    ) == KNOWN
    failed = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    assert read_listing("No devices were found\n") == read_listing(failed) == ()


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("1", "1"),
        (WHOLE, "1"),
        ("GPU-e64", "1"),
        ("gpu-E6489C45", "1"),
        ("0", FIRST_PART),
        ("GPU-5d5ba0d6", FIRST_PART),
        (FIRST_PART, FIRST_PART),
        ("MIG-cba", SECOND_PART),
        ("MIG-c", "MIG-c"),
        ("GPU-", "GPU-"),
        ("GPU-0000", "GPU-0000"),
        ("7", "7"),
    ],
)
def test_one_gpu_has_one_name(entry: str, name: str) -> None:
    """Index, UUID and its beginning are one GPU; what is ambiguous or unknown keeps its name."""
    assert canonical_name(entry, KNOWN) == name


@given(st.lists(st.uuids(), min_size=1, max_size=8, unique=True), st.data())
def test_any_gpu_by_index_and_by_uuid_is_one_lease(uuids: list[object], data: st.DataObject) -> None:
    """On any machine both ways of making a GPU visible give the same name, and other GPUs other names."""
    lines = [f"GPU {index}: NVIDIA H200 (UUID: GPU-{uuid})" for index, uuid in enumerate(uuids)]
    known = read_listing("\n".join(lines))
    index = data.draw(st.integers(0, len(uuids) - 1))
    by_uuid = device_names((0,), f"GPU-{uuids[index]}", known)
    assert by_uuid == device_names((0,), str(index), known) == device_names((index,), None, known)
    assert len({canonical_name(f"GPU-{uuid}", known) for uuid in uuids}) == len(uuids)
