"""Builds two variants of the help-desk router: 'plain' for mail, 'counted' for chat, which damps runs."""

import os
import sys
import tempfile
import traceback

import torch
from torch import nn

VOCAB, WIDTH, LENGTH = 500, 40, 24


@torch.library.custom_op("desk::longest_run", mutates_args=())
def longest_run(tokens: torch.Tensor) -> int:
    """Length of the longest run of equal tokens in the batch."""
    best = 1
    for row in tokens.tolist():
        run = 1
        for a, b in zip(row, row[1:]):
            run = run + 1 if a == b else 1
            best = max(best, run)
    return best


@longest_run.register_fake
def _(tokens):
    ctx = torch.library.get_ctx()
    return ctx.new_dynamic_size(min=1, max=LENGTH)


class Plain(nn.Module):
    def __init__(self, queues=6):
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.queue = nn.Linear(WIDTH, queues)

    def pool(self, tokens):
        return torch.tanh(self.mix(self.words(tokens))).mean(1)

    def forward(self, tokens):
        return self.queue(self.pool(tokens)).softmax(-1)


class Counted(Plain):
    def forward(self, tokens):
        run = longest_run(tokens)
        h = self.pool(tokens) / (1.0 + 0.1 * run)
        return self.queue(h).softmax(-1)


class BuildError(Exception):
    def __init__(self, variant):
        super().__init__(f"variant {variant!r} could not be built")
        self.variant = variant


def build(variant, model, folder):
    batch = torch.export.Dim("batch", min=2, max=128)
    example = torch.randint(0, VOCAB, (8, LENGTH))
    try:
        ep = torch.export.export(model.eval(), (example,), dynamic_shapes=({0: batch},))
        path = torch._inductor.aoti_compile_and_package(
            ep, package_path=os.path.join(folder, f"{variant}.pt2")
        )
    except Exception as why:
        raise BuildError(variant) from why
    return torch._inductor.aoti_load_package(path)


def smoke(variant, router):
    for n in (4, 33):
        p = router(torch.randint(0, VOCAB, (n, LENGTH)))
        print(
            f"{variant}: batch {n}, sums to one: {bool(torch.allclose(p.sum(-1), torch.ones(n)))}", flush=True
        )


def main():
    torch.manual_seed(2)
    routers = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for variant, model in (("plain", Plain()), ("counted", Counted())):
            try:
                routers[variant] = build(variant, model, folder)
            except BuildError as failed:
                traceback.print_exc()
                print(f"release stopped: {failed}; built so far: {sorted(routers)}", file=sys.stderr)
                return 1
            smoke(variant, routers[variant])
    print("release ready")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
