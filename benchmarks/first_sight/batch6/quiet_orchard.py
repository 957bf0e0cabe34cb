"""Cloud cover of satellite tiles; the next tile is denoised while the last one is scored."""

import os
import tempfile

import torch

SIDE = 8192
CROP = 512
PASSES = 24


class CloudCover(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(CROP, 16)

    def forward(self, tile):
        bright = torch.sigmoid(tile - tile.mean())
        return torch.tanh(self.head(bright)).mean(0)


def smoother():
    """Each row is averaged with its neighbours."""
    line = torch.full((SIDE,), 0.5, device="cuda")
    side = torch.full((SIDE - 1,), 0.25, device="cuda")
    return torch.diag(line) + torch.diag(side, 1) + torch.diag(side, -1)


class TileFeed:
    def __init__(self):
        self.stream = torch.cuda.Stream()
        self.arrived = torch.cuda.Event()
        self.blur = smoother()
        self.raw = torch.zeros(SIDE, SIDE, device="cuda")
        self.tile = torch.zeros(CROP, CROP, device="cuda")
        torch.cuda.synchronize()

    def fetch(self, scene):
        """Queue a scene: upload, denoise, crop."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.raw.copy_(scene, non_blocking=True)
            self.arrived.record(self.stream)
            image = self.raw
            for _ in range(PASSES):
                image = self.blur @ image
            self.tile.copy_(image[:CROP, :CROP])

    def take(self):
        torch.cuda.current_stream().wait_event(self.arrived)
        return self.tile

    def take_first(self):
        """The first scenes come with nothing to overlap."""
        self.stream.synchronize()
        return self.tile


def build(module, folder):
    program = torch.export.export(module, (torch.randn(CROP, CROP, device="cuda"),))
    path = os.path.join(folder, "cloud_cover.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=path)
    return torch._inductor.aoti_load_package(path)


def make_scene(level):
    scene = torch.full((SIDE, SIDE), float(level)).pin_memory()
    scene[: 64 * level].mul_(-1.0)
    scene[:, ::3] += 0.5
    return scene


def compare(name, module, got, tile):
    torch.cuda.synchronize()
    torch.testing.assert_close(got, module(tile), rtol=1e-3, atol=1e-3)
    print(f"{name}: cover {got.mean().item():+.4f}")


def main():
    torch.manual_seed(17)
    module = CloudCover().cuda().eval()
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        model = build(module, folder)
        scenes = [make_scene(level) for level in (1, 2, 4)]
        feed = TileFeed()
        for number in (0, 1):
            feed.fetch(scenes[number])
            tile = feed.take_first()
            compare(f"scene {number}", module, model(tile), tile)

        feed.fetch(scenes[2])
        tile = feed.take()
        cover = model(tile)
        compare("scene 2", module, cover, tile)


if __name__ == "__main__":
    main()
