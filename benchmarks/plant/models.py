"""The models that faults are planted into: a table of sources in the idioms that people write.

Each is the text of a module with a class `Model`, so that a fault can be an edit of one expression. It also
describes its inputs, which decides what faults fit (an index has a bound, a divisor must not be zero).
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["normal", "uniform", "index", "count", "mask"]


@dataclass(frozen=True)
class Input:
    """One argument of `forward`.

    `shape` has numbers and names of dynamic dimensions. Values are drawn from `low` to `high`, `high` excluded;
    for an index these are its bounds. A count may have any value, since it is compared with positions or
    hashed, not looked up. The other fields say which values the model cannot bear.
    """

    name: str
    shape: tuple[int | str, ...]
    kind: Kind = "normal"
    low: float = -1.0
    high: float = 1.0
    divisor: bool = False  # 0 is not allowed: it is divided by, or its logarithm is taken
    varied: bool = False  # a constant row is not allowed: it is normalised by its deviation
    signed: bool = True  # False: a root or logarithm of it is taken

    @property
    def floating(self) -> bool:
        return self.kind in ("normal", "uniform")


@dataclass(frozen=True)
class Dimension:
    """A dynamic dimension: its exported range, and the sizes of good calls."""

    least: int
    most: int
    usual: tuple[int, int]


EVERY_DEVICE = ("cpu", "cuda")


@dataclass(frozen=True)
class Edit:
    """A mistake in the source: `old` becomes `new`, and the failure starts in a line with one of `lines`.

    `shows` names the change of good inputs that makes the mistake show (`faults.models.SHOWING`). `devices`
    are those for which torch compiles it.
    """

    fault: str
    old: str
    new: str
    lines: tuple[str, ...]
    shows: str = ""
    where: tuple[int, int] = (0, 0)  # an input, and the value in it that makes the mistake show
    devices: tuple[str, ...] = EVERY_DEVICE


@dataclass(frozen=True)
class Model:
    """A model, its inputs, possible mistakes in its source, and the devices for which torch compiles it."""

    name: str
    source: str
    inputs: tuple[Input, ...]
    dimensions: dict[str, Dimension]
    edits: tuple[Edit, ...] = ()
    devices: tuple[str, ...] = EVERY_DEVICE

    @property
    def text(self) -> str:
        return HEAD + self.source.strip("\n") + "\n"


HEAD = """import torch
import torch.nn.functional as F
from torch import nn


"""
BATCH = {"B": Dimension(2, 64, (3, 9))}


def index(name: str, shape: tuple[int | str, ...], low: int, high: int) -> Input:
    return Input(name, shape, "index", low, high)


ATTENTION = Model(
    "attention",
    """
class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, keep):
        B, S, D = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, S, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-1, -2) / (D // self.heads) ** 0.5
        scores = scores.masked_fill(~keep[:, None, None, :], float("-inf"))
        weights = torch.softmax(scores, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(B, S, D))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place, self.segment = nn.Embedding(211, 32), nn.Embedding(64, 32), nn.Embedding(3, 32)
        self.blocks, self.head = nn.ModuleList([Block(32, 4) for _ in range(2)]), nn.Linear(32, 7)

    def forward(self, ids, segments, mask):
        x = self.token(ids) + self.segment(segments)
        x = x + self.place(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x, mask)
        kept = mask.to(x.dtype)[..., None]
        pooled = (x * kept).sum(1) / kept.sum(1)
        return self.head(pooled)
""",
    (
        index("ids", ("B", "S"), 0, 211),
        index("segments", ("B", "S"), 0, 3),
        Input("mask", ("B", "S"), "mask"),
    ),
    {"B": Dimension(2, 64, (3, 6)), "S": Dimension(2, 64, (9, 20))},
    (
        Edit(
            "table_too_short",
            "nn.Embedding(211, 32)",
            "nn.Embedding(210, 32)",
            ("self.token(ids)",),
            "value",
            (0, 210),
        ),
        Edit(
            "softmax_of_nothing",
            "~keep[:, None, None, :],",
            "~keep[:, None, None, :] | (scores < 1e6),",
            ("scores = scores.masked_fill", "weights = torch.softmax"),
        ),
    ),
)

CONVOLUTION = Model(
    "convolution",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1, self.conv2 = nn.Conv2d(6, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.Conv2d(12, 16, 3)
        self.norm2, self.head, self.scale = nn.BatchNorm2d(16), nn.Linear(32, 5), nn.Parameter(torch.rand(16) + 0.5)

    def forward(self, left, right):
        a = (left - left.mean((1, 2, 3), keepdim=True)) / left.std((1, 2, 3), keepdim=True)
        b = (right - right.mean((1, 2, 3), keepdim=True)) * 0.5
        h = F.max_pool2d(F.relu(self.norm1(self.conv1(torch.cat([a, b], 1)))), 2)
        h = F.silu(self.norm2(self.conv2(h)))
        high, low = h.mean((2, 3)), h[:, :, ::2].mean((2, 3))
        spread = torch.sqrt((high - low).clamp(min=0) + 1e-4) * self.scale
        return self.head(torch.cat([high, spread], 1))
""",
    (Input("left", ("B", 3, 24, 24), varied=True), Input("right", ("B", 3, 24, 24))),
    BATCH,
    (Edit("root_of_difference", "(high - low).clamp(min=0) + 1e-4", "high - low", ("spread = torch.sqrt",)),),
)

RECURRENT = Model(
    "recurrent",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tag, self.bucket = nn.Embedding(17, 8), nn.Embedding(8, 4)
        self.cell, self.head = nn.GRUCell(24, 20), nn.Linear(20, 6)
        self.register_buffer("edges", torch.linspace(-1, 1, 7))

    def forward(self, x, tags, lengths):
        slot = torch.bucketize(x[:, :, 0].contiguous(), self.edges)
        z = torch.cat([x, self.tag(tags), self.bucket(slot)], -1)
        h = x.new_zeros(x.shape[0], 20)
        states = []
        for step in range(10):
            h = self.cell(z[:, step], h)
            states.append(h)
        h = torch.stack(states, 1)
        last = h.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, 20))[:, 0]
        return self.head(last), self.head(h)
""",
    (Input("x", ("B", 10, 12)), index("tags", ("B", 10), 0, 17), index("lengths", ("B",), 1, 11)),
    BATCH,
    (
        Edit(
            "one_bucket_more",
            "torch.linspace(-1, 1, 7)",
            "torch.linspace(-1, 1, 8)",
            ("slot = ", "self.bucket(slot)"),
        ),
    ),
    ("cpu",),  # torch 2.11 does not export a GRU cell on CUDA (aten._thnn_fused_gru_cell)
)

RECOMMENDER = Model(
    "recommender",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(1000, 16), nn.Embedding(500, 16)
        self.bag, self.cross = nn.EmbeddingBag(500, 16, mode="sum"), nn.Embedding(1024, 8)
        self.hidden, self.head = nn.Linear(58, 32), nn.Linear(32, 1)

    def forward(self, users, items, clicks, views):
        key = torch.fmod(users * 2654435 + items[:, 0], 1024)
        crossed = self.cross(key)
        real = (items > 0).float()[..., None]
        liked = (self.item(items) * real).sum(1) / real.sum(1).clamp(min=1)
        rate = clicks / views
        dense = torch.stack([rate, torch.log(views)], 1)
        h = torch.cat([self.user(users), self.bag(items), liked, crossed, dense], 1)
        return torch.sigmoid(self.head(F.relu(self.hidden(h))))[:, 0]
""",
    (
        index("users", ("B",), 0, 800),
        index("items", ("B", 6), 1, 500),
        Input("clicks", ("B",), "uniform", 0, 20),
        Input("views", ("B",), "uniform", 21, 90, divisor=True, signed=False),
    ),
    BATCH,
    (
        Edit(
            "mean_of_nothing",
            "real.sum(1).clamp(min=1)",
            "real.sum(1)",
            ("liked = (self.item",),
            "zero_row",
            (1, 0),
        ),
        Edit(
            "int32_overflow",
            "users * 2654435 + items[:, 0]",
            "users.to(torch.int32) * 2654435 + items[:, 0].to(torch.int32)",
            ("key = ", "self.cross(key)"),
            "value",
            (0, 850),
        ),
    ),
)

RANKING = Model(
    "ranking",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind, self.place, self.level = nn.Embedding(30, 8), nn.Embedding(5, 8), nn.Embedding(6, 8)
        self.hidden, self.head = nn.Linear(32, 16), nn.Linear(16, 1)
        self.register_buffer("cuts", torch.linspace(0.1, 0.9, 5))

    def forward(self, scores, prior, features, kinds, allowed):
        p = torch.softmax((scores + prior).masked_fill(~allowed, float("-inf")), -1)
        best, where = p.topk(5, -1)
        picked = features.gather(1, where[..., None].expand(-1, -1, 8))
        kind = self.kind(kinds.gather(1, where))
        level = torch.bucketize(prior.gather(1, where), self.cuts)
        order = picked.sum(-1).argsort(-1)
        h = torch.cat([picked * best[..., None], kind, self.level(level), self.place(order)], -1)
        return self.head(F.relu(self.hidden(h)))[..., 0], where
""",
    (
        Input("scores", ("B", 20)),
        Input("prior", ("B", 20), "uniform", 0.05, 0.88),
        Input("features", ("B", 20, 8)),
        index("kinds", ("B", 20), 0, 30),
        Input("allowed", ("B", 20), "mask"),
    ),
    BATCH,
    (
        Edit(
            "one_bucket_more",
            "torch.linspace(0.1, 0.9, 5)",
            "torch.linspace(0.1, 0.9, 6)",
            ("level = ", "self.level(level)"),
            "high",
            (1, 0),
            ("cpu",),  # on CUDA the compile itself fails the kernel's assertion (torch 2.11)
        ),
        Edit(
            "softmax_of_nothing",
            "masked_fill(~allowed,",
            "masked_fill(~allowed | (prior < 0.02),",
            ("p = torch.softmax",),
            "low_row",
            (1, 0),
        ),
    ),
)

SEGMENTS = Model(
    "segments",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.node, self.hidden, self.head = nn.Embedding(40, 16), nn.Linear(16, 16), nn.Linear(32, 4)

    def forward(self, x, segments, sources, weights):
        messages = self.hidden(x * self.node(sources)) * torch.log(weights)[:, None]
        total = x.new_zeros(12, 16).index_add(0, segments, messages)
        count = x.new_zeros(12).index_add(0, segments, torch.ones_like(weights))
        mean = total / count.clamp(min=1)[:, None]
        square = x.new_zeros(12, 16).index_add(0, segments, messages * messages) / count.clamp(min=1)[:, None]
        deviation = torch.sqrt((square - mean * mean).clamp(min=0) + 1e-4)
        largest = x.new_full((12, 16), -10.0).scatter_reduce(
            0, segments[:, None].expand(-1, 16), messages, "amax"
        )
        return self.head(torch.cat([mean + largest, deviation], 1))
""",
    (
        Input("x", ("E", 16)),
        index("segments", ("E",), 0, 12),
        index("sources", ("E",), 0, 40),
        Input("weights", ("E",), "uniform", 0.3, 3, divisor=True, signed=False),
    ),
    {"E": Dimension(25, 256, (60, 120))},
    (
        Edit(
            "mean_of_nothing",
            "mean = total / count.clamp(min=1)[:, None]",
            "mean = total / count[:, None]",
            ("mean = total",),
            "no_such",
            (1, 12),
        ),
        Edit(
            "table_too_short",
            "nn.Embedding(40, 16)",
            "nn.Embedding(39, 16)",
            ("self.node(sources)",),
            "value",
            (2, 39),
        ),
    ),
)

SPECTROGRAM = Model(
    "spectrogram",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        angle = torch.arange(128.0)[:, None] * torch.arange(65.0)[None] * 6.2831853 / 128
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        self.register_buffer("window", torch.hann_window(128))
        self.filters = nn.Parameter(torch.rand(65, 20) + 0.01)
        self.speaker, self.conv, self.head = nn.Embedding(9, 16), nn.Conv1d(20, 16, 3), nn.Linear(16, 4)

    def forward(self, wave, gain, speakers):
        z = (wave - wave.mean(1, keepdim=True)) / wave.std(1, keepdim=True)
        frames = z.unfold(1, 128, 64) * self.window
        power = (frames @ self.cos) ** 2 + (frames @ self.sin) ** 2
        mel = torch.log((power @ self.filters) * gain[:, None, None])
        h = F.relu(self.conv(mel.transpose(1, 2)))
        return self.head(h.mean(-1) + self.speaker(speakers))
""",
    (
        Input("wave", ("B", 512), varied=True),
        Input("gain", ("B",), "uniform", 0.5, 2, divisor=True, signed=False),
        index("speakers", ("B",), 0, 9),
    ),
    BATCH,
    (
        Edit(
            "table_too_short",
            "nn.Embedding(9, 16)",
            "nn.Embedding(8, 16)",
            ("self.speaker(",),
            "value",
            (2, 8),
        ),
    ),
)

EXPERTS = Model(
    "experts",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.task, self.gate, self.head = nn.Embedding(6, 32), nn.Linear(32, 4), nn.Linear(32, 8)
        self.up = nn.Parameter(torch.randn(4, 32, 48) / 6)
        self.down = nn.Parameter(torch.randn(4, 48, 32) / 7)

    def forward(self, x, tasks, temperature):
        h = x * torch.rsqrt((x**2).mean(-1, keepdim=True)) + self.task(tasks)
        e = torch.exp(self.gate(h) / temperature[:, None])
        gate = e / e.sum(-1, keepdim=True)
        y = torch.einsum("bd,edh->ebh", h, self.up)
        y = torch.einsum("ebh,ehd->ebd", F.gelu(y), self.down)
        return self.head((y * gate.t()[..., None]).sum(0) + h)
""",
    (
        Input("x", ("B", 32)),
        index("tasks", ("B",), 0, 6),
        Input("temperature", ("B",), "uniform", 0.7, 2, divisor=True),
    ),
    BATCH,
)

GRAPH = Model(
    "graph",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.edge = nn.Linear(12, 16), nn.Linear(16, 16), nn.Embedding(7, 16)

    def gather(self, h, sources, targets, kinds, strength):
        sent = h[sources] * self.edge(kinds) * torch.sqrt(strength)[:, None]
        return torch.zeros_like(h).index_add(0, targets, sent)

    def forward(self, x, sources, targets, kinds, strength):
        h = F.relu(self.first(x))
        h = h + self.gather(h, sources, targets, kinds, strength)
        h = F.relu(self.second(h))
        h = h + self.gather(h, sources, targets, kinds, strength)
        return F.normalize(h, dim=-1).mean(0)
""",
    (
        Input("x", (30, 12)),
        index("sources", ("E",), 0, 30),
        index("targets", ("E",), 0, 30),
        index("kinds", ("E",), 0, 7),
        Input("strength", ("E",), "uniform", 0.1, 1, signed=False),
    ),
    {"E": Dimension(2, 512, (40, 90))},
    (
        Edit(
            "table_too_short",
            "nn.Embedding(7, 16)",
            "nn.Embedding(6, 16)",
            ("self.edge(kinds)",),
            "value",
            (3, 6),
        ),
    ),
)

FORECAST = Model(
    "forecast",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weekday, self.hour, self.mix = nn.Embedding(7, 6), nn.Embedding(24, 6), nn.Linear(24, 24)
        self.trend, self.season = nn.Linear(24, 6), nn.Linear(36, 6)

    def forward(self, history, weekday, hour, price):
        level = history.mean(1, keepdim=True)
        spread = history.std(1, keepdim=True)
        z = (history - level) / spread
        calendar = torch.cat([self.weekday(weekday), self.hour(hour)], -1)
        h = torch.tanh(self.mix(z))
        step = self.trend(h) + self.season(torch.cat([h, calendar], -1))
        return step * spread + level - 0.1 * torch.log(price)[:, None]
""",
    (
        Input("history", ("B", 24), varied=True),
        index("weekday", ("B",), 0, 7),
        index("hour", ("B",), 0, 24),
        Input("price", ("B",), "uniform", 1, 9, divisor=True, signed=False),
    ),
    BATCH,
    (
        Edit(
            "table_too_short",
            "nn.Embedding(24, 6)",
            "nn.Embedding(23, 6)",
            ("self.hour(hour)",),
            "value",
            (2, 23),
        ),
    ),
)

DETECTION = Model(
    "detection",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(5) + 0.5)
        self.register_buffer("prior", torch.linspace(0.2, 1.0, 5))

    def forward(self, boxes, scores, classes):
        left, top, width, height = boxes.unbind(-1)
        right, bottom = left + width, top + height
        wide = torch.minimum(right[:, None], right[None]) - torch.maximum(left[:, None], left[None])
        high = torch.minimum(bottom[:, None], bottom[None]) - torch.maximum(top[:, None], top[None])
        shared = wide.clamp(min=0) * high.clamp(min=0)
        area = width * height
        overlap = shared / (area[:, None] + area[None] - shared)
        better = scores[None] > scores[:, None]
        suppressed = ((overlap > 0.5) & better).any(1)
        ratio = torch.log(width / height)
        kept = torch.where(suppressed, torch.zeros_like(scores), scores)
        return kept * self.weight[classes] * self.prior[classes] + 0.01 * ratio
""",
    (
        Input("boxes", ("N", 4), "uniform", 1, 30, divisor=True, signed=False),
        Input("scores", ("N",), "uniform", 0, 1),
        index("classes", ("N",), 0, 5),
    ),
    {"N": Dimension(2, 128, (8, 20))},
)

SOLVER = Model(
    "solver",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("damping", torch.eye(8) * 0.1)
        self.basis = nn.Parameter(torch.randn(8, 8) / 3)

    def forward(self, samples, target, noise):
        centred = (samples - samples.mean(1, keepdim=True)) @ self.basis
        covariance = centred.transpose(1, 2) @ centred / 15 + self.damping
        x = torch.zeros_like(target)
        step = 1 / covariance.diagonal(dim1=1, dim2=2).sum(-1, keepdim=True)
        for _ in range(6):
            residual = target - (covariance @ x[..., None])[..., 0]
            x = x + step * residual
        score = (target * x).sum(-1) / noise
        return x, score
""",
    (
        Input("samples", ("B", 16, 8)),
        Input("target", ("B", 8)),
        Input("noise", ("B",), "uniform", 0.5, 2, divisor=True),
    ),
    BATCH,
)

DECODER = Model(
    "decoder",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.query, self.head = nn.Embedding(97, 24), nn.Linear(24, 24), nn.Linear(24, 97)
        self.register_buffer("slots", torch.arange(48))

    def forward(self, token, keys, values, length):
        x = self.token(token)
        scores = (keys @ self.query(x)[..., None])[..., 0] / 24**0.5
        scores = scores.masked_fill(self.slots[None] >= length[:, None], float("-inf"))
        x = x + (torch.softmax(scores, -1)[:, None] @ values)[:, 0]
        return torch.log_softmax(self.head(x), -1)
""",
    (
        index("token", ("B",), 0, 97),
        Input("keys", ("B", 48, 24)),
        Input("values", ("B", 48, 24)),
        Input("length", ("B",), "count", 1, 49),
    ),
    BATCH,
    (
        Edit(
            "table_too_short",
            "nn.Embedding(97, 24)",
            "nn.Embedding(96, 24)",
            ("self.token(token)",),
            "value",
            (0, 96),
        ),
    ),
)

DENOISER = Model(
    "denoiser",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.conv_in, self.conv_out = nn.Embedding(100, 16), nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)
        self.norm1, self.norm2, self.middle = nn.GroupNorm(4, 16), nn.GroupNorm(4, 16), nn.Conv2d(16, 16, 3, padding=1)
        self.register_buffer("kept", torch.linspace(0.999, 0.01, 100))

    def forward(self, noisy, step, scale):
        kept = self.kept[step][:, None, None, None]
        h = self.conv_in(noisy) + self.time(step)[:, :, None, None]
        h = h + self.middle(F.silu(self.norm1(h)))
        noise = self.conv_out(F.silu(self.norm2(h)))
        clean = (noisy - torch.sqrt(1 - kept) * noise) / torch.sqrt(kept)
        return clean / scale[:, None, None, None]
""",
    (
        Input("noisy", ("B", 3, 12, 12)),
        index("step", ("B",), 0, 100),
        Input("scale", ("B",), "uniform", 0.5, 2, divisor=True),
    ),
    BATCH,
    (
        Edit(
            "root_of_difference",
            "torch.sqrt(1 - kept)",
            "torch.sqrt(0.98 - kept)",
            ("clean = (noisy",),
            "value",
            (1, 0),
        ),
    ),
)

HASHING = Model(
    "hashing",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.buckets, self.head = nn.Embedding(512, 12), nn.Linear(12, 3)

    def forward(self, characters, weights):
        pairs = characters[:, :-1] * 257 + characters[:, 1:]
        slot = torch.remainder(pairs * 31, 512)
        shares = weights[:, 1:] / weights.sum(1, keepdim=True)
        return self.head((self.buckets(slot) * shares[..., None]).sum(1))
""",
    (Input("characters", ("B", 14), "count", 0, 256), Input("weights", ("B", 14), "uniform", 0.1, 1)),
    BATCH,
    (Edit("table_too_short", "nn.Embedding(512, 12)", "nn.Embedding(257, 12)", ("self.buckets(slot)",)),),
)

QUANTISED = Model(
    "quantised",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (24, 32), dtype=torch.int8))
        self.register_buffer("steps", torch.rand(24) / 64 + 0.01)
        self.head = nn.Linear(24, 5)

    def forward(self, x, largest):
        step = largest[:, None] / 127
        rounded = torch.round(x / step).clamp(-127, 127)
        h = (rounded @ self.weight.float().t()) * step * self.steps
        return self.head(torch.relu(h))
""",
    (Input("x", ("B", 32)), Input("largest", ("B",), "uniform", 1, 4, divisor=True)),
    BATCH,
)

HALF = Model(
    "half",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(20, 32).bfloat16(), nn.Linear(32, 6)
        self.site = nn.Embedding(11, 32)

    def forward(self, x, sites, weight):
        h = self.first(x.bfloat16()).float() + self.site(sites)
        h = h * torch.rsqrt((h * h).mean(-1, keepdim=True))
        return self.second(h) * torch.log(weight)[:, None]
""",
    (
        Input("x", ("B", 20)),
        index("sites", ("B",), 0, 11),
        Input("weight", ("B",), "uniform", 1.5, 4, divisor=True, signed=False),
    ),
    BATCH,
    (
        Edit(
            "table_too_short",
            "nn.Embedding(11, 32)",
            "nn.Embedding(10, 32)",
            ("self.site(sites)",),
            "value",
            (1, 10),
        ),
    ),
)

CAUSAL = Model(
    "causal",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv1d(8, 16, 3, dilation=2**n) for n in range(3)])
        self.station, self.head = nn.Embedding(13, 8), nn.Linear(8, 2)

    def forward(self, x, stations):
        h = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)
        for number, layer in enumerate(self.layers):
            gate, value = layer(F.pad(h, (2 * 2**number, 0))).chunk(2, 1)
            h = h + torch.sigmoid(gate) * torch.tanh(value)
        return self.head(h[:, :, -1] + self.station(stations))
""",
    (Input("x", ("B", 8, 30), varied=True), index("stations", ("B",), 0, 13)),
    BATCH,
)

QUANTILES = Model(
    "quantiles",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.region, self.head = nn.Embedding(8, 4), nn.Linear(8, 3)

    def forward(self, prices, regions, income):
        ordered = prices.sort(-1).values
        low, middle, high = ordered[:, 4], ordered[:, 9], ordered[:, 14]
        skew = (high + low - 2 * middle) / (high - low)
        total = prices.cumsum(-1)[:, -1]
        h = torch.stack([skew, torch.log(income), total / income, middle], -1)
        return self.head(torch.cat([h, self.region(regions)], -1))
""",
    (
        Input("prices", ("B", 19), varied=True),
        index("regions", ("B",), 0, 8),
        Input("income", ("B",), "uniform", 2, 30, divisor=True, signed=False),
    ),
    BATCH,
    (
        Edit(
            "table_too_short",
            "nn.Embedding(8, 4)",
            "nn.Embedding(7, 4)",
            ("self.region(regions)",),
            "value",
            (1, 7),
        ),
    ),
)

CONTRASTIVE = Model(
    "contrastive",
    """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(18, 12, bias=False), nn.Linear(18, 12, bias=False)

    def forward(self, a, b, temperature):
        u, v = self.left(a), self.right(b)
        u = u / u.norm(dim=-1, keepdim=True)
        v = v / v.norm(dim=-1, keepdim=True)
        similar = u @ v.t() / temperature[:, None]
        return torch.logsumexp(similar, -1) - similar.diagonal()
""",
    (
        Input("a", ("B", 18)),
        Input("b", ("B", 18)),
        Input("temperature", ("B",), "uniform", 0.1, 1, divisor=True),
    ),
    BATCH,
)

MODELS = {
    model.name: model
    for model in (
        ATTENTION,
        CONVOLUTION,
        RECURRENT,
        RECOMMENDER,
        RANKING,
        SEGMENTS,
        SPECTROGRAM,
        EXPERTS,
        GRAPH,
        FORECAST,
        DETECTION,
        SOLVER,
        DECODER,
        DENOISER,
        HASHING,
        QUANTISED,
        HALF,
        CAUSAL,
        QUANTILES,
        CONTRASTIVE,
    )
}
