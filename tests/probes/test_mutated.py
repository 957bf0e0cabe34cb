"""A wrapper that is not as torch writes it is rebuilt, or refused with the reason of the compiler.

Each example is a rebuild of seconds: AOTI_DEBUG_THOROUGH=1 tries many.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_server.errors import ProblemError
from mcp_server.package.archive import open_package
from mcp_server.package.wrapper import read_wrapper
from mcp_server.probes.build import find_toolchain, instrument
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Options, choose_compiler, compile_command, read_recorded, safe_flags
from mcp_server.probes.rewrite import numbered
from mcp_server.tools.context import Context
from tests.conftest import ZooPackage
from tests.package.archives import changed
from tests.zoo.names import THOROUGH

pytestmark = pytest.mark.slow

EXAMPLES = 40 if THOROUGH else 2


def mutate(text: str, kind: str, number: int, start: float, length: int) -> str:
    """Change the launch `number`, or a span of the body, in one of the ways of `KINDS`."""
    wrapper = read_wrapper(text)
    launch = wrapper.launches[number % len(wrapper.launches)]
    head, statement, tail = text[: launch.start], text[launch.start : launch.end], text[launch.end :]
    if kind == "cut":
        at = wrapper.run.start + int(start * (wrapper.run.end - wrapper.run.start))
        return text[:at] + text[at + length :]
    return head + KINDS[kind](statement) + tail


KINDS: dict[str, Callable[[str], str]] = {
    "cut": str,
    "doubled": lambda statement: statement + " " + statement,
    "in a block": lambda statement: f"if (true) {{ {statement} }} else {{ (void)0; }}",
    "after a comment": lambda statement: f'/* a "comment( */ {statement}',
    "over lines": lambda statement: statement.replace(", ", ",\n        "),
    "in parentheses": lambda statement: re.sub(
        r"\(const (\w+)\*\)\((\w+)\.", r"(const \1*)((\2).", statement
    ),
    "declared": lambda statement: f"auto status = (0, 0); {statement}",
    "in a macro": lambda statement: f"#define LAUNCH {statement}\n    LAUNCH\n",
    "in a lambda": lambda statement: f"[&]() {{ {statement} }}();",
}

mutants = st.builds(
    lambda *choice: choice,
    st.sampled_from(sorted(KINDS)),
    st.integers(0, 20),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 60),
)


def compiles(text: str, context: Context) -> bool:
    """Whether the wrapper is a program at all, without probes."""
    toolchain = anyio.run(find_toolchain, context.python, context)
    source = context.directory / "mutant.cpp"
    source.write_text(text)
    recorded = read_recorded(text)
    compiler = choose_compiler(recorded, os.environ)
    argv = compile_command(compiler, safe_flags(recorded), toolchain, str(source), "x.o", ("-fsyntax-only",))
    return subprocess.run(argv, capture_output=True, cwd=source.parent, check=False).returncode == 0


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutants)
def test_a_mutated_wrapper_is_rebuilt_or_refused_with_a_reason(
    zoo: ZooPackage,
    cache: Cache,
    tmp_path_factory: pytest.TempPathFactory,
    mutant: tuple[str, int, float, int],
) -> None:
    """Rebuilt: every launch has probes or a reason. Refused: it is no program without probes either."""
    directory = tmp_path_factory.mktemp("mutant")
    text = mutate(open_package(zoo("ranker")).wrapper_text, *mutant)

    def spoil(members: dict[str, bytes]) -> None:
        name = next(n for n in members if n.endswith(".wrapper.cpp"))
        members[name] = text.encode()

    package = changed(zoo("ranker"), directory / "mutant.pt2", spoil)
    context = Context(directory, Path(sys.executable))
    try:
        done = anyio.run(lambda: instrument(package, Options(), context, cache=cache))
    except ProblemError as problem:
        assert problem.next_call and "error" in problem.what
        assert not compiles(text, context)
        return
    skipped = [one for one in done.skipped if one.launch is not None]
    assert all(one.reason for one in done.skipped)
    assert done.probed["model"] + len(skipped) == len(numbered(read_wrapper(text)))
