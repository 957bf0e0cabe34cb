"""Packages of every layout and of unusual form can be rebuilt: several models, a directory, folded constants.

A compile of a form takes ten seconds: AOTI_DEBUG_THOROUGH=1 tries them.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Command
from mcp_server.logs.journal import read_journal_file
from mcp_server.probes.build import instrument
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Instrumented, Options
from mcp_server.runtime.context import Context, WorkerRun
from mcp_server.worker import events
from tests.conftest import CACHE, ZooPackage, compiled_once
from tests.package.archives import Members, changed, members_of, name_ending, without, write
from tests.served import served
from tests.zoo.names import THOROUGH, thorough

pytestmark = pytest.mark.slow

CALL = (
    "import sys, torch\n"
    "m = torch._C._aoti.AOTIModelPackageLoader(sys.argv[1], sys.argv[2], False, 1, -1)\n"
    "print(m.run(torch.load(sys.argv[3], weights_only=True))[0].sum().item())\n"
)


def rebuilt(package: Path, context: Context, cache: Cache) -> Instrumented:
    return anyio.run(lambda: instrument(package, Options(), context, cache=cache))


def total(context: Context, package: Path, model: str, inputs: Path) -> float:
    """The sum of a model's first output."""
    argv = (sys.executable, "-W", "ignore", "-c", CALL, str(package), model, str(inputs))
    finished = anyio.run(lambda: context.run(Command(argv, context.directory), f"call-{model}"))
    assert finished.ok, finished.stderr.read_text()
    return float(finished.stdout.read_text())


def two_models(first: Path, second: Path, target: Path) -> Path:
    """One archive with both packages' models, `model` and `other`."""
    members = members_of(first)
    top = next(iter(members)).partition("/")[0]
    for name, data in members_of(second).items():
        if "data/aotinductor/model/" in name:
            inner = name.partition("data/aotinductor/model/")[2]
            members[f"{top}/data/aotinductor/other/{inner}"] = data
    return write(target, members)


@thorough
def test_every_model_of_a_package_gets_probes(
    zoo: ZooPackage, context: Context, cache: Cache, tmp_path: Path
) -> None:
    """Both models run, each with its own kernels, and give what the originals give."""
    both = two_models(zoo("ranker"), zoo("logarithm"), tmp_path / "both.pt2")
    done = rebuilt(both, context, cache)
    assert done.probed == {"model": 5, "other": 3} and done.skipped == ()
    for model, name in (("model", "ranker"), ("other", "logarithm")):
        inputs = zoo(name).with_name(f"{name}.inputs.pt")
        assert total(context, done.package, model, inputs) == total(context, zoo(name), "model", inputs)


def test_an_unpacked_directory_becomes_a_package(
    zoo: ZooPackage, context: Context, cache: Cache, tmp_path: Path
) -> None:
    """The flat files of a model, without an archive around them, are packed again."""
    flat = tmp_path / "flat"
    flat.mkdir()
    with zipfile.ZipFile(zoo("ranker")) as archive:
        for info in archive.infolist():
            if "data/aotinductor/model/" in info.filename:
                (flat / Path(info.filename).name).write_bytes(archive.read(info))
    done = rebuilt(flat, context, cache)
    inputs = zoo("ranker").with_name("ranker.inputs.pt")
    assert total(context, done.package, "model", inputs) == total(context, zoo("ranker"), "model", inputs)


def spoil(members: Members) -> None:
    """A syntax error outside all launches, which cannot be blamed on probes."""
    name = name_ending(members, ".wrapper.cpp")
    members[name] = members[name].replace(b"namespace torch::aot_inductor {", b"namespace torch {{", 1)


@pytest.mark.parametrize(
    ("change", "said"), [(without(".wrapper.so"), None), (spoil, "(?s)does not compile.*error")]
)
def test_a_broken_package_is_refused_with_a_way_out(
    zoo: ZooPackage,
    context: Context,
    cache: Cache,
    tmp_path: Path,
    change: Callable[[Members], object],
    said: str | None,
) -> None:
    """Without its library, or with the compiler's words."""
    broken = changed(zoo("ranker"), tmp_path / "broken.pt2", change)
    with pytest.raises(ProblemError, match=said) as caught:
        rebuilt(broken, context, cache)
    assert caught.value.next_call


FORMS = ["folding", "mapped", "blob", "files", "hidden"] if THOROUGH else []
LAUNCHES = {"folding": [2, 3, 0, 1]}
USUAL = [0, 1, 2]

# A linker that exports what the loader asks for, and neither kernels nor constants.
HIDING = """#!/bin/sh
for word in "$@"; do
  [ "$word" = -shared ] && exec /usr/bin/g++ "$@" -Wl,--version-script="$(dirname "$0")/exports.map"
done
exec /usr/bin/g++ "$@"
"""
EXPORTS = "{ global: AOTInductor*; local: *; };"


def hiding_compiler(directory: Path) -> dict[str, str]:
    """The environment in which torch compiles with it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "exports.map").write_text(EXPORTS)
    (directory / "g++").write_text(HIDING)
    (directory / "g++").chmod(0o755)
    return {"CXX": str(directory / "g++")}


def special(form: str) -> Path:
    """The package, compiled once and kept between runs."""
    more = hiding_compiler(CACHE / "hiding") if form == "hidden" else {}
    return compiled_once(CACHE / f"{form}.pt2", "tests.zoo.forms", form, more=more)


def run(context: Context, operation: str, package: Path, inputs: Path, directory: Path) -> WorkerRun:
    """One call; its journal goes into `directory`."""
    directory.mkdir()
    request = {"package": package, "inputs": inputs}
    env = {"AOTI_DEBUG_JOURNAL": str(directory / "launches.jsonl")}
    done = served(Context.worker, context, operation, request, env=env)
    assert done.finished.ok, done.finished.stderr.read_text()[-2000:]
    return done


@pytest.mark.parametrize("form", FORMS)
def test_a_package_of_unusual_form_is_the_same_program(
    form: str, context: Context, cache: Cache, tmp_path: Path
) -> None:
    """Bit-identical outputs; journal and subscriber see every launch, those of constant folding first."""
    package = special(form)
    inputs = package.with_suffix(".inputs.pt")
    rebuilt = anyio.run(lambda: instrument(package, Options(), context, cache=cache))
    assert rebuilt.skipped == ()
    observed = run(context, "observe", rebuilt.package, inputs, tmp_path / "rebuilt")
    journal = read_journal_file(tmp_path / "rebuilt" / "launches.jsonl")
    launches = [launch.launch for launch in journal.launches]
    assert launches == LAUNCHES.get(form, USUAL) and len(journal.calls) == 1
    assert list(dict.fromkeys(event.launch for event in observed.all(events.Argument))) == launches
    original = run(context, "run", package, inputs, tmp_path / "original")
    called = [done.last(events.Called) for done in (observed, original)]
    digests = [[output.checksum for output in each.outputs] for each in called if each is not None]
    assert len(digests) == 2 and digests[0] == digests[1] != []
