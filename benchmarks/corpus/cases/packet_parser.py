"""Network monitor: records of a byte stream are decoded on the device."""

import os
import tempfile

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn
from torch.export import Dim
from torch.library import triton_op, wrap_triton

DEVICE, WORDS = "cuda", 16


@triton.jit
def decode_kernel(bytes_ptr, start_ptr, out_ptr, records, WORDS: tl.constexpr):
    record = tl.program_id(0)
    word = tl.arange(0, WORDS)
    start = tl.load(start_ptr + record)
    words = (bytes_ptr + start).to(tl.pointer_type(tl.int32))
    value = tl.load(words + word)
    tl.store(out_ptr + record * WORDS + word, (value & 0xFFFF).to(tl.float32) / 65536.0)


@triton_op("net::decode", mutates_args={})
def decode(stream: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    out = torch.empty(start.shape[0], WORDS, device=stream.device)
    wrap_triton(decode_kernel)[(start.shape[0],)](stream, start, out, start.shape[0], WORDS=WORDS)
    return out


class Monitor(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.inp = nn.Linear(WORDS, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 4)

    def forward(self, stream, start):
        h = F.silu(self.inp(decode(stream, start)))
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        return self.out(h).softmax(-1)


def capture(records, header):
    """A byte stream with `records` records of 64 bytes after a header."""
    stream = torch.randint(0, 256, (header + 64 * records + 64,), dtype=torch.uint8, device=DEVICE)
    return stream, header + 64 * torch.arange(records, device=DEVICE)


def main():
    torch.manual_seed(13)
    with torch.device(DEVICE):
        model = Monitor().eval()
    package = os.path.join(tempfile.mkdtemp(), "monitor.pt2")
    size, n = Dim("size", min=64, max=100_000_000), Dim("n", min=2, max=1_000_000)
    with torch.no_grad():
        exported = torch.export.export(model, capture(8, 24), dynamic_shapes=({0: size}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    for link, records, header in (("lab", 20, 24), ("office", 5000, 40), ("uplink", 900, 18)):
        y = runner(*capture(records, header))
        torch.cuda.synchronize()
        print(link, y.argmax(-1).bincount(minlength=4).tolist(), flush=True)


if __name__ == "__main__":
    main()
