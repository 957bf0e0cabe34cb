"""Steps, programs of the corpus and provoked errors, each tried under a release."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from benchmarks.corpus.answers import PROGRAMS, Answer
from benchmarks.corpus.judge import judge
from benchmarks.corpus.validate import select
from benchmarks.releases.trial import Outcome, Release, Trials
from mcp_server.diagnosis.diagnose import diagnose
from mcp_server.logs.log import read_log_file
from mcp_server.model import ScriptWorkload
from mcp_server.tools.locate_fault import locate_fault
from tests.support.tools import asked

DIAGNOSED = (
    ("ranker", "bad-index", "index_out_of_bounds"),
    ("ranker", "bad-dtype", "input_mismatch"),
    ("logarithm", "bad-nan", "nan_or_inf"),
)
CALL = (
    "import sys, torch._inductor.codecache\n"  # torch 2.10.0 needs it and does not import it
    "model = torch._inductor.aoti_load_package(sys.argv[1])\n"
    "print(model(*torch.load(sys.argv[2], weights_only=True)))\n"
)


def _unless(held: bool, told: object) -> Outcome:
    return "" if held else str(told)


class Steps:
    """The steps on packages of one release."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.script = release.directory / "call.py"
        self.script.write_text(CALL)

    async def bad_index_is_located(self) -> Outcome:
        release = self.release
        found = await locate_fault(release.context(), release.call("ranker", "bad-index"))
        launch = found.fault.launch if found.fault else None
        return _unless(launch is not None and launch.index == 0, found.summary)

    async def diagnosed(self, name: str, kind: str, category: str) -> Outcome:
        """`diagnose` gets only a package and its inputs."""
        verdict = await diagnose(self.release.context(), self.release.call(name, kind))
        held = (verdict.outcome, verdict.category) == ("fault", category)
        return _unless(held, f"{verdict.outcome} {verdict.category}: {verdict.summary}")

    async def values_are_seen(self) -> Outcome:
        seen = await asked("dump_kernel_io", self.release.context(), self.release.call("ranker"))
        held = seen.returned and seen.seen == len(seen.launches) > 0
        return _unless(held, f"{seen.seen} launches")

    async def eager_agrees(self) -> Outcome:
        workload = self.release.call("ranker")
        exported = workload.package.with_name("ranker.exported.pt2")
        compared = await asked("compare_with_eager", self.release.context(), workload, exported=exported)
        return _unless(compared.outcome == "agrees", compared.summary)

    async def wrong_dtype_of_an_input_is_told(self) -> Outcome:
        checked = await asked(
            "check_devices", self.release.context(), self.release.call("ranker", "bad-dtype")
        )
        return _unless("int32" in checked.summary, checked.summary)

    async def failure_is_stable(self) -> Outcome:
        workload = self.release.call("ranker", "bad-index")
        repeated = await asked("run_deterministic", self.release.context(), workload, repeats=2)
        return _unless(repeated.pattern == "stable" and repeated.failing == 2, repeated.pattern)

    def trials(self) -> Trials:
        steps: tuple[Callable[[], Awaitable[Outcome]], ...] = (
            self.bad_index_is_located,
            self.values_are_seen,
            self.eager_agrees,
            self.wrong_dtype_of_an_input_is_told,
            self.failure_is_stable,
        )
        named = {step.__name__.replace("_", " "): step for step in steps}
        for name, kind, category in DIAGNOSED:
            named[f"{name} {kind} is diagnosed"] = partial(self.diagnosed, name, kind, category)
        return {name: partial(anyio.run, step) for name, step in named.items()}


# One with a bad index, one with a bad input, and one with a wrong fake function of an operator.
NAMES = ["lag_features", "fraud_window", "tile_rotate"]


def diagnosed_script(release: Release, answer: Answer) -> Outcome:
    """The category and the guilty party are those of the answer."""
    home = release.directory / "scripts" / answer.name
    home.mkdir(parents=True, exist_ok=True)
    script = home / f"{answer.name}.py"
    shutil.copyfile(PROGRAMS / script.name, script)
    workload = ScriptWorkload(script=script, cwd=home, python=release.python)
    verdict = anyio.run(diagnose, release.context(), workload)
    score = judge(answer, "script", verdict.model_dump(mode="json"), script)
    told = f"{score.outcome} {score.category}, {score.guilty}: {score.summary}"
    return "" if score.right else told


def scripts(release: Release) -> Trials:
    return {answer.name: partial(diagnosed_script, release, answer) for answer in select("cpu", NAMES)}


# For each kind of `provoke`: the family of its root, and the first release that reports it. Older ones are
# silent or report a consequence. Where two families are named, releases differ.
EXPECTED: dict[str, tuple[str, tuple[int, int]]] = {
    "input_dtype": ("input_dtype", (2, 8)),
    "input_static_size": ("input_static_dim", (2, 8)),
    "input_stride": ("input_stride", (2, 8)),
    "input_too_large": ("input_range", (2, 8)),
    "input_too_small": ("input_range", (2, 8)),
    "input_on_another_device": ("input_device", (2, 8)),
    "input_sizes_disagree": ("size_stride_assert", (2, 13)),
    "too_few_inputs": ("input_count", (2, 8)),
    "too_many_arguments": ("input_count", (2, 8)),
    "other_keywords": ("kwarg_names", (2, 8)),
    "bad_index": ("cpu_index_assert", (2, 8)),
    "bad_scatter_index": ("cpu_index_assert aten_index", (2, 8)),
    "nan_assertion": ("nan_check", (2, 13)),
    "size_assertion": ("runtime_assert", (2, 8)),
    "wrong_fake_size": ("size_stride_assert", (2, 13)),
    "wrong_fake_dtype": ("size_stride_assert", (2, 15)),
    "operator_raises": ("operator_raised", (2, 8)),
    "operator_unknown": ("op_not_registered", (2, 8)),
    "no_such_file": ("zip_open", (2, 8)),
    "no_archive": ("zip_archive", (2, 8)),
    "cut_archive": ("zip_archive", (2, 8)),
    "no_such_model": ("model_name", (2, 8)),
    "no_library": ("package_file_missing", (2, 8)),
    "no_metadata": ("package_file_missing", (2, 8)),
    "cut_library": ("segfault", (2, 8)),
    "unknown_constant": ("constant_unknown", (2, 8)),
    "constant_left_out": ("constant_unknown", (2, 8)),
    "dim_too_wide": ("export_constraints", (2, 8)),
    "data_dependent_guard": ("data_dependent", (2, 8)),
    "unknown_option": ("wrong_api_argument", (2, 8)),
    "bad_printer_level": ("wrong_api_argument", (2, 8)),
    "exported_guard": ("guard_failed guard_range", (2, 8)),
    "no_compiler": ("no_compiler", (2, 8)),
}


class Texts:
    """The errors of one release, printed once."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.directory = release.directory / "texts"

    def read_as(self, kind: str) -> Outcome:
        """The root is of the family that the same fault has in every release."""
        log = self.directory / f"{kind}.log"
        if not log.exists():
            self.release.build()
            argv = ("-m", "benchmarks.releases.provoke", str(self.release.zoo), str(self.directory))
            done = self.release.child(*argv)
            assert log.exists(), done.stderr[-400:]
        wanted, _ = EXPECTED[kind]
        root = read_log_file(log).root
        found = root.family.id if root else None
        return "" if found in wanted.split() else f"{found} instead of {wanted}"

    def trials(self) -> Trials:
        said = [kind for kind, (_, since) in EXPECTED.items() if self.release.release >= since]
        return {kind.replace("_", " "): partial(self.read_as, kind) for kind in said}
