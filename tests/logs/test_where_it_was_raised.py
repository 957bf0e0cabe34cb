"""What the place of an exception, and the lines around it, say about its cause."""

from __future__ import annotations

import pytest

from mcp_server.logs.facts import ErrorFact, LogFacts
from mcp_server.logs.log import read_log

TORCH = "/venv/lib/python3.11/site-packages/torch"
CALL = (
    f"{TORCH}/export/pt2_archive/_package.py",
    "__call__",
    "flat_outputs = self.loader.boxed_run(flat_inputs)",
)
COMPILE = (f"{TORCH}/_inductor/__init__.py", "aot_compile", "flat, options = _aoti_flatten_inputs(")
PYTREE = (f"{TORCH}/utils/_pytree.py", "treespec_dumps", "raise NotImplementedError(")
OWN = ("/app/serve.py", "main", "runner(x)")


def read(text: str, *frames: tuple[str, str, str], before: str = "") -> LogFacts:
    """The log of a traceback through these frames that ends in `text`."""
    places = [f'  File "{file}", line 7, in {name}\n    {code}' for file, name, code in frames]
    lines = "\n".join([before, "Traceback (most recent call last):", *places, text])
    return read_log(lines.splitlines())


def root_of(facts: LogFacts) -> ErrorFact:
    assert facts.root is not None
    return facts.root


@pytest.mark.parametrize(
    ("frames", "family", "first"),
    [
        ((OWN, CALL), "operator_refused", "input_mismatch"),
        ((OWN, CALL, OWN), "operator_raised", "custom_op"),
        ((OWN,), "script_exception", "script_error"),
        ((OWN, COMPILE, PYTREE), "compiler_exception", "compile_failure"),
    ],
)
def test_the_place_of_an_exception_decides_its_family(
    frames: tuple[tuple[str, str, str], ...], family: str, first: str
) -> None:
    """Inside a package call it is an operator's, below a compile the compiler's, else the script's."""
    root = read("RuntimeError: something unheard of", *frames).root
    assert root is not None and (root.family.id, root.candidates[0]) == (family, first)


@pytest.mark.parametrize(
    ("text", "frame", "category"),
    [
        ("KeyError: 'MODEL_DIR'", ("<frozen os>", "__getitem__", ""), "environment"),
        ("KeyError: 'MODEL_DIR'", OWN, "script_error"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/scratch/x'", COMPILE, "environment"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'words.txt'", OWN, "script_error"),
        ("made.up.BadBatch", OWN, "script_error"),
    ],
)
def test_what_the_machine_lacks_is_told_from_what_the_script_does(
    text: str, frame: tuple[str, str, str], category: str
) -> None:
    """An exception below os.environ or the compiler is the environment's, in a line of the script its own."""
    root = read(text, OWN, frame).root
    assert root is not None and root.category == category


@pytest.mark.parametrize(
    ("text", "category"),
    [
        (
            "torch._inductor.exc.InductorError: NotADirectoryError: [Errno 20] Not a directory: '/c/x'",
            "environment",
        ),
        ("torch._inductor.exc.InductorError: OSError: [Errno 28] No space left on device", "environment"),
        ("torch._inductor.exc.InductorError: MemoryError", "out_of_memory"),
    ],
)
def test_an_error_of_the_machine_inside_one_of_the_compiler(text: str, category: str) -> None:
    """What the compiler wraps decides, not the wrapper."""
    root = read(text, OWN, COMPILE).root
    assert root is not None and root.category == category


@pytest.mark.parametrize(
    ("before", "fatal"),
    [
        ("ERROR:intake:parcel refused", False),
        ("2026-01-02 03:04:05 ERROR parcel refused", False),
        (
            "W1120 22:23:52.231000 4351 torch/_inductor/package/package.py:120] Loading outdated pt2 file.",
            True,
        ),
        ("parcel 7", True),
    ],
)
def test_a_logged_traceback_was_caught(before: str, fatal: bool) -> None:
    """The line before a traceback shows whether the program's own logger printed it."""
    facts = read("ValueError: 3 fields for 9", OWN, before=before)
    assert facts.root is not None and facts.fatal is fatal


MISSING = "RuntimeError: Failed to find a generated cpp file or so file for model 'model' in the zip archive."


@pytest.mark.parametrize(
    ("members", "family"),
    [
        (["wear/models/model.json", "wear/data/weights/weight_0"], "not_compiled"),
        (["towns/data/aotinductor/lyon/a.wrapper.so", "towns/models/lyon.json"], "model_name"),
        (["MANIFEST.json", "towns/data/aotinductor/model/a.wrapper.so"], "other_folder"),
        (["tagger.pt2"], "other_archive"),
        (["meter-old/data.pkl", "meter-old/version", "meter-old/data/0"], "other_archive"),
        ([], "model_name"),
    ],
)
def test_the_members_of_an_archive_tell_what_it_is(members: list[str], family: str) -> None:
    """Exported programs, tensors and a zipped package are no models; one of other models lacks the name."""
    root = read(MISSING + "\n\nThe following files were found:\n" + "\n".join(members), OWN).root
    assert root is not None and (root.family.id, root.category) == (family, "invalid_package")


NO_FILES = (
    "[W1121 model_package_loader.cpp:932] Failed to remove temporary directory /tmp/a: Too many open files"
)


def test_a_package_that_cannot_be_opened() -> None:
    """It may be missing or unreadable; where the process has no files left, that is the cause."""
    text = "RuntimeError: Failed to initialize zip archive: file open failed"
    assert root_of(read(text, OWN)).candidates == ("invalid_package", "environment")
    full = root_of(read(text + "\n" + NO_FILES, OWN))
    assert (full.candidates, full.fields["detail"]) == (("environment",), "Too many open files")


COMMAND = "/opt/company-g++ /tmp/header.hpp -D TORCH_INDUCTOR_CPP_WRAPPER -D STANDALONE_TORCH_HEADER -O3"


@pytest.mark.parametrize(("header", "blind"), [("array", "/opt/company-g++"), ("omp.h", None)])
def test_a_compiler_without_its_own_library(header: str, blind: str | None) -> None:
    """Where a header of the C++ library is missing, the compiler of the command line is to blame."""
    lines = [COMMAND, "", "Output:", f"/v/common.h:4:10: fatal error: {header}: No such file or directory"]
    root = read_log(["torch._inductor.exc.InductorError: CppCompileError: C++ compile error", *lines]).root
    assert root is not None and (root.family.id, root.fields.get("blind")) == ("cpp_header", blind)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("RuntimeError: mat1 and mat2 must have the same dtype, but got Long and Float", "input_mismatch"),
        ("RuntimeError: something unheard of", "input_mismatch"),
    ],
)
@pytest.mark.parametrize("inside", [True, False])
def test_frames_of_cpp_show_a_call_that_python_does_not(text: str, first: str, inside: bool) -> None:
    """A program that runs torch's loader itself has no frame of torch above the package's."""
    frame = "frame #8: torch::aot_inductor::AOTInductorModel::run_impl(AtenTensorOpaque**) + 0x90f (0x7f)"
    root = read(
        text + "\nException raised from meta at /pytorch/LinearAlgebra.cpp:194\n" + frame * inside, OWN
    ).root
    assert root is not None and root.candidates[0] == (first if inside else "script_error")


HOOK = (
    "/opt/aoti-debug/mcp_server/worker/capture/journal.py",
    "wrapper",
    "result = original(*args, **kwargs)",
)
LOADING = ("/app/serve.py", "main", "model = torch._inductor.aoti_load_package(path)")
UNPACKING = (
    "RuntimeError: Failed to extract zip file m/x.so to destination file /tmp/a/x.so, mz_zip error string: "
)


@pytest.mark.parametrize(
    ("text", "frames", "first"),
    [
        (UNPACKING + "write callback failed", (LOADING, HOOK), "environment"),
        (UNPACKING + "CRC-32 check failed", (LOADING, HOOK), "invalid_package"),
        ("RuntimeError: something unheard of", (LOADING, HOOK), "invalid_package"),
        ("RuntimeError: something unheard of", (LOADING,), "invalid_package"),
        ("RuntimeError: something unheard of", (OWN, CALL, HOOK), "input_mismatch"),
    ],
)
def test_what_a_load_or_a_call_raised_is_no_statement_of_the_script(
    text: str, frames: tuple[tuple[str, str, str], ...], first: str
) -> None:
    """The frames of our own hook are nobody's, and a line that loads a package has C++ below it."""
    root = read(text, *frames).root
    assert root is not None and root.candidates[0] == first
    assert "script_error" not in root.candidates


BUILDER = (f"{TORCH}/_inductor/cpp_builder.py", "build", "run_compile_cmd(build_cmd, cwd=_build_tmp_dir)")
UNKNOWN = "torch._inductor.exc.InductorError: RuntimeError: something unheard of"


CAUSE = "\nThe above exception was the direct cause of the following exception:\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n"
BUILD = ("/app/serve.py", "build", "path = torch._inductor.aoti_compile_and_package(program)")
WRAP = ("/app/serve.py", "build", "raise BuildError(name) from why")
LATER = ("/app/serve.py", "check", 'raise BuildError("too far off")')


@pytest.mark.parametrize(
    ("between", "frame", "family"),
    [
        (CAUSE, WRAP, "inductor_error"),
        (CAUSE, LATER, "inductor_error"),
        (DURING, WRAP, "inductor_error"),
        (DURING, LATER, "own_check"),
        ("", WRAP, "own_check"),
    ],
)
def test_a_raise_that_passes_an_error_on(between: str, frame: tuple[str, str, str], family: str) -> None:
    """It tells of the error that it was raised from, or in whose handler it stands: no check failed.

    A check that fails later, in what was done instead, is one.
    """
    lines = [f'  File "{f}", line 7, in {n}\n    {c}' for f, n, c in (BUILD, BUILDER)]
    first = "\n".join(["Traceback (most recent call last):", *lines, UNKNOWN, between])
    assert root_of(read("BuildError: 'chat' could not be built", frame, before=first)).family.id == family
