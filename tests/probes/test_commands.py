"""Recorded commands become safe argument lists."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.errors import ProblemError
from mcp_server.probes.commands import (
    Toolchain,
    choose_compiler,
    compile_command,
    link_command,
    read_recorded,
    safe_flags,
)

TOOLCHAIN = Toolchain("2.13.0", ("/t/include",), ("/c/include",))
RECORDED = (
    "g++ /old/x.wrapper.cpp -D TORCH_INDUCTOR_CPP_WRAPPER -D  USE_CUDA -O1 -DNDEBUG -march=native -fPIC "
    "-Wall -std=c++17 -fopenmp -include /old/pch.h -I/usr/include/python3.12 -I/old/torch/include -mfma "
    "-c -o /old/x.wrapper.o"
)
SOURCE = f"int x;\n// Compile cmd\n// {RECORDED}\n// Link cmd\n// g++ /old/x.o -o /old/x.so\n"


def test_flags_that_decide_the_code_are_kept_and_paths_of_another_machine_are_not() -> None:
    """Defines, standard and machine flags survive; inputs, output, precompiled header and -O do not."""
    flags = safe_flags(read_recorded(SOURCE))
    argv = compile_command("/usr/bin/g++", flags, TOOLCHAIN, "a.cpp", "a.o", ("-O0",))
    assert {"-DNDEBUG", "-DUSE_CUDA", "-std=c++17", "-march=native", "-mfma", "-fPIC", "-O0"} <= set(argv)
    assert not [word for word in argv if word.startswith("/old") or "pch" in word or word == "-O1"]
    assert flags.dropped == ()


def test_only_the_original_library_is_linked() -> None:
    """It brings along what it needs; a library that it does not need may be out of a C++ host's reach."""
    argv = link_command("g++", ["a.o"], Path("/w/old.original"), "a.so")
    assert [word for word in argv if word.startswith("-l")] == ["-l:old.original"]
    assert argv.index("-Wl,--no-as-needed") < argv.index("-l:old.original")


def test_cuda_headers_are_added_for_a_cuda_wrapper_only() -> None:
    """The CUDA include directory follows the define USE_CUDA."""
    with_cuda = safe_flags(read_recorded(SOURCE))
    without = safe_flags(read_recorded(SOURCE.replace("-D  USE_CUDA ", "")))
    assert "-I/c/include" in compile_command("g++", with_cuda, TOOLCHAIN, "a.cpp", "a.o")
    assert "-I/c/include" not in compile_command("g++", without, TOOLCHAIN, "a.cpp", "a.o")


def test_the_last_command_counts() -> None:
    """torch appends a pair at each compile into the same cache."""
    later = SOURCE + SOURCE.replace("-O1", "-O1 -DLATER")
    assert "-DLATER" in safe_flags(read_recorded(later)).kept


def test_a_wrapper_without_commands_is_refused_with_a_way_out() -> None:
    """No recorded command is a problem that names the next call."""
    with pytest.raises(ProblemError) as caught:
        read_recorded("int main() {}")
    assert caught.value.next_call


HOSTILE = [
    "-fplugin=/tmp/evil.so",
    "-fplugin-arg-x=1",
    "@/tmp/response",
    "-B/tmp/tools",
    "-wrapper",
    "-specs=/tmp/specs",
    "-Wl,-plugin,/tmp/evil.so",
    "-Wp,-fplugin=/tmp/evil.so",
    "-Wa,--x",
    "-Xlinker",
    "-fuse-ld=/tmp/evil",
    "-imacros",
    "-include-pch",
    "-T/tmp/script.ld",
    "-dumpdir",
    "-save-temps",
    "-fdump-tree-all",
    "--sysroot=/tmp/evil",
    "-I$(touch /tmp/x)",
    "-D'A=`x`'",
    "-DA=B;touch",
    "-l:evil.so",
    "/tmp/evil.o",
]


@pytest.mark.parametrize("word", HOSTILE)
def test_flags_that_could_run_or_load_something_never_reach_the_compiler(word: str) -> None:
    """Plugins, response files, search paths of tools, linker and preprocessor pass-through are dropped."""
    recorded = read_recorded(SOURCE.replace("-O1", f"-O1 {word}"))
    compiled = compile_command("g++", safe_flags(recorded), TOOLCHAIN, "a.cpp", "a.o")
    assert word.replace("'", "") not in compiled
    assert not [one for one in compiled if "evil" in one or "touch" in one or "/tmp" in one]


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=12))
def test_any_recorded_words_give_only_flags_of_known_forms(words: list[str]) -> None:
    """Whatever the command holds, no word starts with @ and every path is one of ours or an include."""
    argv = compile_command("g++", safe_flags(["g++", *words]), TOOLCHAIN, "a.cpp", "a.o")
    for word in argv[1:]:
        assert word in ("a.cpp", "a.o", "-c", "-o", "-w") or word.startswith(
            ("-I/", "-D", "-std=", "-m", "-f", "-p", "--param=ggc-")
        )
        assert "plugin" not in word or word.startswith(("-D", "-I/"))


def test_a_recorded_compiler_path_is_never_run() -> None:
    """Only a name on PATH is used, whatever path the package records."""
    assert choose_compiler(["/tmp/evil/g++"], os.environ).startswith("/usr")
    assert "evil" not in choose_compiler(["/tmp/evil-compiler"], os.environ)


def test_a_compiler_that_is_not_there_is_a_problem_with_a_way_out() -> None:
    """Without a compiler on PATH the error names what is allowed."""
    with pytest.raises(ProblemError) as caught:
        choose_compiler([], {**os.environ, "CXX": "no-such-compiler-g++", "PATH": "/no/such/directory"})
    assert caught.value.allowed and caught.value.next_call
