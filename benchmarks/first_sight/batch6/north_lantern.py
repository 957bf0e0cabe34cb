"""Festival lantern dimming service: nightly build, then day-time reloads.

The build stage works in a scratch area of its own; finished packages are kept in
the release shelf and reloaded whenever the operators press "refresh".
"""
import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.export import Dim

CHANNELS = 12


class Dimmer(nn.Module):
    def __init__(self):
        super().__init__()
        self.curve = nn.Sequential(nn.Linear(CHANNELS, 20), nn.Tanh(), nn.Linear(20, CHANNELS))

    def forward(self, ambient, target):
        step = self.curve(target - ambient)
        return torch.clamp(ambient + 0.3 * step, 0.0, 1.0)


@contextlib.contextmanager
def build_area():
    area = tempfile.mkdtemp(prefix="lantern_build_")
    os.environ["TMPDIR"] = area
    tempfile.tempdir = None
    try:
        yield Path(area)
    finally:
        tempfile.tempdir = None
        shutil.rmtree(area, ignore_errors=True)


class Stage:
    def __init__(self, shelf):
        self.shelf = shelf
        self.active = None

    def refresh(self, release):
        self.active = torch._inductor.aoti_load_package(str(self.shelf / release))
        print(f"{release} is on stage")

    def dim(self, ambient, target):
        return self.active(ambient, target)


def release(model, area, shelf, name):
    rows = Dim("rows", min=1, max=256)
    example = (torch.rand(4, CHANNELS), torch.rand(4, CHANNELS))
    program = torch.export.export(model, example, dynamic_shapes=({0: rows}, {0: rows}))
    built = torch._inductor.aoti_compile_and_package(program, package_path=str(area / name))
    shutil.copy2(built, shelf / name)
    return name


def main():
    shelf = Path(tempfile.mkdtemp(prefix="lantern_shelf_"))
    try:
        torch.manual_seed(8)
        model = Dimmer().eval()
        stage = Stage(shelf)
        with torch.no_grad():
            with build_area() as area:
                name = release(model, area, shelf, "evening.pt2")
                stage.refresh(name)
                ambient, target = torch.rand(7, CHANNELS), torch.rand(7, CHANNELS)
                torch.testing.assert_close(stage.dim(ambient, target), model(ambient, target))
                print("rehearsal went well,", (shelf / name).stat().st_size // 1024, "kB on the shelf")

            ambient, target = torch.rand(30, CHANNELS), torch.rand(30, CHANNELS)
            torch.testing.assert_close(stage.dim(ambient, target), model(ambient, target))
            print("first set of the evening went well")

            stage.refresh("evening.pt2")
            torch.testing.assert_close(stage.dim(ambient, target), model(ambient, target))
            print("second set went well")
    finally:
        shutil.rmtree(shelf, ignore_errors=True)


if __name__ == "__main__":
    main()
