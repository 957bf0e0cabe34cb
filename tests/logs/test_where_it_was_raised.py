"""Where an exception was raised, and what the lines around it say about its cause."""

from typing import Any

import pytest

from mcp_server.logs.log import read_log

TORCH = "/venv/lib/python3.11/site-packages/torch"
CALL = (f"{TORCH}/export/pt2_archive/_package.py", "__call__", "self.loader.boxed_run(flat_inputs)")
COMPILE = (f"{TORCH}/_inductor/__init__.py", "aot_compile", "flat, options = _aoti_flatten_inputs(")
PYTREE = (f"{TORCH}/utils/_pytree.py", "treespec_dumps", "raise NotImplementedError(")
OWN = ("/app/serve.py", "main", "runner(x)")


def read(text: str, *frames: tuple[str, str, str], before: str = "") -> Any:
    """Read the log of a traceback with these frames that ends in `text`."""
    places = [f'  File "{file}", line 7, in {name}\n    {code}' for file, name, code in frames]
    lines = "\n".join([before, "Traceback (most recent call last):", *places, text])
    return read_log(lines.splitlines())


def root_of(facts: Any) -> Any:
    assert facts.root is not None
    return facts.root


ODD = "RuntimeError: something unheard of"
ERRNO_2 = "FileNotFoundError: [Errno 2] No such file or directory: "
WRAPPED = "torch._inductor.exc.InductorError: "
HOOK = ("/opt/mcp_server/worker/capture/journal.py", "wrapper", "result = original(*args, **kwargs)")
LOADING = ("/app/serve.py", "main", "model = torch._inductor.aoti_load_package(path)")
LOAD_WRONGLY = (*LOADING[:2], "model = torch._inductor.aoti_load_package(path, runners=8)")
UNPACKING = "RuntimeError: Failed to extract zip file x.so to destination file x.so, mz_zip error string: "
IN_CPP = "frame #8: torch::aot_inductor::AOTInductorModel::run_impl(AtenTensorOpaque**) + 0x90f (0x7f)"
RAISED = "\nException raised from meta at /pytorch/LinearAlgebra.cpp:194\n"
NO_MATCH = "RuntimeError: mat1 and mat2 must have the same dtype, but got Long and Float"


@pytest.mark.parametrize(
    ("text", "frames", "first"),
    [
        # inside a package call: the operator; inside a compile: the compiler; else the script
        (ODD, (OWN, CALL), "operator_refused input_mismatch"),
        (ODD, (OWN, CALL, OWN), "operator_raised custom_op"),
        (ODD, (OWN,), "script_exception script_error"),
        (ODD, (OWN, COMPILE, PYTREE), "compiler_exception compile_failure"),
        (ODD, (OWN, COMPILE, OWN), "compiler_exception compile_failure"),
        # raised in os.environ or in the compiler: the environment; in a line of the script: the script
        ("KeyError: 'MODEL_DIR'", (OWN, ("<frozen os>", "__getitem__", "")), "environment"),
        ("KeyError: 'MODEL_DIR'", (OWN, OWN), "script_error"),
        (f"{ERRNO_2}'/scratch/x'", (OWN, COMPILE), "environment"),
        (f"{ERRNO_2}'words.txt'", (OWN, OWN), "script_error"),
        ("made.up.BadBatch", (OWN, OWN), "script_error"),
        # the wrapped exception decides, and not the wrapper
        (f"{WRAPPED}NotADirectoryError: [Errno 20] Not a directory: '/c/x'", (OWN, COMPILE), "environment"),
        (f"{WRAPPED}OSError: [Errno 28] No space left on device", (OWN, COMPILE), "environment"),
        (f"{WRAPPED}MemoryError", (OWN, COMPILE), "out_of_memory"),
        # C++ frames show a call if the program runs torch's loader directly
        (NO_MATCH + RAISED, (OWN,), "script_error"),
        (NO_MATCH + RAISED + IN_CPP, (OWN,), "input_mismatch"),
        (ODD + RAISED, (OWN,), "script_error"),
        (ODD + RAISED + IN_CPP, (OWN,), "input_mismatch"),
        # frames of the capture hook are ignored; the line that loads a package decides
        (f"{UNPACKING}write callback failed", (LOADING, HOOK), "environment"),
        (f"{UNPACKING}CRC-32 check failed", (LOADING, HOOK), "invalid_package"),
        (ODD, (LOADING, HOOK), "invalid_package"),
        (ODD, (LOADING,), "invalid_package"),
        # except if Python refused the arguments before the call
        (
            "TypeError: aoti_load_package() got an unexpected keyword argument",
            (LOAD_WRONGLY,),
            "script_error",
        ),
        (ODD, (OWN, CALL, HOOK), "input_mismatch"),
    ],
)
def test_where_it_was_raised_decides(text: str, frames: tuple[tuple[str, str, str], ...], first: str) -> None:
    """The first candidate of the root is as expected, or its family and first candidate."""
    root = root_of(read(text, *frames))
    assert first in (root.candidates[0], f"{root.family.id} {root.candidates[0]}")
    assert not {LOADING, HOOK} & {*frames} or "script_error" not in root.candidates


@pytest.mark.parametrize(
    ("before", "fatal"),
    [
        ("ERROR:intake:parcel refused", False),
        ("2026-01-02 03:04:05 ERROR parcel refused", False),
        ("W1120 22:23:52.231000 4351 torch/_inductor/package/package.py:120] Loading outdated file.", True),
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
    """Exported programs, tensors and zipped packages are not models. An archive may have other models."""
    root = read(MISSING + "\n\nThe following files were found:\n" + "\n".join(members), OWN).root
    assert root is not None and (root.family.id, root.category) == (family, "invalid_package")


NO_FILES = "[W1121 package_loader.cpp:9] Failed to remove temporary directory /tmp/a: Too many open files"


def test_a_package_that_cannot_be_opened() -> None:
    """The package may be missing or unreadable. If the process had too many open files, that is the cause."""
    text = "RuntimeError: Failed to initialize zip archive: file open failed"
    assert root_of(read(text, OWN)).candidates == ("invalid_package", "environment")
    full = root_of(read(text + "\n" + NO_FILES, OWN))
    assert (full.candidates, full.fields["detail"]) == (("environment",), "Too many open files")


COMMAND = "/opt/company-g++ /tmp/header.hpp -D TORCH_INDUCTOR_CPP_WRAPPER -D STANDALONE_TORCH_HEADER -O3"


@pytest.mark.parametrize(("header", "blind"), [("array", "/opt/company-g++"), ("omp.h", None)])
def test_a_compiler_without_its_own_library(header: str, blind: str | None) -> None:
    """If a header of the C++ library is missing, the compiler of the command line is to blame."""
    lines = [COMMAND, "", "Output:", f"/v/common.h:4:10: fatal error: {header}: No such file or directory"]
    root = read_log(["torch._inductor.exc.InductorError: CppCompileError: C++ compile error", *lines]).root
    assert root is not None and (root.family.id, root.fields.get("blind")) == ("cpp_header", blind)


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
    """A `raise` from another error, or in its handler, reports that error and is not a failed check.

    A check that fails later, in the fallback, is a failed check.
    """
    lines = [f'  File "{f}", line 7, in {n}\n    {c}' for f, n, c in (BUILD, BUILDER)]
    first = "\n".join(["Traceback (most recent call last):", *lines, UNKNOWN, between])
    assert root_of(read("BuildError: 'chat' could not be built", frame, before=first)).family.id == family
