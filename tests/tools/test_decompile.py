"""`decompile`: a package as a program that imports only torch, and how both compare."""

import copy
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.package.pytorch.program import write_program
from mcp_server.package.view import PackageView, view_package
from tests.conftest import ROOT, Zoo, torch_environment
from tests.package.archives import Members, changed, name_ending
from tests.recorded import RECORDINGS
from tests.support.command import output_of, typed
from tests.support.programs import recorded
from tests.zoo.names import THOROUGH, nightly, thorough

pytestmark = pytest.mark.slow

AGREE = ["jagged", *nightly("plugin", "attention", "counter", "logarithm", "norms", "ranker", "unbacked")]


def decompile(package: Path, out: Path, *words: str) -> tuple[int, dict[str, Any]]:
    return command("decompile", str(package), "--out", str(out), *words)


def command(*words: str) -> tuple[int, dict[str, Any]]:
    done = typed(*words, "--json")
    return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {"error": done.stderr}


@pytest.mark.parametrize("name", AGREE)
def test_a_package_and_its_program_agree(zoo: Zoo, tmp_path: Path, name: str) -> None:
    """Every launch is read, launches and outputs are equal up to rounding, and the code passes a linter."""
    package, out = zoo(name), tmp_path / "out"
    words = ["--inputs", str(package.with_name(f"{name}.inputs.pt"))]
    if name == "plugin":
        words += ["--extra-imports", str(ROOT / "tests" / "zoo" / "models.py")]
    code, found = decompile(package, out, *words)
    assert (code, found["outcome"], found["not_read"]) == (0, "agrees", []), found
    assert {each["agreement"] for each in found["by_launch"]} <= {"equal", "rounding"}, found["by_launch"]
    text = (out / "model.py").read_text()
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--quiet", str(out / "model.py")]
    assert output_of(ruff).stdout == ""
    imported = {line.split()[1] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert imported <= {"json", "os", "torch", "torch.nn"}


CUDA = ["logarithm", *nightly("attention", "counter", "jagged", "scatter")]
RUN = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("model", sys.argv[1] + "/model.py")
spec.loader.exec_module(model := importlib.util.module_from_spec(spec))
weights = [sys.argv[1] + "/weights.safetensors"] if "load_weights" in vars(model) else []
with torch.no_grad():
    found = model.Model(*weights)(*torch.load(sys.argv[3]))
    wanted = torch._inductor.aoti_load_package(sys.argv[2])(*torch.load(sys.argv[3]))
for one, two in zip(found, [wanted] if isinstance(wanted, torch.Tensor) else wanted):
    torch.testing.assert_close(one, two)
"""


def _wrapper(members: Members, text: bytes) -> Members:
    return {name_ending(members, ".wrapper.cpp"): text}


@pytest.mark.parametrize("name", CUDA)
def test_the_program_of_a_cuda_package_runs_without_a_gpu(zoo: Zoo, tmp_path: Path, name: str) -> None:
    """It is read completely and right on the CPU, although attention has no layout in the wrapper."""
    recorded, package = RECORDINGS / "wrappers" / f"{name}.torch-2.11-cuda.cpp", zoo(name)
    text = recorded.read_bytes()
    cuda = changed(package, tmp_path / "cuda.pt2", lambda each: each.update(_wrapper(each, text)))
    _, found = decompile(cuda, tmp_path / "out")
    assert found["not_read"] == [] and found["launches"] == found["read"] > 0, found
    decompile(package, tmp_path / "cpu")
    if (weights := tmp_path / "cpu" / "weights.safetensors").exists():
        shutil.copy(weights, tmp_path / "out" / "weights.safetensors")
    inputs = package.with_name(f"{name}.inputs.pt")
    argv = [sys.executable, "-c", RUN, str(tmp_path / "out"), str(package), str(inputs)]
    done = output_of(argv, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_program_raises_what_the_kernel_asserts(zoo: Zoo, tmp_path: Path) -> None:
    """An index outside its table gives launch, element, value and limit, where the package aborts."""
    package = zoo("ranker")
    code, found = decompile(package, tmp_path / "out", "-i", str(package.with_name("ranker.bad-index.pt")))
    assert (code, found["outcome"]) == (1, "program_failed")
    assert "launch 0: index 32 at [" in found["error"] and "0 <= index < 32" in found["error"]


@thorough
def test_layer_norms_are_put_together(zoo: Zoo) -> None:
    """A layer norm or softmax is one line, launches have few lines, and results are named after modules."""
    assert ".softmax(-1)" in write_program(view_package(zoo("ranker"))).text
    norms = write_program(view_package(zoo("norms")))
    assert norms.text.count("F.layer_norm(") >= 5 and "F.gelu(" in norms.text
    lines = sorted(len(each.lines) for each in norms.launches if each.name)
    assert lines[len(lines) // 2] <= 6


CHANGED = [
    ("ranker", "inputs", "clamp_min(tmp0, decltype(tmp0)(0))", "clamp_min(tmp0, decltype(tmp0)(1))", 2),
    # another row, another element of a sum, and a missing last vector
    ("ranker", "inputs", "x1 + 16L*tmp0", "x1 + 8L*tmp0", 0),
    ("ranker", "inputs", "out_ptr0[static_cast<int64_t>(3L +", "out_ptr0[static_cast<int64_t>(2L +", 4),
    ("ranker", "inputs", "(192L*ks0); x0+=", "(192L*ks0 - 8L); x0+=", 2),
    # the epsilon of a layer norm, a relative change of 5e-6
    ("attention", "inputs", "static_cast<float>(1e-05)", "static_cast<float>(2e-05)", 0),
    ("ranker", "inputs", "tmp0 - tmp8", "tmp0 + tmp0", 4),
    ("branch", "inputs", ".sin()", ".cos()", 1),
    # NaN in both, and finite elements differ
    ("logarithm", "bad-nan", "tmp2.log()", "tmp2.log() + tmp2", 1),
]


def with_source(package: Path, folder: Path, old: str, new: str) -> Path:
    """Write the package with a text of its kernels changed after the compile."""

    def edit(members: Members) -> None:
        kernels = name_ending(members, ".kernel.cpp")
        assert old.encode() in members[kernels]
        members[kernels] = members[kernels].replace(old.encode(), new.encode())

    return changed(package, folder / "changed.pt2", edit)


@thorough
@pytest.mark.parametrize("name, inputs, old, new, launch", CHANGED)
def test_a_launch_that_differs_is_named_and_no_other(
    zoo: Zoo, tmp_path: Path, name: str, inputs: str, old: str, new: str, launch: int
) -> None:
    """The source of a kernel differs from what was compiled."""
    package = zoo(name)
    words = ["--inputs", str(package.with_name(f"{name}.{inputs}.pt"))]
    _, same = decompile(package, tmp_path / "same", *words)
    _, found = decompile(with_source(package, tmp_path, old, new), tmp_path / "out", *words)
    assert same["outcome"] == "agrees" and found["outcome"] == "differs"
    differ = [each["launch"] for each in found["by_launch"] if each["agreement"] == "different"]
    assert differ == [launch] and f"; 1 differs: launch {launch}," in found["summary"]
    wrong = any(each["agreement"] == "different" for each in found["outputs"])
    assert wrong == ("the package does not compute what its source says" in found["summary"])
    idle = [sum(each["agreement"] == "not_run" for each in one["by_launch"]) for one in (same, found)]
    assert idle[0] == idle[1] < len(found["by_launch"])


@pytest.mark.parametrize(
    "name, statement", [("loop", "        while True:"), *nightly(("branch", "        else:"))]
)
def test_control_flow_is_that_of_python(zoo: Zoo, tmp_path: Path, name: str, statement: str) -> None:
    """A branch and a loop agree. Launches of the branch not taken are reported as not run."""
    package = zoo(name)
    _, found = decompile(package, tmp_path / "out", "--inputs", str(package.with_name(f"{name}.inputs.pt")))
    assert found["outcome"] == "agrees" and found["not_read"] == []
    assert statement in (tmp_path / "out" / "model.py").read_text().splitlines()
    idle = [each["why"] for each in found["by_launch"] if each["agreement"] == "not_run"]
    assert len(idle) == (3 if name == "branch" else 0)
    assert all("did not come to it" in why for why in idle)


@pytest.mark.parametrize(
    ("form", "row"), [("script", CHANGED[0]), *nightly(*(("package", row) for row in CHANGED[:4]))]
)
def test_the_source_is_the_reference_of_a_package_alone(
    zoo: Zoo, tmp_path: Path, form: str, row: tuple[str, str, str, str, int]
) -> None:
    """Without a program, a launch that differs from its source is proven by compiling it; in scripts too."""
    package, (name, inputs, old, new, launch) = zoo("ranker"), row
    file, wrong = package.with_name(f"{name}.{inputs}.pt"), with_source(package, tmp_path, old, new)
    words = [str(wrong), "--inputs", str(file)]
    if form == "script":
        lines = ["import torch", f"model = torch._inductor.aoti_load_package({str(wrong)!r})"]
        (tmp_path / "serve.py").write_text("\n".join([*lines, f"model(*torch.load({str(file)!r}))"]))
        words = [str(tmp_path / "serve.py")]
    code, found = command("diagnose", *words, "--symptom", "wrong-output")
    assert (code, found["outcome"], found["confidence"]) == (1, "fault", "proven")
    assert found["guilty"]["launch_index"] == launch
    assert "compiled again from its source" in found["confirmed"]["what"]


@thorough
def test_a_package_whose_launches_are_what_their_source_says(zoo: Zoo) -> None:
    """All launches are cleared, and the question stays open."""
    package = zoo("ranker")
    words = ["--inputs", str(package.with_name("ranker.inputs.pt")), "--symptom", "wrong-output"]
    code, found = command("diagnose", str(package), *words)
    assert (code, found["outcome"]) == (3, "inconclusive")
    assert found["summary"].startswith("Each launch computes what its generated code says")


def test_an_edit_of_the_program_is_tried_on_the_failing_call(zoo: Zoo, tmp_path: Path) -> None:
    """As a whole and as one launch, the edit removes the failure and is the fix. A control fails."""
    package, program = zoo("logarithm"), tmp_path / "out" / "model.py"
    decompile(package, tmp_path / "out")
    bad = ["try-fix", str(package), "--inputs", str(package.with_name("logarithm.bad-nan.pt"))]
    code, found = command(*bad, "--edit", str(program))
    assert code == 2 and "as decompile writes it" in found["error"]
    program.write_text(program.read_text().replace(".log()", ".clamp(min=1e-6).log()"))
    for more in ([], *([["--launch", "1"]] * THOROUGH)):
        _, found = command(*bad, "--edit", str(program), *more)
        assert found["outcome"] == "fixed" and "The fix: make the same edit in the model" in found["summary"]
        assert ".clamp(" not in found["code_before"] and ".clamp(min=1e-6)" in found["code_after"]
    if not THOROUGH:
        return
    code, found = command(*bad, "--edit", str(program), "--launch", "0")
    assert code == 2 and "no function for this launch: 0\n  expected: 1" in found["error"]
    good = ["try-fix", str(package), "--inputs", str(package.with_name("logarithm.inputs.pt"))]
    code, found = command(*good, "--edit", str(program))
    assert code == 2 and "without the edit the program does not fail" in found["error"]


MADE = """
import sys, torch
from torch._higher_order_ops.while_loop import while_loop

class Draws(torch.nn.Module):
    def forward(self, x):
        a = (x + torch.rand_like(x)).relu() @ x.t()
        return a * torch.randn(8, 8) + torch.randint(3, 10, (8, 8)), torch.bernoulli(x.sigmoid())

class Flows(torch.nn.Module):
    def forward(self, x, n):
        def swap(a, b, n):
            c = torch.cond(b.sum() > 0, lambda v: v.tanh() - 1, lambda v: v + 0.3, (a,))
            return b.clone(), c + b, n - 1
        a, b, _ = while_loop(lambda a, b, n: (n > 0).squeeze(), swap, (x, x * 2, n))
        return torch.cond(x.shape[0] > 6, lambda a: a.sin(), lambda a: a.cos(), (a,)), b

class Joins(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.days, self.hours = torch.nn.Embedding(7, 6), torch.nn.Embedding(24, 6)
        self.out = torch.nn.Linear(28, 5)
    def forward(self, x, ids):
        both = torch.cat([self.days(ids), self.hours(ids)], -1)
        return self.out(torch.cat([x.tanh(), both], -1))

class Layouts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.GroupNorm(4, 16)
        self.experts = torch.nn.Parameter(torch.randn(4, 8, 6))
        self.turn = torch.nn.Parameter(torch.randn(9, 3, dtype=torch.complex64))
    def forward(self, x):
        image = self.conv(x.view(1, 3, 10, 16)).sigmoid()
        wide = torch.nn.functional.interpolate(image[..., ::2, ::2], scale_factor=2, mode="bilinear")
        pooled = torch.nn.functional.adaptive_avg_pool2d(self.norm(image + wide).relu(), 3)
        rows = x.view(2, 12, 20)
        rows = ((rows - rows.mean(1, keepdim=True)) / rows.std(1, keepdim=True)).transpose(1, 2)
        chosen = torch.einsum("tef,efd->ted", x[:20].view(5, 4, -1)[..., :8].tanh(), self.experts)
        turned = torch.view_as_real(self.turn * (2 - 1j) + self.turn)
        return pooled, torch.cat([rows, rows.roll(1, -1)], 1), chosen, turned

class Turns(torch.nn.Module):
    def forward(self, x):
        return torch.ops.made.turned(x).sin() * torch.arange(16.0)

class Peaks(torch.nn.Module):
    mixed = torch.rand(200, 200) / 200
    def forward(self, x):
        rows = (x - x @ self.mixed) / ((x * x) @ self.mixed.abs() + 1e-6).sqrt()
        largest = torch.nn.functional.max_pool1d(rows.abs()[:, None], 5, 1, 2)[:, 0]
        around = torch.nn.functional.pad(rows[:, None], (2, 2), mode="circular")
        return torch.nn.functional.conv1d(around, self.mixed[:1, None, :5]), rows.abs() >= largest

sys.path.insert(0, sys.argv[1])
import ops
made = {each.__name__.lower(): each for each in (Draws, Flows, Joins, Layouts, Peaks, Turns)}[sys.argv[2]]()
more = {"flows": [torch.tensor([5])], "joins": [torch.arange(7)]}.get(sys.argv[2], [])
size = {"joins": (7, 16), "layouts": (30, 16), "peaks": (40, 200)}.get(sys.argv[2], (8, 16))
given = [torch.randn(size), *more]
rows = [{0: torch.export.Dim("rows", min=2, max=64)}, None] if sys.argv[2] == "flows" else None
program = torch.export.export(made, tuple(given), dynamic_shapes=rows)
files = {"package_constants_in_so": False, "package_constants_on_disk_format": "pickle_weights"}
stored = {"joins": {"force_mmap_weights": True}, "layouts": files}.get(sys.argv[2], {})
options = {f"aot_inductor.{name}": value for name, value in stored.items()}
path = sys.argv[1] + "/made.pt2"
torch._inductor.aoti_compile_and_package(program, package_path=path, inductor_configs=options)
torch.save(given, sys.argv[1] + "/inputs.pt")
"""


OPS = """
import torch

@torch.library.custom_op("made::turned", mutates_args=())
def turned(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t()

@turned.register_fake
def _(x):
    return torch.empty(x.shape)
"""


MADE_OUTCOMES = dict.fromkeys(("joins", "layouts", "peaks"), "agrees") | {"turns": "differs"}


def made_and_read(name: str, folder: Path, outcome: str = "agrees") -> dict[str, Any]:
    """The result for a package of one of these models and its program."""
    ops = folder / "ops.py"
    ops.write_text(OPS)
    argv = [sys.executable, "-c", MADE, str(folder), name]
    subprocess.run(argv, check=True, env=torch_environment(), capture_output=True, timeout=600)
    words = ["--inputs", str(folder / "inputs.pt"), "--extra-imports", str(ops)]
    _, found = decompile(folder / "made.pt2", folder / "out", *words)
    assert found["outcome"] == outcome and found["not_read"] == [], found
    return found


@pytest.mark.parametrize(("name", "outcome"), nightly(*MADE_OUTCOMES.items()))
def test_a_launch_is_judged_on_its_memory(tmp_path: Path, name: str, outcome: str) -> None:
    """Parts of a tensor share memory, and a kernel reads an operator's result with the layout it expects.

    The operator returns other strides than its fake function: the package is wrong, but no launch is.
    Weights are behind the library or in files of torch.save, one of them complex. A kernel reads its own
    results by place. An argument owns its handle. A comparison may flip where two kernels round one value.
    """
    found = made_and_read(name, tmp_path, outcome)
    assert {each["agreement"] for each in found["by_launch"]} <= {"rounding", "equal"}, found


@thorough
def test_a_loop_that_swaps_and_a_test_of_a_size_agree(tmp_path: Path) -> None:
    """Each iteration takes handles from the one before, and one iteration has a condition."""
    made_and_read("flows", tmp_path)
    text = (tmp_path / "out" / "model.py").read_text()
    assert re.search(r"^        if \w+ > 6:$", text, re.M)
    assert re.search(r"^            \w+, \w+, \w+ = ", text, re.M)


@thorough
def test_random_numbers_are_those_of_the_package(tmp_path: Path) -> None:
    """Uniform, normal and integer draws depend on seed and offset, and seeds on the generator.

    The generator of a process has its own seed. Whether a product is equal to the last bit depends on the
    draw. A draw compared with a probability is either the same or not.
    """
    found = made_and_read("draws", tmp_path)
    product, drawn = (each["agreement"] for each in found["outputs"])
    assert product in ("rounding", "equal") and drawn == "equal"
    assert {each["agreement"] for each in found["by_launch"]} <= {"rounding", "equal"}


def test_the_users_files_are_kept(zoo: Zoo, tmp_path: Path) -> None:
    """A folder that is not empty is rejected, and an unknown launch is named."""
    (tmp_path / "mine.txt").write_text("mine")
    code, found = decompile(zoo("ranker"), tmp_path)
    assert code == 2 and "not empty" in found["error"]
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    code, found = decompile(zoo("ranker"), tmp_path / "out", "--launches", "9")
    assert code == 2 and "0 to 4" in found["error"]


@pytest.mark.parametrize("hostile", ['x"] = 1\nimport os; os.abort() #', "x\u00b2", "float"])
def test_names_of_a_package_are_no_code(zoo: Zoo, hostile: str) -> None:
    """A weight named like code, or like a name in the program, stays a string."""
    view = view_package(zoo("ranker"))
    package = copy.copy(view.package)
    package.__dict__["constants"] = tuple(replace(each, fqn=hostile) for each in view.package.constants)
    text = write_program(PackageView(package)).text
    codes = compile(text, "model.py", "exec").co_consts
    assert not any("float" in getattr(each, "co_varnames", ()) for each in codes)
    assert not any(line.strip().startswith("import os;") for line in text.splitlines())


class Tagged:
    """A list or dict with its type's tag, as `torch::jit::pickle_save` writes it."""

    def __init__(self, value: Any, kind: str) -> None:
        self.value, self.kind = value, kind

    def __reduce__(self) -> Any:
        from torch.jit._pickle import restore_type_tag

        return restore_type_tag, (self.value, self.kind)


def captured(folder: Path, how: str) -> Path:
    """Write the kernel captures of a call of the recorded package `jagged`, with a fault at its first launch.

    The format is that of torch's `kernel_capture.h`, which no release has. Compiled against it,
    `aoti_torch_save_kernel_capture` wrote the same members and pickle with torch 2.13.
    """
    import torch

    draw = torch.Generator().manual_seed(0)
    rows, ids, weight = torch.randn(9, 8, generator=draw), torch.tensor([0, 3, 8, 2, 1]), torch.ones(4, 8)
    rows[2, 3] = float("nan") if how == "nan given" else 1.0
    picked = rows[ids] * 2
    if how == "other numbers":
        picked[2, 3] += 1
    if how == "index":
        ids[3] = 9
    empty = torch.empty(5, 8), torch.zeros(5, 4), torch.zeros(8)
    calls = {
        "call_triton_poi_fused_index_mul_0_470": [ids, rows, empty[0], 9, 5, 8, 0],
        "aoti_torch_cuda_mm_out_481": [empty[1], picked, weight.t()],
        "call_triton_red_fused_mean_1_490": [rows, empty[2], 8, 9, 0],
        "call_triton_poi_fused_add_addmm_mean_slice_2_496": [picked @ weight.t(), rows.sum(0), 9, 20, 0],
    }
    kept = folder / "captures"
    kept.mkdir()
    for name, arguments in list(calls.items())[: 1 if how == "index" else 4]:
        kernel, _, tag = name.rpartition("_")
        content = {"kernel": kernel, "tag": tag, "args": Tagged(arguments, "List[Any]")}
        torch.save(Tagged(content, "Dict[str, Any]"), kept / f"{name}_req3.pt")
    return kept


CAPTURES = {
    "healthy": ("inconclusive", None, None, "Of 3 launches, each on its own inputs, "),
    "nan given": ("inconclusive", None, None, "Of 3 launches, each on its own inputs, "),
    "index": ("fault", "index_out_of_bounds", 0, "launch 0: index 9 at [3] is not in -9 <= index < 9"),
    "other numbers": ("fault", "wrong_output", 0, "buf0 of launch 0 differs by up to 1 "),
}


@pytest.mark.parametrize("how", CAPTURES)
def test_captured_launches_are_judged_by_their_source(tmp_path: Path, how: str) -> None:
    """Without inputs and GPU, the launch is named, with its inputs and what a later launch read."""
    view, kept = recorded("jagged", tmp_path), captured(tmp_path, how)
    outcome, category, launch, told = CAPTURES[how]
    _, found = command("diagnose", str(view.package.path), "--recording", str(kept))
    assert (found["outcome"], found["category"]) == (outcome, category), found
    assert (found["guilty"] or {}).get("launch_index") == launch
    assert told in json.dumps(found), found
    if how == "index":
        assert "arg3_1 int64[5], 0 to 9" in found["evidence"][0]["fact"] and found["confidence"] == "likely"
    _, listed = command("recordings", str(kept))
    assert {each["request"] for each in listed["captures"]} == {3}


def test_what_is_no_capture_of_the_package_is_said(tmp_path: Path) -> None:
    """The error names a kernel of another package, arguments of another launch, or a file that runs code."""
    view, kept = recorded("jagged", tmp_path), captured(tmp_path, "healthy")
    first, second, *others = sorted(kept.iterdir())
    content = first.read_bytes()
    for each in (first, second, *others):
        each.unlink()
    cases = {"call_other_1_req3.pt": "no kernel capture is of a launch", second.name: "number of tensors"}
    for name, why in cases.items():
        (kept / name).write_bytes(content)
        _, found = command("diagnose", str(view.package.path), "--recording", str(kept))
        assert why in json.dumps(found), found
        (kept / name).unlink()
