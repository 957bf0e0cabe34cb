"""Matching of parcel scans against the register; the batch size adapts to the card."""

import os
import tempfile

import torch

WIDTH = 64
REGISTER = 1024
BUDGET = 800 << 20


class Matcher(torch.nn.Module):
    """Score of every scan against every registered parcel, for eight criteria."""

    def __init__(self):
        super().__init__()
        self.criteria = torch.nn.Linear(WIDTH, 8, bias=False)

    def forward(self, scans, register):
        gap = (scans.unsqueeze(1) - register.unsqueeze(0)).abs()
        return torch.exp(-self.criteria(gap))


def build(module, folder, device):
    scans = torch.export.Dim("scans", min=2, max=8192)
    program = torch.export.export(
        module,
        (torch.rand(128, WIDTH, device=device), torch.rand(REGISTER, WIDTH, device=device)),
        dynamic_shapes={"scans": {0: scans}, "register": None},
    )
    path = os.path.join(folder, "matcher.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=path)
    return torch._inductor.aoti_load_package(path)


def limit_memory(amount):
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(amount / total)


def match(model, scans, register, part):
    """Scores in host memory; halves the part when the card has no room for it."""
    done, start = [], 0
    while start < len(scans):
        piece = scans[start : start + part]
        try:
            done.append(model(piece, register).amax(2).cpu())
        except RuntimeError as reason:
            if part <= 64:
                raise
            print(f"part of {part} did not fit ({type(reason).__name__}), trying {part // 2}")
            part //= 2
            torch.cuda.empty_cache()
            continue
        start += len(piece)
    return torch.cat(done), part


def expected(module, scans, register):
    pieces = [module(piece, register).amax(2).cpu() for piece in scans.split(128)]
    return torch.cat(pieces)


def main(device="cuda"):
    torch.manual_seed(37)
    module = Matcher().to(device).eval()
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        model = build(module, folder, device)
        register = torch.rand(REGISTER, WIDTH, device=device)
        torch.cuda.empty_cache()
        limit_memory(BUDGET)

        for count, part in ((200, 256), (512, 256), (4096, 4096)):
            scans = torch.rand(count, WIDTH, device=device)
            scores, part = match(model, scans, register, part)
            wanted = expected(module, scans, register)
            torch.testing.assert_close(scores, wanted, rtol=1e-3, atol=1e-3)
            print(f"{count} scans matched in parts of {part}", flush=True)
    print("shift closed")


if __name__ == "__main__":
    main()
