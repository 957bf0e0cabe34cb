"""Plants programs, runs each with and without its fault, asks `diagnose`, and judges the verdicts."""

import fcntl
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.plant.disguises import HEALTHY, equal_nan, lay_over, outputs_of
from benchmarks.plant.faults import Draft, Fault, Truth, fault_rows
from benchmarks.plant.faults.models import restored, show
from benchmarks.plant.fixes import fix_right
from benchmarks.plant.judge import Answer, Score, judge
from benchmarks.plant.models import MODELS, Edit, Model
from benchmarks.plant.program import ENDED, PLANTING, Traced, draw_inputs, eager_model, run_program, trace
from mcp_server.package.archive import open_package

ROOT = Path(__file__).resolve().parents[2]
COMMAND_LINE = "from mcp_server.cli.main import main; main()"
HEALTHY_SHARE = 4  # one program in so many is healthy
ATTEMPTS = 6
NO_PLACE = "no place for it"
BUDGET_S = 300  # the default of `diagnose`
PROGRAM = """import sys
from pathlib import Path

import torch

here = Path(__file__).resolve().parent
{top}
model = torch._inductor.aoti_load_package(str(here / "model.pt2"))
{loaded}
{before}
inputs = torch.load(here / "inputs.pt")
outputs = model(*inputs)
{called}
{check}
print("done")
"""
BEFORE = """for number in range({calls}):
    model(*torch.load(here / "before.pt"))"""
CHECKS = {
    "nan": """for output in outputs if isinstance(outputs, (list, tuple)) else [outputs]:
    if output.is_floating_point() and not torch.isfinite(output).all():
        raise ValueError("an output is not finite")
""",
    "expected": """expected = torch.load(here / "expected.pt")
found = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3, equal_nan={equal_nan})
""",
}


@dataclass(frozen=True)
class Asked:
    """Which programs are wanted."""

    seed: int
    forms: tuple[str, ...]
    only: tuple[str, ...]
    device: str
    folder: Path


@dataclass
class Planted:
    """One program: what was planted, what a run showed, how `diagnose` is asked, and the answer."""

    number: int
    fault: str
    model: str
    form: str
    folder: Path
    seen: str = ""
    disguises: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    answer: Answer = field(default_factory=Answer)
    inputs: list[Any] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        return bool(self.arguments)

    def value_at(self, place: int, where: tuple[int, ...]) -> float | None:
        """What an input has at that place. None without such an element."""
        if place >= len(self.inputs):
            return None
        tensor = self.inputs[place]
        inside = len(where) == tensor.dim() and all(
            i < size for i, size in zip(where, tensor.shape, strict=True)
        )
        return float(tensor[where]) if inside else None


def one(asked: Asked, number: int) -> tuple[Planted, dict[str, Any], Score | None]:
    """The program of that number, its verdict and its score; no score if it could not be planted."""
    planted = plant(asked, number)
    if not planted.valid:
        return planted, {}, None
    verdict = ask(planted)
    (planted.folder / "verdict.json").write_text(json.dumps(verdict, indent=1))
    score = judge(planted.answer, verdict, planted.value_at)
    return planted, verdict, replace(score, fix_right=fixed(planted, verdict))


def fixed(planted: Planted, verdict: dict[str, Any]) -> bool | None:
    """Whether the printed fix removes the failure. None for a healthy program, and for a fix in words."""
    fix = verdict.get("fix")
    if not fix or planted.fault in HEALTHY:
        return None
    return fix_right(planted.folder, planted.answer.source, MODELS[planted.model], planted.inputs, fix)


def plant(asked: Asked, number: int) -> Planted:
    """Draw until a program fails as planted and passes without the fault."""
    chance = random.Random(f"{asked.seed}/{number}")
    form = chance.choice(asked.forms)
    faults = {n: row for n, row in fault_rows().items() if form in row.forms and places(row, asked.device)}
    healthy = number % HEALTHY_SHARE == HEALTHY_SHARE - 1
    kind = chance.choice(list(HEALTHY)) if healthy else chance.choice(list(faults))
    if asked.only:
        kind = chance.choice([name for name in asked.only if name in faults or name in HEALTHY])
    planted = Planted(number, kind, "", form, asked.folder / f"{asked.seed}-{number:04}")
    hosts = places(faults.get(kind), asked.device)
    chance.shuffle(hosts)
    for model, edit in hosts:
        problem = attempt(asked, planted, faults.get(kind), model, edit, chance)
        if not problem:
            return planted
        if problem != NO_PLACE:
            planted.refused.append(f"{model.name}: {problem}")
        if len(planted.refused) == ATTEMPTS:
            break
    return replace(planted, arguments=[])


def places(fault: Fault | None, device: str) -> list[tuple[Model, Edit | None]]:
    """The models that torch compiles for the device, each with an edit of its source if the fault is one."""
    models = [model for model in MODELS.values() if device in model.devices]
    if fault is None or not fault.edits:
        return [(model, None) for model in models]
    edits = [(model, edit) for model in models for edit in model.edits if edit.fault == fault.edits]
    return [(model, edit) for model, edit in edits if device in edit.devices]


def attempt(
    asked: Asked,
    planted: Planted,
    fault: Fault | None,
    model: Model,
    edit: Edit | None,
    chance: random.Random,
) -> str:
    """Write the program; what was wrong with it, or an empty text."""
    shutil.rmtree(planted.folder, ignore_errors=True)
    planted.folder.mkdir(parents=True)
    planted.model = model.name
    text = model.text.replace(edit.old, edit.new) if edit else model.text
    try:
        clean = compiled(model, model.text, asked.device)
        built = compiled(model, text, asked.device) if edit else clean
    except NotCompiledError as error:
        return str(error)
    with PLANTING, torch.no_grad():
        draft, eager = drafted(asked, planted, model, built, clean, chance)
        if edit:
            show(draft, edit)
            draft.clean_package = clean / "model.pt2"
        truth = fault.plant(draft) if fault else healthy(planted.fault, draft)
        if truth is None:
            return NO_PLACE
        truth = with_lines(draft, truth, fault, edit, eager, built)
        expected = right_outputs(eager, draft.good)
        wanted = right_outputs(eager, draft.inputs) if draft.expects_inputs else expected
    calls = chance.choice([0, 0, 1, 3]) if planted.form == "script" else 0
    write(planted, draft, wanted, expected, calls)
    problem = validated(planted, fault)
    if problem:
        return problem
    answer = answer_of(fault, replace(truth, call=calls + 1), built, planted.folder, draft)
    fails_always = bool(truth.constant) or (edit is not None and fails_on(built, draft.good, expected))
    planted.answer = replace(answer, first_call=1) if fails_always else answer
    planted.inputs = draft.inputs
    planted.arguments = question(planted, built, chance)
    return ""


def drafted(
    asked: Asked, planted: Planted, model: Model, built: Path, clean: Path, chance: random.Random
) -> tuple[Draft, Any]:
    """A draft with good inputs under disguises, and the eager model without a fault.

    Both are on the CPU, where a bad index raises; on a GPU it would end this process.
    """
    eager = eager_model(clean / "model.py", "cpu")
    good = draw_inputs(model, chance.randrange(10**6), "cpu")
    known = {**dict(eager.named_parameters()), **dict(eager.named_buffers())}
    # A package folds small constants into its code, and refuses an update that names them.
    compiled = {constant.fqn for constant in open_package(built / "model.pt2").constants}
    weights = {name: weight for name, weight in known.items() if name in compiled}
    draft = Draft(
        model=model,
        folder=planted.folder,
        package=built / "model.pt2",
        weights={name: weight.detach() for name, weight in weights.items()},
        good=good,
        inputs=[tensor.clone() for tensor in good],
        chance=chance,
        device=asked.device,
    )
    planted.disguises = lay_over(draft)
    return draft, eager


def healthy(name: str, draft: Draft) -> Truth:
    HEALTHY[name](draft)
    draft.good = draft.inputs
    return Truth()


def with_lines(
    draft: Draft, truth: Truth, fault: Fault | None, edit: Edit | None, eager: Any, built: Path
) -> Truth:
    """The lines that are answers: of the edit, or those where the eager model first goes wrong."""
    if edit:
        lines = (built / "model.py").read_text().splitlines()
        return replace(
            truth,
            lines=tuple(n for n, line in enumerate(lines, 1) if any(part in line for part in edit.lines)),
        )
    if fault and fault.lines_count:
        return replace(truth, lines=first_wrong(trace(eager, draft.good), trace(eager, draft.inputs)))
    return truth


def first_wrong(good: Sequence[Traced], bad: Sequence[Traced]) -> tuple[int, ...]:
    """The lines that make the first infinite value and the first NaN that the good call lacks."""
    pairs = list(zip(good, bad, strict=False))
    infinite = next((b.line for g, b in pairs if b.not_finite and not g.not_finite), None)
    nan = next((b.line for g, b in pairs if b.nan and not g.nan), None)
    return tuple(sorted({line for line in (infinite, nan) if line is not None}))


def right_outputs(eager: Any, given: list[Any]) -> list[Any] | None:
    """What the call should give. None where the model itself refuses its inputs."""
    try:
        return outputs_of(eager(*[tensor.clone() for tensor in given]))
    except (RuntimeError, IndexError):
        return None


def fails_on(built: Path, good: list[Any], expected: list[Any] | None) -> bool:
    """Whether a model with a mistake gives something else for good inputs too."""
    with PLANTING, torch.no_grad():
        found = right_outputs(eager_model(built / "model.py", "cpu"), good)
    if found is None or expected is None:
        return True
    return not all(torch.allclose(a, b, 1e-3, 1e-3) for a, b in zip(found, expected, strict=False))


def write(
    planted: Planted, draft: Draft, wanted: list[Any] | None, without: list[Any] | None, calls: int
) -> None:
    """Write the program and what it reads, with the fault, and without it in the folder `clean`.

    `wanted` and `without` are the right outputs of the two calls.
    """
    clean = planted.folder / "clean"
    clean.mkdir(exist_ok=True)
    restored(draft)
    for folder, package, inputs in (
        (planted.folder, draft.package, draft.inputs),
        (clean, draft.clean_package or draft.package, draft.good),
    ):
        shutil.copyfile(package, folder / "model.pt2")
        torch.save(tuple(moved(tensor, draft.device) for tensor in inputs), folder / "inputs.pt")
        torch.save(tuple(moved(tensor, draft.device) for tensor in draft.good), folder / "before.pt")
    (planted.folder / "changed.pt2").unlink(missing_ok=True)
    meant = planted.fault in HEALTHY and equal_nan(planted.fault)
    for folder, whole, expected in (
        (planted.folder, True, wanted),
        (clean, planted.fault in HEALTHY, without),
    ):
        checks = [] if meant else [CHECKS["nan"]]
        if expected is not None:
            torch.save([output.to(draft.device) for output in expected], folder / "expected.pt")
            checks.append(CHECKS["expected"].format(equal_nan=meant))
        text = PROGRAM.format(
            top="\n".join(draft.top if whole else []),
            loaded="\n".join(draft.loaded if whole or (folder / "weights.pt").exists() else []),
            before=BEFORE.format(calls=calls) if calls else "",
            called="\n".join(draft.called if whole else []),
            check="".join(checks),
        )
        (folder / "program.py").write_text(text)


def moved(tensor: Any, device: str) -> Any:
    """The tensor on that device, with its strides and its place in the storage, which `to` does not keep."""
    if device == "cpu":
        return tensor
    whole = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    return whole.to(device).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def validated(planted: Planted, fault: Fault | None) -> str:
    """Run both programs; what was not as planned."""
    without = run_program(planted.folder / "clean")
    if without != ENDED:
        return f"without the fault: {without}"
    planted.seen = run_program(planted.folder) if fault else without
    return "nothing failed" if fault and planted.seen == ENDED else ""


def answer_of(fault: Fault | None, truth: Truth, built: Path, folder: Path, draft: Draft) -> Answer:
    return Answer(
        categories=fault.categories if fault else (),
        **asdict(truth),
        source=tuple((built / "model.py").read_text().splitlines()),
        program=tuple((folder / "program.py").read_text().splitlines()),
        constants=tuple(draft.weights) if fault else (),
    )


def question(planted: Planted, built: Path, chance: random.Random) -> list[str]:
    """The arguments of `diagnose`."""
    folder = planted.folder
    if planted.form == "script":
        return [str(folder / "program.py")]
    words = [str(folder / "model.pt2"), "--inputs", str(folder / "inputs.pt")]
    if chance.random() < 0.3:
        words += ["--exported", str(built / "exported.pt2")]
    if "not finite" in planted.seen:
        return [*words, "--symptom", "nan"]
    told = equal_nan(planted.fault) or (planted.seen == ENDED and chance.random() < 0.3)
    if planted.seen.startswith("AssertionError") or told:
        return [*words, "--symptom", "wrong-output", "--expect", str(folder / "expected.pt")]
    return words


def ask(planted: Planted) -> dict[str, Any]:
    """The verdict, through the command line."""
    argv = [sys.executable, "-c", COMMAND_LINE, "diagnose", *planted.arguments]
    argv += ["--budget-s", str(BUDGET_S), "--json"]
    try:
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=3 * BUDGET_S)
        found: dict[str, Any] = json.loads(done.stdout)
        (planted.folder / "verdict.json").write_text(done.stdout)
    except subprocess.TimeoutExpired:
        return {"outcome": "no answer", "summary": f"none after {3 * BUDGET_S} s"}
    except ValueError:
        return {"outcome": "no answer", "summary": done.stderr[-300:]}
    return found


def packages_folder() -> Path:
    """Where compiled packages are kept, by model and fault."""
    from tools.made import MADE

    return Path(os.environ.get("AOTI_DEBUG_PLANT_PACKAGES") or MADE / "plant")


class NotCompiledError(Exception):
    """torch does not compile the model for the device."""


def compiled(model: Model, text: str, device: str) -> Path:
    """The folder with the source, the package and the exported program of that text of the model.

    Raises NotCompiledError.
    """
    digest = hashlib.sha256((text + device + torch.__version__).encode()).hexdigest()[:12]
    folder = packages_folder() / f"{model.name}-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "model.pt2").exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "model.py").write_text(text)
            argv = [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "benchmarks.plant.program",
                str(folder),
                model.name,
                device,
            ]
            env = {**os.environ, "INDUCTOR_PROVENANCE": "1"}
            done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True)
            if done.returncode:
                raise NotCompiledError(f"it does not compile: {done.stderr[-800:]}")
    return folder


def records(found: Iterator[tuple[Planted, dict[str, Any], Score | None]]) -> Iterator[dict[str, Any]]:
    """What is kept of each program: no tensors, no source."""
    for planted, verdict, score in found:
        kept: dict[str, Any] = {name: getattr(planted, name) for name in ("number", "fault", "model", "form")}
        kept |= {"seen": planted.seen, "disguises": planted.disguises, "refused": planted.refused}
        if score is not None:
            kept |= {
                **asdict(score),
                "summary": verdict.get("summary", ""),
                "seconds": (verdict.get("cost") or {}).get("wall_s", 0.0),
            }
        yield kept
