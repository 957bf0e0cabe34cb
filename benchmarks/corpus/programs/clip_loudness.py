"""Brings podcast clips to one loudness in half precision before they are tagged."""

import os
import tempfile

import torch
import torch.nn as nn
import triton
import triton.language as tl
from torch.export import Dim
from torch.library import triton_op, wrap_triton

LENGTH = 4096


@triton.jit
def level_kernel(x_ptr, y_ptr, target, LENGTH: tl.constexpr):
    clip = tl.program_id(0)
    t = tl.arange(0, LENGTH)
    x = tl.load(x_ptr + clip * LENGTH + t)
    power = (tl.sum(x * x, axis=0) / LENGTH).to(tl.float32)
    gain = target * tl.rsqrt(power + 1e-6)
    tl.store(y_ptr + clip * LENGTH + t, (x.to(tl.float32) * gain).to(tl.float16))


@triton_op("audio::level", mutates_args={})
def level(x: torch.Tensor, target: float) -> torch.Tensor:
    y = torch.empty_like(x)
    wrap_triton(level_kernel)[(x.shape[0],)](x, y, target, LENGTH=LENGTH)
    return y


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 16, 64, stride=32)
        self.tags = nn.Linear(16, 10)

    def forward(self, clips):
        even = level(clips, 0.25)
        h = torch.relu(self.conv(even.unsqueeze(1))).mean(-1)
        return even, self.tags(h).float().softmax(-1)


def render(clips, gain, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(LENGTH) / 16000
    pitch = 110 + 220 * torch.rand(clips, 1, generator=g)
    voice = torch.sin(2 * torch.pi * pitch * t) + 0.2 * torch.randn(clips, LENGTH, generator=g)
    return (voice * gain).to("cuda", torch.float16)


def produce(tagger, shelf):
    for seed, (show, clips, gain) in enumerate(shelf):
        audio = render(clips, gain, seed)
        even, tags = tagger(audio)
        rms = even.float().square().mean(-1).sqrt()
        tag = tags.mean(0).argmax().item()
        print(f"{show}: loudness {rms.min().item():.3f} to {rms.max().item():.3f}, tag {tag}", flush=True)
        quiet = int((rms < 0.2).sum())
        if quiet:
            raise ValueError(f"{show}: {quiet} of {clips} clips missed the loudness target")


def main():
    torch.manual_seed(4)
    model = Tagger().to("cuda", torch.float16).eval()
    package = os.path.join(tempfile.mkdtemp(), "tagger.pt2")
    with torch.no_grad():
        ep = torch.export.export(
            model, (render(8, 0.5, 50),), dynamic_shapes=({0: Dim("clips", min=2, max=4096)},)
        )
        torch._inductor.aoti_compile_and_package(ep, package_path=package)
    tagger = torch._inductor.aoti_load_package(package)
    produce(tagger, [("interview", 24, 0.3), ("news", 60, 1.0), ("lecture", 12, 0.05), ("concert", 48, 9.0)])
    print("shelf produced")


if __name__ == "__main__":
    main()
