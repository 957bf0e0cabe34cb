"""Uses a normalisation of the in-house C library through a C shim in the generated code."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

library = torch.library.Library("inhouse", "DEF")
library.define("unit_norm(Tensor x) -> Tensor")


def unit_norm(x):
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6)


library.impl("unit_norm", unit_norm, "CPU")
library.impl("unit_norm", lambda x: torch.empty_like(x), "Meta")
DECLARATION = "AOTITorchError aoti_torch_cpu_unit_norm(AtenTensorHandle x, AtenTensorHandle* ret0);"


class Voice(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.inp = nn.Linear(40, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.out = nn.Linear(d, 16)

    def forward(self, frames):
        h = F.silu(self.inp(frames))
        for layer in self.layers:
            h = h + F.gelu(layer(torch.ops.inhouse.unit_norm(h)))
        return self.out(h).mean(1)


def main():
    torch.manual_seed(26)
    model = Voice().eval()
    x = torch.randn(2, 30, 40)
    package = os.path.join(tempfile.mkdtemp(), "voice.pt2")
    with torch.no_grad():
        print("eager", tuple(model(x).shape), flush=True)
        exported = torch.export.export(model, (x,), dynamic_shapes=({0: Dim("n", min=1, max=32)},))
        torch._inductor.aoti_compile_and_package(
            exported,
            package_path=package,
            inductor_configs={
                "aot_inductor.custom_ops_to_c_shims": {torch.ops.inhouse.unit_norm.default: [DECLARATION]}
            },
        )
    print("built", flush=True)
    runner = torch._inductor.aoti_load_package(package)
    print("served", tuple(runner(x).shape), flush=True)


if __name__ == "__main__":
    main()
