"""Partition sums of the bids of an ad auction."""

import os
import tempfile

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

SLOT = 256
MAX_AUCTIONS = 64


@triton.jit
def _log_total(bids, total, bidders, SLOT: tl.constexpr):
    auction = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SLOT)
    present = column < bidders
    value = tl.load(bids + auction * bidders + column, mask=present, other=0.0)
    top = tl.max(value, axis=0)
    mass = tl.sum(tl.exp(value - top), axis=0)
    tl.store(total + auction, top + tl.log(mass))


@triton_op("auction::log_total", mutates_args={})
def log_total(bids: torch.Tensor) -> torch.Tensor:
    auctions, bidders = bids.shape
    total = torch.empty((auctions,), dtype=torch.float32, device=bids.device)
    wrap_triton(_log_total)[(auctions,)](bids, total, bidders, SLOT=SLOT)
    return total


class WinRates(torch.nn.Module):
    """Chance of each bidder to win the slot."""

    def __init__(self, temperature=1.5):
        super().__init__()
        self.register_buffer("temperature", torch.tensor(temperature))

    def forward(self, bids):
        scaled = bids / self.temperature
        return torch.exp(scaled - log_total(scaled).unsqueeze(1))


def build(module, folder):
    auctions = torch.export.Dim("auctions", min=2, max=MAX_AUCTIONS)
    bidders = torch.export.Dim("bidders", min=2, max=SLOT)
    program = torch.export.export(
        module,
        (torch.randn(16, SLOT, device="cuda"),),
        dynamic_shapes={"bids": {0: auctions, 1: bidders}},
        strict=False,
    )
    path = os.path.join(folder, "win_rates.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=path)
    return torch._inductor.aoti_load_package(path)


def collect(auctions, bidders):
    """Bids in log dollars; most are far below one dollar."""
    return torch.randn(auctions, bidders, device="cuda") - 2.0


def run_round(name, model, auctions, bidders):
    bids = collect(auctions, bidders)
    rates = model(bids)
    torch.cuda.synchronize()
    expected = torch.softmax(bids.double() / 1.5, dim=1).float()
    torch.testing.assert_close(rates, expected, rtol=1e-4, atol=1e-6)
    print(f"{name}: best chance {rates.max().item():.3f}")


def main():
    torch.manual_seed(31)
    module = WinRates().cuda().eval()
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        model = build(module, folder)
        run_round("premium", model, 16, SLOT)
        run_round("standard", model, 40, SLOT)
        run_round("long tail", model, 96, 180)


if __name__ == "__main__":
    main()
