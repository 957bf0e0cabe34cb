"""Duplicate search in a catalogue of product vectors."""

import os
import tempfile

import torch

WIDTH = 64


class Distances(torch.nn.Module):
    """Euclidean distance of each query to each entry of the catalogue."""

    def __init__(self, softening=0.05):
        super().__init__()
        self.softening = softening

    def forward(self, queries, catalogue):
        q = (queries * queries).sum(1, keepdim=True)
        c = (catalogue * catalogue).sum(1).unsqueeze(0)
        squared = q + c - 2.0 * (queries @ catalogue.t())
        return torch.sqrt(squared + self.softening)


def build(folder):
    queries = torch.export.Dim("queries", min=2, max=8192)
    entries = torch.export.Dim("entries", min=2, max=8192)
    example = (torch.randn(512, WIDTH, device="cuda"), torch.randn(640, WIDTH, device="cuda"))
    program = torch.export.export(
        Distances().cuda().eval(),
        example,
        dynamic_shapes={"queries": {0: queries}, "catalogue": {0: entries}},
    )
    path = os.path.join(folder, "distances.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=path)
    return torch._inductor.aoti_load_package(path)


def vectors(count):
    return 12.0 + torch.randn(count, WIDTH, device="cuda")


class PopularityModel:
    """Small ranking model that is refreshed between the searches."""

    def __init__(self):
        self.weights = torch.zeros(WIDTH, 1, device="cuda")

    def refresh(self, features, clicks, rounds=20):
        torch.set_float32_matmul_precision("high")
        for _ in range(rounds):
            residual = features @ self.weights - clicks
            self.weights -= 1e-5 * (features.t() @ residual)
        return residual.square().mean().item()


def search(name, model, queries, catalogue):
    distances = model(queries, catalogue)
    missing = int((~torch.isfinite(distances)).sum())
    if missing:
        raise ValueError(f"{name}: {missing} of {distances.numel()} distances are not finite")
    close = int((distances < 1.0).sum())
    print(f"{name}: {close} close pairs")


def main():
    torch.manual_seed(11)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        model = build(folder)
        catalogue = vectors(2048)
        search("morning", model, vectors(1024), catalogue)
        search("self check", model, catalogue, catalogue)

        ranking = PopularityModel()
        loss = ranking.refresh(catalogue - 12.0, torch.rand(2048, 1, device="cuda"))
        print(f"ranking refreshed, loss {loss:.4f}")

        search("evening", model, catalogue, catalogue)


if __name__ == "__main__":
    main()
