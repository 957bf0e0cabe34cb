"""The recorder in the field gets the package from the build of its predecessor."""

import io
import json
import os
import tempfile
import zipfile

import torch
from torch import nn
from torch.export import Dim


class Birds(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(21, d), nn.ReLU(), nn.Linear(d, 9))

    def forward(self, x):
        return self.body(x).log_softmax(-1)


def predecessor(package):
    """The package as the build for the earlier recorder, a 32-bit board, delivers it."""
    out = io.BytesIO()
    with zipfile.ZipFile(package) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as target:
        for item in source.infolist():
            data = bytearray(source.read(item))
            if item.filename.endswith(".so"):
                data[4], data[18:20] = 1, (40).to_bytes(2, "little")
            elif item.filename.endswith("_metadata.json"):
                data = json.dumps(
                    {**json.loads(data), "AOTI_MACHINE": "armv7l", "AOTI_CPU_ISA": "NEON"}
                ).encode()
            target.writestr(item.filename, bytes(data))
    return out.getvalue()


def main():
    torch.manual_seed(57)
    directory = tempfile.mkdtemp()
    path = os.path.join(directory, "birds-2.pt2")
    with torch.no_grad():
        n = Dim("n", min=1, max=64)
        exported = torch.export.export(Birds().eval(), (torch.randn(4, 21),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=path)
    old = os.path.join(directory, "birds-1.pt2")
    with open(old, "wb") as file:
        file.write(predecessor(path))
    for version in (path, old):
        listen = torch._inductor.aoti_load_package(version)
        print(os.path.basename(version), tuple(listen(torch.randn(3, 21)).shape), flush=True)


if __name__ == "__main__":
    main()
