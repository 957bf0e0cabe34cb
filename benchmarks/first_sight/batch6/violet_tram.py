"""Transit survey search: fold long light curves with the group's numpy folding routine."""
import os
import shutil
import tempfile

import numpy as np
import torch
from torch import nn

PHASES = 16


@torch.library.custom_op("survey::fold", mutates_args=())
def fold(flux: torch.Tensor, phases: int) -> torch.Tensor:
    """Cut every star's curve into periods: (stars, n) -> (stars, periods, phases), running sum."""
    stars, samples = flux.shape
    cut = flux.numpy().reshape(stars, samples // phases, phases)
    if samples <= 4 * phases:
        return torch.from_numpy(np.cumsum(cut, axis=1, dtype=np.float32))
    by_phase = np.ascontiguousarray(cut.transpose(0, 2, 1))
    np.cumsum(by_phase, axis=2, out=by_phase)
    return torch.from_numpy(by_phase.transpose(0, 2, 1))


@fold.register_fake
def _(flux, phases):
    stars, samples = flux.shape
    return flux.new_empty(stars, samples // phases, phases)


class TransitScore(nn.Module):
    def __init__(self):
        super().__init__()
        self.dip_shape = nn.Parameter(torch.cos(torch.linspace(0, 6.28, PHASES)))
        self.scale = nn.Parameter(torch.tensor(0.25))

    def forward(self, flux):
        folded = torch.ops.survey.fold(flux - 1.0, PHASES)
        depth = (folded * self.dip_shape).sum(dim=2)
        return torch.tanh(depth * self.scale)


def light_curves(stars, periods, generator):
    phase = torch.arange(periods * PHASES) % PHASES
    dip = torch.where((phase >= 7) & (phase <= 9), -0.02, 0.0)
    noise = 0.004 * torch.randn(stars, periods * PHASES, generator=generator)
    return 1.0 + dip * torch.rand(stars, 1, generator=generator) + noise


def main():
    torch.manual_seed(21)
    generator = torch.Generator().manual_seed(77)
    folder = tempfile.mkdtemp(prefix="survey_")
    try:
        model = TransitScore().eval()
        periods = torch.export.Dim("periods", min=2, max=128)
        stars = torch.export.Dim("stars", min=2, max=512)
        with torch.no_grad():
            program = torch.export.export(
                model,
                (light_curves(6, 3, generator),),
                dynamic_shapes={"flux": {0: stars, 1: PHASES * periods}},
            )
            package = torch._inductor.aoti_compile_and_package(
                program, package_path=os.path.join(folder, "transit.pt2")
            )
            search = torch._inductor.aoti_load_package(package)

            for field, (count, length) in {"K2-C3": (6, 3), "K2-C5": (9, 4), "TESS-S14": (8, 12)}.items():
                flux = light_curves(count, length, generator)
                score = search(flux)
                torch.testing.assert_close(
                    score, model(flux), rtol=1e-4, atol=1e-5, msg=lambda text: f"field {field}: {text}"
                )
                print(f"{field}: {count} stars, best {score[:, -1].min().item():.4f}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
