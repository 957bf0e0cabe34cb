"""Speaker embeddings for call recordings (batch worker)."""

import faulthandler
import os
import tempfile

import torch

HOP = 4
MELS = 80


class SpeakerEncoder(torch.nn.Module):
    """Mean of the voiced frames; lengths stay in host memory, as the sampler makes them."""

    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(MELS, 64)

    def forward(self, frames, lengths):
        steps = torch.div(lengths + (HOP - 1), HOP, rounding_mode="floor").clamp(min=1)
        steps = steps.to(frames.device)
        hidden = torch.relu(self.proj(frames))
        clock = torch.arange(frames.shape[1], device=frames.device)
        voiced = (clock.unsqueeze(0) < steps.unsqueeze(1)).to(hidden.dtype)
        total = (hidden * voiced.unsqueeze(2)).sum(1)
        return total / steps.unsqueeze(1).to(hidden.dtype)


def build(module):
    calls = torch.export.Dim("calls", min=2, max=256)
    program = torch.export.export(
        module,
        (torch.randn(8, 100, MELS, device="cuda"), torch.randint(40, 400, (8,))),
        dynamic_shapes={"frames": {0: calls}, "lengths": {0: calls}},
    )
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "speaker.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=path)
        return torch._inductor.aoti_load_package(path)


def to_gpu(batch):
    return {name: value.to("cuda", non_blocking=True) for name, value in batch.items()}


def read_calls(count):
    lengths = torch.randint(40, 400, (count,))
    frames = torch.randn(count, 100, MELS)
    return {"frames": frames.pin_memory(), "lengths": lengths}


def embed(model, batch):
    vectors = model(batch["frames"], batch["lengths"])
    torch.cuda.synchronize()
    return vectors


def main():
    faulthandler.enable()
    torch.manual_seed(3)
    module = SpeakerEncoder().cuda().eval()
    with torch.no_grad():
        model = build(module)
        for count in (8, 31):
            batch = read_calls(count)
            batch["frames"] = batch["frames"].cuda()
            vectors = embed(model, batch)
            torch.testing.assert_close(
                vectors, module(batch["frames"], batch["lengths"]), rtol=1e-3, atol=1e-3
            )
            print(f"{count} calls embedded", flush=True)

        backlog = to_gpu(read_calls(64))
        vectors = embed(model, backlog)
        torch.testing.assert_close(vectors, module(**backlog), rtol=1e-3, atol=1e-3)
        print(f"backlog: {tuple(vectors.shape)}")


if __name__ == "__main__":
    main()
