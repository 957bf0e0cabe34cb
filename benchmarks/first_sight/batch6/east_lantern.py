"""Correlated market shocks for a desk of positions (risk service)."""

import os
import tempfile

import torch

FACTORS = 96


class ShockEngine(torch.nn.Module):
    """Loadings are scaled by today's volatility, then applied to the draws."""

    def __init__(self):
        super().__init__()
        self.book = torch.nn.Linear(FACTORS, 8, bias=False)

    def forward(self, loadings, volatility, draws):
        scaled = loadings * volatility.unsqueeze(1)
        shocks = draws @ scaled.t()
        return self.book(torch.tanh(shocks))


def build(module, folder, device):
    paths = torch.export.Dim("paths", min=2, max=1 << 16)
    example = (
        torch.eye(FACTORS, device=device),
        torch.rand(FACTORS, device=device),
        torch.randn(128, FACTORS, device=device),
    )
    program = torch.export.export(
        module, example, dynamic_shapes={"loadings": None, "volatility": None, "draws": {0: paths}}
    )
    path = os.path.join(folder, "shocks.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=path)
    return torch._inductor.aoti_load_package(path)


def history(device):
    """Covariance of one year of factor returns."""
    common = torch.randn(250, 6, device=device) @ torch.randn(6, FACTORS, device=device)
    returns = 0.3 * common + 0.5 * torch.randn(250, FACTORS, device=device)
    return torch.cov(returns.t()) + 1e-3 * torch.eye(FACTORS, device=device)


def principal(covariance):
    """Square root of the covariance by its main directions."""
    values, vectors = torch.linalg.eigh(covariance.double())
    root = vectors @ torch.diag(values.clamp_min(0).sqrt()) @ vectors.mT
    return root.to(covariance.dtype).contiguous()


def price(name, module, engine, loadings, volatility, draws):
    got = engine(loadings, volatility, draws)
    want = module(loadings, volatility, draws)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
    print(f"{name}: 5% tail {got.sum(1).quantile(0.05).item():+.3f}")


def main(device="cuda"):
    torch.manual_seed(29)
    module = ShockEngine().to(device).eval()
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        engine = build(module, folder, device)
        covariance = history(device)
        volatility = 0.5 + torch.rand(FACTORS, device=device)
        draws = torch.randn(2048, FACTORS, device=device)

        independent = torch.diag(covariance.diagonal().sqrt())
        price("independent", module, engine, independent, volatility, draws)
        price("principal", module, engine, principal(covariance), volatility, draws)

        triangular = torch.linalg.cholesky(covariance)
        price("triangular", module, engine, triangular, volatility, draws)


if __name__ == "__main__":
    main()
