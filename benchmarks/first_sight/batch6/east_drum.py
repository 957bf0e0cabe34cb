"""Level normaliser for field recordings, half precision."""

import os
import tempfile

import torch

SAMPLES = 2048


class Normaliser(torch.nn.Module):
    """Unit power for each clip, and the level it had."""

    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(SAMPLES))

    def forward(self, clips):
        power = clips.pow(2).mean(-1, keepdim=True)
        level = 10.0 * torch.log10(power + 1e-3)
        return clips * torch.rsqrt(power + 1e-3) * self.gain, level.squeeze(-1)


def build(module, folder, device):
    clips = torch.export.Dim("clips", min=2, max=1024)
    program = torch.export.export(
        module,
        (torch.randn(16, SAMPLES, device=device).half(),),
        dynamic_shapes={"clips": {0: clips}},
    )
    path = os.path.join(folder, "normaliser.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=path)
    return torch._inductor.aoti_load_package(path)


def exact(module, clips):
    wide = clips.double()
    power = wide.pow(2).mean(-1, keepdim=True)
    level = 10.0 * torch.log10(power + 1e-3)
    return wide * torch.rsqrt(power + 1e-3) * module.gain.double(), level.squeeze(-1)


def check(name, module, model, clips):
    sound, level = model(clips)
    want_sound, want_level = exact(module, clips)
    torch.testing.assert_close(sound.double(), want_sound, rtol=4e-3, atol=4e-3)
    torch.testing.assert_close(level.double(), want_level, rtol=4e-3, atol=4e-2)

    plain_sound, plain_level = module(clips)
    overloaded = int(torch.isinf(plain_level).sum())
    if overloaded:
        print(f"WARNING {name}: {overloaded} of {len(clips)} levels are inf without the package")
        silent = int((plain_sound == 0).all(1).sum())
        print(f"WARNING {name}: {silent} clips come out silent without the package")
    print(f"{name}: loudest {level.max().item():.1f} dB, power {sound.float().square().mean():.3f}")


def field_clips(count, peak, device):
    tone = torch.sin(torch.arange(SAMPLES, device=device) * 0.05)
    loudness = torch.linspace(0.1, 1.0, count, device=device).unsqueeze(1)
    return (peak * loudness * tone).half()


def main(device="cuda"):
    torch.manual_seed(2)
    module = Normaliser().to(device).half().eval()
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        model = build(module, folder, device)
        check("birds", module, model, field_clips(16, 3.0, device))
        check("river", module, model, field_clips(24, 90.0, device))
        check("thunder", module, model, field_clips(32, 20_000.0 / 16, device))
        print("all clips normalised")


if __name__ == "__main__":
    main()
