"""Packages of every layout and unusual form can be rebuilt: several models, a directory, folded constants.

Each form takes ten seconds to compile: only AOTI_DEBUG_THOROUGH=1 tries them.
"""

import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Command
from mcp_server.logs.journal import read_journal_file
from mcp_server.package.archive import open_package
from mcp_server.package.wrapper import read_wrapper
from mcp_server.probes.build import instrument
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Instrumented, Options
from mcp_server.probes.rewrite import numbered, rewrite
from mcp_server.runtime.context import Context, WorkerRun
from mcp_server.worker import events
from tests.conftest import CACHE, Zoo, compiled_once
from tests.package.archives import Members, changed, members_of, name_ending, without, write
from tests.package.summaries import WRAPPERS
from tests.recorded import RECORDINGS
from tests.served import served
from tests.zoo.names import THOROUGH, few, thorough

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
    """Write an archive with the models of both packages, as `model` and `other`."""
    members = members_of(first)
    top = next(iter(members)).partition("/")[0]
    for name, data in members_of(second).items():
        if "data/aotinductor/model/" in name:
            inner = name.partition("data/aotinductor/model/")[2]
            members[f"{top}/data/aotinductor/other/{inner}"] = data
    return write(target, members)


@thorough
def test_all_models_of_a_package_get_probes(zoo: Zoo, context: Context, cache: Cache, tmp_path: Path) -> None:
    """Both models run, each with its own kernels, and give the results of the originals."""
    both = two_models(zoo("ranker"), zoo("logarithm"), tmp_path / "both.pt2")
    done = rebuilt(both, context, cache)
    assert done.probed == {"model": 5, "other": 3} and done.skipped == ()
    for model, name in (("model", "ranker"), ("other", "logarithm")):
        inputs = zoo(name).with_name(f"{name}.inputs.pt")
        assert total(context, done.package, model, inputs) == total(context, zoo(name), "model", inputs)


def test_a_directory_becomes_a_package(zoo: Zoo, context: Context, cache: Cache, tmp_path: Path) -> None:
    """The flat files of a model, without an archive around them, become a package."""
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
    """Add a syntax error outside all launches, for which probes cannot be blamed."""
    name = name_ending(members, ".wrapper.cpp")
    members[name] = members[name].replace(b"namespace torch::aot_inductor {", b"namespace torch {{", 1)


@pytest.mark.parametrize("change, said", [(without(".wrapper.so"), None), (spoil, "(?s)not compile.*error")])
def test_a_broken_package_is_refused_with_a_way_out(
    zoo: Zoo,
    context: Context,
    cache: Cache,
    tmp_path: Path,
    change: Callable[[Members], object],
    said: str | None,
) -> None:
    """The error says that the library is missing, or quotes the compiler."""
    broken = changed(zoo("ranker"), tmp_path / "broken.pt2", change)
    with pytest.raises(ProblemError, match=said) as caught:
        rebuilt(broken, context, cache)
    assert caught.value.next_call


FORMS = ["folding", "mapped", "blob", "files", "hidden"] if THOROUGH else []
LAUNCHES = {"folding": [2, 3, 0, 1]}
USUAL = [0, 1, 2]

# A linker that exports only what the loader needs, and neither kernels nor constants.
HIDING = """#!/bin/sh
for word in "$@"; do
  [ "$word" = -shared ] && exec /usr/bin/g++ "$@" -Wl,--version-script="$(dirname "$0")/exports.map"
done
exec /usr/bin/g++ "$@"
"""
EXPORTS = "{ global: AOTInductor*; local: *; };"


def hiding_compiler(directory: Path) -> dict[str, str]:
    """The variables that make torch compile with that linker."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "exports.map").write_text(EXPORTS)
    (directory / "g++").write_text(HIDING)
    (directory / "g++").chmod(0o755)
    return {"CXX": str(directory / "g++")}


def special(form: str) -> Path:
    """The package of this form, compiled once and kept between runs."""
    more = hiding_compiler(CACHE / "hiding") if form == "hidden" else {}
    return compiled_once(CACHE / f"{form}.pt2", "tests.zoo.forms", form, more=more)


def run(context: Context, operation: str, package: Path, inputs: Path, directory: Path) -> WorkerRun:
    """Make one call, whose journal goes into `directory`."""
    directory.mkdir()
    request = {"package": package, "inputs": inputs}
    env = {"AOTI_DEBUG_JOURNAL": str(directory / "launches.jsonl")}
    done = served(Context.worker, context, operation, request, env=env)
    assert done.finished.ok, done.finished.stderr.read_text()[-2000:]
    return done


@pytest.mark.parametrize("form", FORMS)
def test_an_unusual_form_is_the_same_one(form: str, context: Context, cache: Cache, tmp_path: Path) -> None:
    """Outputs are bit-identical. Journal and observer see every launch, those of constant folding first."""
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


# Probes in a wrapper's text.

WRAPPER = """extern "C"  void  cpp_fused_log_0(float* in_out_ptr0,
                       const float* in_ptr0,
                       const int64_t ks0);
void AOTInductorModel::run_impl(
    AtenTensorHandle* input_handles,
    DeviceStreamType stream
) {
    auto inputs = steal_from_raw_handles_to_raii_handles(input_handles, 1);
    auto arg0_1 = std::move(inputs[0]);
    [[maybe_unused]] auto& w = constants_->at(0);
    auto arg0_1_size = arg0_1.sizes();
    int64_t s77 = arg0_1_size[0];
    const int64_t int_array_0[] = {s77, 16L};
    static constexpr int64_t int_array_1[] = {16L, 1L};
    AtenTensorHandle buf0_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf0_handle));
    RAIIAtenTensorHandle buf0(buf0_handle);
    cpp_fused_log_0((float*)(buf0.data_ptr()), (const float*)(arg0_1.data_ptr()), s77);
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_mm_out(buf0, arg0_1, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(w, 2, int_array_0, int_array_1, 0L))));
    AtenTensorHandle buf1_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_topk(buf0, 4L, 1L, 1, 1, &buf1_handle));
    RAIIAtenTensorHandle buf1(buf1_handle);
    output_handles[0] = buf1.release();
} // AOTInductorModel::run_impl
"""  # noqa: E501 - a wrapper's lines are long


@st.composite
def mutilated(draw: st.DrawFn) -> str:
    """A wrapper with spans removed, doubled or replaced by noise."""
    text = WRAPPER
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 60)))
        put = draw(st.sampled_from(["", text[start:end] * 2, "(", '"', "{", "/*", "}"]))
        text = text[:start] + put + text[end:]
    return text


@settings(max_examples=few(150))
@given(mutilated())
def test_a_damaged_wrapper_is_rewritten_by_insertion_only_or_refused_with_reasons(text: str) -> None:
    """No line moves, each launch is listed, and each launch without probes has a reason."""
    wrapper = read_wrapper(text)
    done = rewrite(wrapper, "model")
    assert done.text.count("\n") == text.count("\n")
    told = {s.launch: s.reason for s in done.skipped if s.launch is not None}
    assert sorted([*done.probed, *told]) == [number for number, _ in numbered(wrapper)]
    assert all(told.values())


@pytest.mark.parametrize("path", sorted(WRAPPERS.glob("*-cpu.cpp")), ids=lambda path: path.stem)
def test_real_wrappers_get_a_probe_for_every_launch(path: Path) -> None:
    """Kernels, shims, proxy calls, and launches inside loops and branches get probes."""
    kernels = RECORDINGS / "kernels" / path.name
    wrapper = read_wrapper(path.read_text(), kernels.read_text() if kernels.exists() else "")
    done = rewrite(wrapper, "model")
    launches = len(numbered(wrapper))  # including constant folding
    assert done.skipped == () and len(done.probed) == launches > 0
    assert done.text.count("aoti_debug_launch.after()") == launches


KINDS: dict[str, Callable[[str], str]] = {
    "doubled": lambda statement: statement + " " + statement,
    "in a block": lambda statement: f"if (true) {{ {statement} }} else {{ (void)0; }}",
    "after a comment": lambda statement: f'/* a "comment( */ {statement}',
    "over lines": lambda statement: statement.replace(", ", ",\n        "),
    "in parentheses": lambda text: re.sub(r"\(const (\w+)\*\)\((\w+)\.", r"(const \1*)((\2).", text),
    "declared": lambda statement: f"auto status = (0, 0); {statement}",
    "in a macro": lambda statement: f"#define LAUNCH {statement}\n    LAUNCH\n",
    "in a lambda": lambda statement: f"[&]() {{ {statement} }}();",
}


@thorough
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mutated_wrapper_is_rebuilt(
    zoo: Zoo, cache: Cache, context: Context, tmp_path: Path, kind: str, number: int
) -> None:
    """With another form of a kernel launch or library call, every launch has probes or a reason."""
    text = open_package(zoo("ranker")).wrapper_text
    launch = read_wrapper(text).launches[number]
    text = text[: launch.start] + KINDS[kind](text[launch.start : launch.end]) + text[launch.end :]

    def spoil(members: Members) -> None:
        members[name_ending(members, ".wrapper.cpp")] = text.encode()

    package = changed(zoo("ranker"), tmp_path / "mutant.pt2", spoil)
    done = anyio.run(lambda: instrument(package, Options(), context, cache=cache))
    skipped = [one for one in done.skipped if one.launch is not None]
    assert all(one.reason for one in done.skipped)
    assert done.probed["model"] + len(skipped) == len(numbered(read_wrapper(text)))
