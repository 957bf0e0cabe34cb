"""Faults of a package's file and of the program around it."""

import zipfile
from collections.abc import Callable

from benchmarks.plant.faults import Draft, Fault, Truth

PACKAGE = ("invalid_package",)
MADE = Truth(kinds=("package",))
Bytes = Callable[[Draft, bytes], bytes]


def rewritten(change: Bytes) -> Callable[[Draft], Truth]:
    """Change the whole file."""

    def plant(draft: Draft) -> Truth:
        target = draft.folder / "changed.pt2"
        target.write_bytes(change(draft, draft.package.read_bytes()))
        draft.clean_package, draft.package = draft.package, target
        return MADE

    return plant


def member(ending: str, change: Callable[[Draft, bytes], bytes | None]) -> Callable[[Draft], Truth]:
    """Change one member, with a right checksum; None leaves it out."""

    def plant(draft: Draft) -> Truth:
        target = draft.folder / "changed.pt2"
        with zipfile.ZipFile(draft.package) as given, zipfile.ZipFile(target, "w") as made:
            for info in given.infolist():
                data: bytes | None = given.read(info)
                if info.filename.endswith(ending):
                    data = change(draft, data or b"")
                if data is not None:
                    made.writestr(info.filename, data)
        draft.clean_package, draft.package = draft.package, target
        return Truth(kinds=("package", "toolchain"))

    return plant


def cut(draft: Draft, data: bytes) -> bytes:
    return data[: draft.chance.randrange(len(data) // 10, len(data) - 100)]


def damaged_header(draft: Draft, data: bytes) -> bytes:
    """A flipped bit in an ELF file's first four bytes, or in its class."""
    changed = bytearray(data)
    changed[draft.chance.randrange(5)] ^= 1 << draft.chance.randrange(8)
    return bytes(changed)


def other_machine(draft: Draft, data: bytes) -> bytes:
    """Another machine in the ELF header: AArch64 or PowerPC."""
    return data[:18] + bytes([draft.chance.choice([0xB7, 0x15])]) + data[19:]


def pointer(draft: Draft, data: bytes) -> bytes:
    """What git leaves if the large file was not fetched."""
    digest = "".join(draft.chance.choice("0123456789abcdef") for _ in range(64))
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(data)}\n"
    return text.encode()


def lines_after(*lines: str) -> Callable[[Draft], Truth]:
    """Lines of the program after its call, which fail."""

    def plant(draft: Draft) -> Truth:
        draft.called += lines
        return Truth(kinds=("script",))

    return plant


def lines_before(kinds: tuple[str, ...], *lines: str) -> Callable[[Draft], Truth]:
    """Lines at the program's top, which make the rest of it fail."""

    def plant(draft: Draft) -> Truth:
        draft.top += lines
        return Truth(kinds=kinds)

    return plant


SCRIPT = ("script",)
FIRST = "first = outputs[0] if isinstance(outputs, (list, tuple)) else outputs"
FAULTS = (
    Fault("package_cut", PACKAGE, rewritten(cut)),
    Fault("package_empty", PACKAGE, rewritten(lambda *_: b"")),
    Fault("package_is_a_pointer", PACKAGE, rewritten(pointer)),
    Fault("library_cut", (*PACKAGE, "toolchain"), member(".so", cut)),
    Fault("library_missing", PACKAGE, member(".so", lambda *_: None)),
    Fault("library_header_damaged", (*PACKAGE, "toolchain"), member(".so", damaged_header)),
    Fault("library_of_other_machine", ("arch_mismatch", *PACKAGE, "toolchain"), member(".so", other_machine)),
    Fault(
        "index_error_after_the_call",
        ("script_error",),
        lines_after(FIRST, "best = [score.sum() for score in first][len(first) + 2]"),
        SCRIPT,
    ),
    Fault(
        "shape_error_after_the_call",
        ("script_error",),
        lines_after(FIRST, "projected = first.reshape(-1)[None] @ torch.zeros(3, 2)"),
        SCRIPT,
    ),
    Fault(
        "key_error_after_the_call",
        ("script_error",),
        lines_after('names = {0: "none"}', 'label = names["first"]'),
        SCRIPT,
    ),
    Fault(
        "package_moved",
        (*PACKAGE, "script_error"),
        lines_before(("package", "script"), 'here = here / "release"'),
        SCRIPT,
    ),
    Fault(
        "no_memory",
        ("out_of_memory",),
        lines_before(
            ("environment", "script", "package"),
            "import resource",
            'used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096',
            "resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, used + 2**20))",
        ),
        SCRIPT,
    ),
    Fault(
        "no_temporary_folder",
        ("environment",),
        lines_before(
            ("environment",),
            "import os, tempfile",
            'os.environ["TMPDIR"] = tempfile.tempdir = "/proc/no-such-folder"',
        ),
        SCRIPT,
    ),
)
