"""Changes that make an export pass: each row of the table on a small model, compared with eager mode."""

import importlib.util
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from mcp_server.worker.capture.attempts import attempts
from mcp_server.worker.capture.changes import Failing
from tests.support.command import answered
from tests.zoo.names import nightly, thorough

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
# Name of the row, body of forward, inputs. If the row is about a size, `x` has a dynamic first dimension.
ROWS: list[tuple[str, str, tuple[torch.Tensor, ...]]] = [
    ("branch", "if x.sum() > 0:\n    return x + 1, x\ny = x * 2\nx = y + x\nreturn x - 1, y", ()),
    ("branch", "y = x * 2\nif x.max().item() > 1:\n    y = y + 1\nelse:\n    y = y - 1\nreturn y", ()),
    ("branch", "y = x\nif (x.mean() > 0) and not (x.max() > 9):\n    y = y * 2\nreturn y", ()),
    ("branch", "y = x\nif x.max() > 0:\n    z = x * 2\n    y = y + z\nreturn y", ()),
    ("conditional expression", "return x + (1 if x.sum() > 0 else 2)", ()),
    ("number of a tensor, branch", "y = x + int(k.max())\nif y.sum() > 0:\n    y = y + 1\nreturn y",
     (torch.tensor([3, 2]),)),
    ("loop", "y = x\nwhile y.abs().max() > 1:\n    y = y * 0.5\nreturn y", ()),
    ("loop", "n = 0\ny, z = x, x\nwhile y.abs().max() > 1 and n < 9:\n    y, z = y * 0.5, y\n    n += 1\n"
     "return y + z", ()),
    ("loop", "for i in range(int(k)):\n    x = x * 2\nreturn x", (torch.tensor(3),)),
    ("loop", "h = x[0] * 0\nfor i in range(x.shape[0]):\n    h = h * 0.5 + x[i]\nreturn h", ()),
    ("packed sequence", "p = torch.nn.utils.rnn.pack_padded_sequence(x[..., None], k, True, False)\n"
     "p, h = self.cell(p)\nreturn torch.nn.utils.rnn.pad_packed_sequence(p, True)[0], h[-1]",
     (torch.tensor([6, 2, 3, 4]),)),
    ("largest first", "n = x.shape[0]\nif len(self.grown) < n:\n    self.grown = torch.arange(n * 1.0)\n"
     "return self.grown[:n, None] + x", ()),
    ("assertion", "assert (x > -100).all(), 'low'\nreturn x * 2", ()),
    ("assertion", "if k.sum() != 5:\n    raise ValueError(k)\nreturn x * 2", (torch.tensor([3, 2]),)),
    ("number of a tensor", "return torch.zeros(int(k.max())) + x.sum()", (torch.tensor([3, 2]),)),
    ("choice of a module", "return self.parts[k.item()](x)", (torch.tensor(1),)),
    ("choice of a module", "n = (0, 1)[k.item()]\nreturn self.parts[n](x)", (torch.tensor(1),)),
    ("early exit", "y = x * 0\nn = y[0]\nfor i in range(9):\n    x = x * 0.5\n    z, n = x * 2, n + 1\n"
     "    y[i % 4] += z[0]\n    if z.abs().max().item() < 1:\n        break\nreturn x, y, n", ()),
    ("one-hot", "return torch.nn.functional.one_hot(k) + x.sum().long()", (torch.tensor([1, 3]),)),
    ("tensor of tensors", "return torch.tensor([x.mean(), x.max()])", ()),
    ("fixed table", "return x + self.table", ()),
    ("check if empty", "for i in range(2):\n    j = (k == i).nonzero().squeeze(1)\n    if j.numel() == 0:\n"
     "        continue\n    x = x.index_add(0, j, x[j])\nreturn x", (torch.tensor([0, 1, 1, 0]),)),
    ("least squares", "return torch.linalg.lstsq(x.T @ x + torch.eye(6), x.T).solution", ()),
    ("written batch", "return x.reshape(4, 3, 2).sum(1) + 0 * x.shape[0]", ()),
    ("branch", "return clipped(x)", ()),  # the branch is in a plain function that forward calls
    ("suggested dimension", "return x + self.table[: x.shape[0]]", ()),
    ("padding", "n = x.shape[0]\nif n < 9:\n    x = torch.nn.functional.pad(x, (0, 0, 0, 9 - n))\n"
     "return x[:9]", ()),
    ("loop over slices", "h, out = x[0] * 0, []\nfor i, row in enumerate(x):\n    h = h * 0.5 + row * i\n"
     "    out.append(h[None] + 1)\nreturn torch.cat(out, dim=1), h, x.shape[0]", ()),
    ("loop over slices", "n, out = x.shape[0], []\nfor row in x:\n    out.append(row.sin())\n"
     "return torch.stack(out, 1)", ()),
    ("loop over slices", "h, out = x[0] * 0, x[:0]\nfor i in range(x.shape[0]):\n    h = h * 0.5 + x[i]\n"
     "    out = torch.cat([out, h[None]], dim=0)\nreturn out, h", ()),
    ("early exit", "for i in range(5):\n    last = x[:, -1:] * 0.5\n    x = torch.cat([x, last], dim=1)\n"
     "    if (last.abs() < 0.2).all():\n        break\nreturn x", ()),
    ("branch", "n, m = x.shape\nif 2 < n <= 9 and not not m % 4:\n    x = x * 2\nreturn x", ()),
    ("check of a size", "if x.shape[0] not in (4, 8):\n    raise ValueError(x)\nreturn x * 2", ()),
    ("truth of a tensor, branch", "up = bool((x > 9).any())\nif up:\n    x = x * 2\nreturn x", ()),
    ("early exit", "y = x[:, :1]\nwhile y.shape[1] < 5 and not (y[:, -1] > 1).all():\n"
     "    y = torch.cat([y, y[:, -1:] * 2], dim=1)\nreturn y", ()),
    ("cached size", "n = x.shape[0]\nif n != self.num_classes or not len(self.grown):\n"
     "    self.grown = torch.arange(n)\n    self.num_classes = n\nreturn self.grown[:, None] + x", ()),
    ("check if empty", "j = (x[:, 0] > 0.1).nonzero().squeeze(1)\nif j.numel() == 0:\n"
     "    return torch.zeros(0, 6)\nreturn self.parts[0](x[j]) * x[j, :1]", ()),
    ("branch", "j = x[x > 0.1]\nif len(j) == 0:\n    return torch.zeros(())\nreturn j.mean()", ()),
    ("choice of a module", "level = {0: 0.5, 1: 2.0}\nreturn x * level[int(k)]", (torch.tensor(1),)),
    ("NumPy", "import numpy as np\nreturn torch.from_numpy(np.exp(x.numpy())) / np.sqrt(x.shape[0])", ()),
    ("NumPy", "import numpy as np\nk = 2\nnp.zeros(shape=k)\nreturn torch.from_numpy(np.exp(x.numpy()))", ()),
    ("log line", "print(f'at most {x.max():.1f}')\nreturn x * 2", ()),
    ("container", "return {'all': [Pair(x + 1, x.sum())]}", ()),
    ("written device", "return x + torch.ones(6, device='cuda')", ()),
    ("integer of a size, part of a size", "k = int(x.shape[0] * 0.5)\nreturn x[:k] * 2", ()),
    ("operator", "left, kept = x[:, 0].argsort(), []\nwhile left.numel():\n    kept.append(left[0])\n"
     "    left = left[1:][x[left[1:], 0] > x[left[0], 0] + self.num_classes / 9]\n"
     "return x[torch.stack(kept)]", ()),
    ("gradient", "y = x.detach().requires_grad_(True)\n"
     "return torch.autograd.grad(self.parts[0](y).sin().sum(), y)[0] * 2", ()),
    ("gradient", "return torch.func.vmap(torch.func.jacrev(torch.sin))(x)", ()),
    ("early exit", "for part in self.parts:\n    y = part(x)\n    if y.max() > 9: break\nreturn y", ()),
    ("filter", "return torch.stack([p.sum(0) for p in x.split(k.tolist()) if len(p) > 0])",
     (torch.tensor([3, 1]),)),
    ("deep copy", "import copy\ny = copy.deepcopy({'x': x})\ny['x'][0] = 0\nreturn y", ()),
    ("fake function", "return torch.ops.small.doubled(x)[0] + 1", ()),
]  # fmt: skip
MODEL = """
import dataclasses
import torch

@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor

def clipped(y):
    if y.abs().max() > 1:
        y = y / 2
    return y

library = torch.library.Library("small", "FRAGMENT")
if not hasattr(torch.ops.small, "doubled"):
    library.define("doubled(Tensor x) -> Tensor[]")
    library.impl("doubled", lambda x: [x * 2, x[:, :1].contiguous()], "CPU")

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.num_classes = 4
        self.parts = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(2))
        self.cell = torch.nn.GRU(1, 3, batch_first=True)
        self.register_buffer("grown", torch.zeros(0), persistent=False)
        self.register_buffer("table", torch.arange(24.0).view(4, 6))

    def forward(self, x, k=None):
{body}
"""


def model_of(body: str, folder: Path) -> torch.nn.Module:
    path = folder / "small_model.py"
    path.write_text(MODEL.format(body=textwrap.indent(body, "        ")))
    spec = importlib.util.spec_from_file_location(f"small_model_{abs(hash(body))}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: torch.nn.Module = module.Model().eval()
    return made


def tried(body: str, more: tuple[torch.Tensor, ...], folder: Path) -> list[Any]:
    """The attempts on a model whose export fails."""
    model, args = model_of(body, folder), (X, *more)
    sizes = any(word in body for word in ("table", "shape", "doubled"))
    least = 4 if "int(x.shape" in body else None  # half of a smaller size is 0 or 1, which an export fixes
    shapes = ({0: torch.export.Dim("n", min=least)}, *[None] * len(more)) if sizes else None
    with pytest.raises(Exception) as raised:
        torch.export.export(model, args, dynamic_shapes=shapes, strict=False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    forward = type(model).forward
    options = {"dynamic_shapes": shapes, "strict": False}
    found = attempts(Failing(model, args, {}, options, raised.value, grad=True))
    assert type(model).forward is forward
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return found


@pytest.mark.parametrize("name, body, more", ROWS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_row_lets_it_export(name: str, body: str, more: tuple[torch.Tensor, ...], tmp_path: Path) -> None:
    """The changed model exports, gives eager's outputs, and fails again without the change."""
    *others, last = tried(body, more, tmp_path)
    assert (last.name, last.outcome) == (name, "passes"), (others, last)
    assert last.again and last.sizes >= 1


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("quantized and back", "return torch.quantize_per_tensor(x, 0.1, 3, torch.qint8).dequantize()"),
        ("named result", "return torch.topk(x, 2)"),
        ("number in a tuple", "return x * 2, 0.5"),
        ("number in a tuple", "return {'y': x * 2, 'n': self.cell.dropout, 'of': self.cell.mode}"),
        ("complex number", "return torch.where(x > 0, x + 1j, -1j).masked_fill(x > 1, 0).imag"),
    ],
)
@thorough
def test_what_the_compile_does_not_know_is_rewritten(name: str, body: str, tmp_path: Path) -> None:
    """A quantized dtype, or a type that packages cannot have, is rewritten, with eager's outputs."""
    model = model_of(body, tmp_path)

    def build(program: Any) -> Any:
        return torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "m.pt2"))

    with pytest.raises(Exception) as raised:
        build(torch.export.export(model, (X,), strict=False))
    found = attempts(Failing(model, (X,), {}, {"strict": False}, raised.value, build))
    assert [(each.name, each.outcome) for each in found] == [(name, "passes")]
    assert found[0].again


SCRIPT = """
import torch

class Gate(torch.nn.Module):
    def forward(self, x):
        if x.mean() > 0:
            return x.relu()
        return -x

torch.export.export(Gate(), (torch.ones(4, 8),))
"""


NARROWED = """
import torch

class Gate(torch.nn.Module):
    def forward(self, x):
        if x.shape[0] > 5:
            return x.relu()
        return -x

shapes = {"x": {0: torch.export.Dim.DYNAMIC}}
program = torch.export.export(Gate(), (torch.ones(8, 4),), dynamic_shapes=shapes)
program.module()(torch.ones(4, 4))
"""


def test_a_change_must_hold_at_the_ends_of_the_declared_range(tmp_path: Path) -> None:
    """Shorter inputs are padded to a window of 3 rows: no multiple or looser `Dim` accepts 2 rows."""
    pad = "if x.shape[0] < 3:\n    x = torch.nn.functional.pad(x, (0, 0, 0, 3 - x.shape[0]))"
    found = tried(f"{pad}\nreturn (x.unfold(0, 3, 2) @ torch.ones(3, 2)).amax(0)", (), tmp_path)
    at_end = [each for each in found if each.name in ("multiple", "DYNAMIC")]
    assert {each.outcome for each in at_end} == {"fails"}
    assert any("Guard failed" in each.error for each in at_end), "it exports, and does not take the end"


FIXED_SIZE = """
import torch

class Inner(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        return y.reshape(24)[:3]

class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x.relu())

rows = torch.export.Dim("rows", min=2, max=64)
torch.export.export(Outer(), (torch.ones(6, 4),), dynamic_shapes=({0: rows},))
"""


# A line that compares a size, and that no row rewrites.
COMPARED = FIXED_SIZE.replace("y = x * 2", "if len(x) > 9: print()").replace("y.reshape(24)[:3]", "x")


STOPS = """
import torch

class Trims(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.GRU(6, 8, batch_first=True)

    def forward(self, x, lengths):
        x = x[:, : {longest}]
        return self.encoder(x)[0].sum(1)

torch.export.export(Trims(), (torch.randn(3, 12, 6), torch.tensor([12, 3, 9])))
"""


@pytest.mark.parametrize(
    ("longest", "said"),
    [
        ("int(lengths.max())", "gets past line 10, then stops at line 11: return self.encoder"),
        *nightly(("lengths.max().item()", "pad every input to one length in the caller")),
    ],
)
def test_a_change_that_is_not_enough_tells_where_the_next_is(longest: str, said: str, tmp_path: Path) -> None:
    """The fix says how far the export got, and that a recurrent layer needs a fixed length."""
    script = tmp_path / "trims.py"
    script.write_text(STOPS.format(longest=longest))
    verdict = answered("diagnose", script)
    assert verdict["confidence"] == "likely" and "branch" not in verdict["summary"]
    assert said in verdict["fix"]["text"] and "mask the outputs" in verdict["fix"]["text"]


WIDER = """
import os
import torch

class Best(torch.nn.Module):
    def forward(self, x):
        return {body}

n = torch.export.Dim("n", min={low}, max=64)
path = __file__.replace(".py", ".pt2")
program = torch.export.export(Best(), (torch.rand(2, 30),), dynamic_shapes=({{1: n}},))
torch._inductor.aoti_compile_and_package(program, package_path=path)
os.environ["AOTI_RUNTIME_CHECK_INPUTS"] = "1"
torch._inductor.aoti_load_package(path)(torch.rand(2, 9))
"""


@pytest.mark.parametrize(
    ("body", "low", "wider"), nightly(("x.cos()", 20, True), ("torch.topk(x, 12)[0] * 2", 12, False))
)
def test_a_printed_range_is_one_that_exports(body: str, low: int, wider: bool, tmp_path: Path) -> None:
    """The printed line is the program's. If the model needs the bound, its line is named, without a diff."""
    script = tmp_path / "best.py"
    script.write_text(WIDER.format(body=body, low=low))
    fix = answered("diagnose", script)["fix"]
    line = f'n = torch.export.Dim("n", min={low}, max=64)'
    if wider:
        assert (fix["before"], fix["after"]) == (line, line.replace("20", "9"))
        assert "returns the outputs of eager mode" in fix["text"]
    else:
        assert not fix["after"] and fix["before"] == f"return {body}", fix


POOLED = """
import torch

class Pooled(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.adaptive_max_pool2d(x, (3, 3)).flatten(1)

model = Pooled().eval()
rows = torch.export.Dim("rows", min=6, max=96)
given = torch.rand(1, 2, 12, 9)
program = torch.export.export(model, (given,), dynamic_shapes=({2: rows},))
package = torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(program))
for count in (12, 24):
    given = torch.rand(1, 2, count, 9)
    torch.testing.assert_close(package(given), model(given))
"""


CHECK = "torch.testing.assert_close"
KEEPING = """
import torch

class Keeping(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = {}

    def forward(self, x):
        {}
        return {}

model, given = Keeping().eval(), torch.rand(4)
program = torch.export.export(model, (given,))
package = torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(program))
for _ in range(2):
    given = torch.rand(4)
    {}(package(given), model(given))
"""


def test_an_example_of_size_1_is_replaced_with_one_of_2(tmp_path: Path) -> None:
    """An export fixes a size of 1. With a larger example, the dimension stays dynamic, and accepts 1."""
    model, one = model_of("return x @ self.table.T", tmp_path), X[:1]
    shapes = ({0: torch.export.Dim("n")},)
    with pytest.raises(Exception, match="Constraints violated") as raised:
        torch.export.export(model, (one,), dynamic_shapes=shapes)
    failing = Failing(model, (one,), {}, {"dynamic_shapes": shapes}, raised.value)
    *_, last = attempts(failing)
    assert (last.name, last.outcome) == ("example of size 1", "passes"), last
    assert last.sizes >= 2 and (last.before, last.after) == ("torch.randn(1, 6)", "torch.randn(2, 6)")


class Total(torch.nn.Module):  # type: ignore[misc]
    def forward(self, first: dict[str, torch.Tensor], more: list[torch.Tensor]) -> torch.Tensor:
        return first["a"] + more[0] + more[1]


N = torch.export.Dim("n", max=9)


@pytest.mark.parametrize("shapes", [({0: N}, {0: N}), [{0: N}] * 3, {"one": {0: N}, "two": {0: N}}])
def test_dynamic_shapes_get_the_structure_of_the_arguments(shapes: Any) -> None:
    """Shapes of whole arguments, in a flat list or under other names are nested as the arguments are."""
    args = {"a": X}, [X + 1, X + 2]
    with pytest.raises(Exception) as raised:
        torch.export.export(Total(), args, dynamic_shapes=shapes)
    (found,) = attempts(Failing(Total(), args, {}, {"dynamic_shapes": shapes}, raised.value))
    assert (found.outcome, found.sizes) == ("passes", 6)
    assert found.again
    assert found.after == "dynamic_shapes={'first': {'a': {0: n}}, 'more': [{0: n}, {0: n}]}"


def test_a_change_that_exports_and_does_not_compile_is_no_fix(tmp_path: Path) -> None:
    """A slice that ends in `.item()` exports, but compiles only if its start is written."""
    model, args = model_of("return x[: int(k.sum())] * 2", tmp_path), (X, torch.tensor([1, 2]))
    with pytest.raises(Exception) as raised:
        torch.export.export(model, args, strict=False)
    build = partial(torch._inductor.aoti_compile_and_package, package_path=str(tmp_path / "tried.pt2"))
    only, *others = attempts(Failing(model, args, {}, {"strict": False}, raised.value, build=build))
    assert (only.name, only.outcome, others) == ("number of a tensor, open slice", "passes", []), only
    assert only.compiled and "x[0:k.sum().item()]" in only.after


OF_TENSOR = KEEPING.format("torch.zeros(4)", "self.seen = self.seen * 0.5 + x", "self.seen * 2", CHECK)
OF_NUMBER = KEEPING.format("0", "self.seen += 1", "x * self.seen", CHECK)
SILENT = KEEPING.format("{0: 0}", "self.seen[0] = self.seen[0] + x", "self.seen[0] * 2", "print")
# The script, the guilty category and line, parts of the fix, and what its run showed.
VERDICTS: list[tuple[str, str, int, dict[str, str], str]] = [
    (SCRIPT, "compile_failure", 6, {"after": "return torch.where(x.mean() > 0, x.relu(), -x)"}, "passed"),
    (NARROWED, "shape_out_of_range", 6, {"after": "torch.scalar_tensor(x.shape[0]) > 5"}, "passed"),
    # torch's error names no line of the model, and the attempts are not the program's error.
    (FIXED_SIZE, "compile_failure", 7, {"text": "static"}, ""),
    (COMPARED, "compile_failure", 6, {"text": "or change the line"}, ""),
    *nightly(
        (OF_TENSOR, "wrong_output", 10, {"after": "self.seen.copy_(self.seen * 0.5 + x)"}, ""),
        (OF_NUMBER, "wrong_output", 10, {"after": "x * self.seen[0]"}, "in 3 calls in turn"),
        (SILENT, "wrong_output", 10, {"text": "pass it to forward"}, "its exported program"),
        # The operator's compile assumed sizes, so it runs in eager mode.
        (POOLED, "shape_out_of_range", 6, {"after": "lowerings"}, "at 3 sizes"),
    ),
]


@pytest.mark.parametrize(
    ("program", "category", "line", "fix", "shown"),
    VERDICTS,
    ids=[
        "branch",
        "a narrowed range",
        "a fixed size",
        "a compared size",
        "a tensor",
        "a number",
        "a dict that no check sees",
        "a compile's size",
    ],
)
def test_a_verdict_has_the_line_and_the_change_that_ran(
    program: str, category: str, line: int, fix: dict[str, str], shown: str, tmp_path: Path
) -> None:
    """`proven`: fails, passes with the change, fails without it. The script is not changed."""
    script = tmp_path / "given.py"
    script.write_text(program)
    verdict = answered("diagnose", script)
    assert (verdict["category"], verdict["confidence"]) == (category, "proven"), verdict
    assert verdict["guilty"]["model_locations"][0]["line"] == line
    assert all(words in verdict["fix"][field] for field, words in fix.items()), verdict["fix"]
    assert shown in verdict["confirmed"]["after"] and script.read_text() == program
