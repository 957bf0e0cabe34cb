"""Which Python is used if a call names none: where it is searched for, and that it has torch."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from mcp_server import interpreter
from mcp_server.errors import argument, on_command_line
from mcp_server.interpreter import candidates, default_python, has_torch, interpreter_help
from tests.conftest import ROOT
from tests.support.command import output_of

LAUNCHER = ROOT / "tools" / "aoti_debug.py"
OURS = Path(sys.executable)


@pytest.fixture(autouse=True)
def own_torch_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide this environment's torch, because a server's environment has none."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))


def environment(root: Path, torch: bool = True) -> Path:
    """Make a minimal virtual environment, with torch or without. Return its interpreter."""
    python = root / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/bin/false")
    packages = root / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    if torch:
        (packages / "torch").mkdir()
        (packages / "torch" / "version.py").write_text("")
    return python


def test_the_variable_is_taken_unasked(tmp_path: Path) -> None:
    """AOTI_DEBUG_PYTHON is preferred to an active environment, and not checked for torch."""
    environment(tmp_path / "active")
    env = {"AOTI_DEBUG_PYTHON": "~/some/python", "VIRTUAL_ENV": str(tmp_path / "active")}
    assert default_python(env, tmp_path) == Path.home() / "some" / "python"


@pytest.mark.parametrize("variable", interpreter.ACTIVE)
def test_an_active_environment_with_torch_is_taken(tmp_path: Path, variable: str) -> None:
    """A virtual or conda environment is preferred to the folder's, unless only the folder's has torch."""
    active = environment(tmp_path / "active")
    local, bare = environment(tmp_path / ".venv"), tmp_path / "bare"
    environment(bare, torch=False)
    assert default_python({variable: str(tmp_path / "active"), "PATH": "/usr/bin"}, tmp_path) == active
    assert default_python({variable: str(bare)}, tmp_path) == local


def test_the_environment_of_the_project_is_found_from_below(tmp_path: Path) -> None:
    """`.venv` beside `.git` is found from a folder of the repository. Folders above are not searched."""
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    (project / "src" / "model").mkdir(parents=True)
    environment(tmp_path / ".venv")
    assert default_python({}, project / "src" / "model") == OURS
    local = environment(project / ".venv")
    assert default_python({}, project / "src" / "model") == local


def test_python_on_path_is_asked(tmp_path: Path) -> None:
    """A program that has torch is found after one without torch and one that is not Python."""
    for name, script in (("none", "exit 1"), ("broken", "garbage"), ("good", "exit 0")):
        program = tmp_path / name / "python3"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    path = os.pathsep.join(str(tmp_path / name) for name in ("none", "missing", "broken", "good"))
    assert default_python({"PATH": path}, tmp_path) == tmp_path / "good" / "python3"


def test_a_program_that_hangs_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that does not answer within the limit counts as one without torch."""
    monkeypatch.setattr(interpreter, "ASKING_S", 0.2)
    program = tmp_path / "bin" / "python3"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    assert not has_torch(program)


def test_a_real_interpreter_is_asked_without_importing_torch(tmp_path: Path) -> None:
    """A link to this Python is started, and finds torch without importing it."""
    program = tmp_path / "python3"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -X importtime "$@" 2>{tmp_path}/imported\n')
    program.chmod(0o755)
    assert has_torch(program)
    assert "torch" not in (tmp_path / "imported").read_text()


def test_without_any_torch_the_first_one_is_named(tmp_path: Path) -> None:
    """The first candidate is returned, so the error names the environment that the user works in."""
    active = environment(tmp_path / "active", torch=False)
    env = {"VIRTUAL_ENV": str(tmp_path / "active"), "PATH": ""}
    assert default_python(env, tmp_path) == active
    assert list(candidates(env, tmp_path)) == [active, OURS]


def test_an_interpreter_that_gets_torch_is_seen(tmp_path: Path) -> None:
    """`pip install torch` while the server runs is noticed, because a lack of torch is not cached."""
    python = environment(tmp_path / "active", torch=False)
    assert not has_torch(python)
    (tmp_path / "active/lib/python3.12/site-packages/torch").mkdir()
    (tmp_path / "active/lib/python3.12/site-packages/torch/version.py").write_text("")
    assert has_torch(python)


def test_help_is_spelled_as_the_caller_would() -> None:
    """Help names an argument for tools, and an option for commands."""
    token = on_command_line.set(False)
    assert "pass `python`" in interpreter_help()
    on_command_line.set(True)
    try:
        assert "pass --python" in interpreter_help() and argument("model_name") == "--model-name"
    finally:
        on_command_line.reset(token)


SHOW = f"""
import json, os, runpy
runpy.run_path({str(LAUNCHER)!r})["leave_environment"]()
print(json.dumps({{name: os.environ.get(name) for name in ("PATH", "VIRTUAL_ENV")}}))
"""
AS_UV = """
import os, subprocess, sys
own = {"UV": "uv", "VIRTUAL_ENV": sys.prefix, "PATH": sys.prefix + "/bin:" + os.environ["PATH"]}
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1]], env={**os.environ, **own}).returncode)
"""


@pytest.mark.parametrize("active", [{"VIRTUAL_ENV": "/home/me/.venv"}, {}], ids=["active", "none"])
def test_the_launcher_leaves_the_environment_of_uv(active: dict[str, str]) -> None:
    """The variables are those of the process that started uv, which `uv run` had changed."""
    env = {"PATH": "/home/me/.venv/bin:/usr/bin", **active}
    argv = [sys.executable, "-c", AS_UV, SHOW]
    done = output_of(argv, env=env, check=True)
    assert json.loads(done.stdout) == {"PATH": env["PATH"], "VIRTUAL_ENV": active.get("VIRTUAL_ENV")}


def test_the_launcher_leaves_any_other_environment_alone() -> None:
    """If a Python of an active environment started the launcher, variables stay."""
    env = {"PATH": "/usr/bin", "VIRTUAL_ENV": sys.prefix}
    done = output_of([sys.executable, "-c", SHOW], env=env, check=True)
    assert json.loads(done.stdout) == env
