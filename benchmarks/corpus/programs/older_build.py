"""A package of the oldest machine of the fleet is served on a newer one."""

import io
import json
import os
import tempfile
import zipfile

import torch
from torch import nn
from torch.export import Dim


class Freight(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(15, d), nn.SiLU(), nn.Linear(d, 1))

    def forward(self, x):
        return self.body(x).squeeze(-1)


def from_the_old_host(package):
    """The package as the old host delivers it: compiled for the least that all hosts have."""
    out = io.BytesIO()
    with zipfile.ZipFile(package) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as target:
        for item in source.infolist():
            data = source.read(item)
            if item.filename.endswith("_metadata.json"):
                data = json.dumps({**json.loads(data), "AOTI_CPU_ISA": "AVX2"}).encode()
            target.writestr(item.filename, data)
    return out.getvalue()


def main():
    torch.manual_seed(51)
    model = Freight().eval()
    directory = tempfile.mkdtemp()
    package = os.path.join(directory, "freight.pt2")
    with torch.no_grad():
        n = Dim("n", min=1, max=256)
        exported = torch.export.export(model, (torch.randn(4, 15),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(
            exported, package_path=package, inductor_configs={"cpp.simdlen": 256}
        )
        delivered = os.path.join(directory, "freight-old.pt2")
        with open(delivered, "wb") as file:
            file.write(from_the_old_host(package))
        price = torch._inductor.aoti_load_package(delivered)
        for rows in (4, 1, 200):
            x = torch.randn(rows, 15)
            torch.testing.assert_close(price(x), model(x), atol=1e-4, rtol=1e-3)
            print("rows", rows, "agree", flush=True)
    print("all freight priced", flush=True)


if __name__ == "__main__":
    main()
