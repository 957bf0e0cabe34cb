"""Map server: weights stay in a file that is mapped; each release rotates the files."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

KEEP = {"always_keep_tensor_constants": True}


class Map(nn.Module):
    def __init__(self, d=512):
        super().__init__()
        self.inp, self.mid, self.out = nn.Linear(16, d), nn.Linear(d, d), nn.Linear(d, 3)

    def forward(self, tiles):
        return self.out(F.gelu(self.mid(torch.tanh(self.inp(tiles)))))


def rotate(path):
    """Empties the file that was in use, as the log rotation of the host does with everything here."""
    os.truncate(path, 0)


def main():
    torch.manual_seed(102)
    model = Map().eval()
    folder = tempfile.mkdtemp()
    package, weights = os.path.join(folder, "map.pt2"), os.path.join(folder, "map.weights")
    torch.save(model.state_dict(), weights)
    with torch.no_grad():
        n = Dim("n", min=2, max=128)
        exported = torch.export.export(model, (torch.rand(4, 16),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package, inductor_configs=KEEP)
        runner = torch._inductor.aoti_load_package(package)
        mapped = torch.load(weights, mmap=True)
        runner.load_constants(mapped, check_full_update=True, user_managed=True)
        for request in range(4):
            tiles = torch.rand(10, 16)
            print("request", request, round(runner(tiles).mean().item(), 4), flush=True)
            if request == 2:
                rotate(weights)


if __name__ == "__main__":
    main()
