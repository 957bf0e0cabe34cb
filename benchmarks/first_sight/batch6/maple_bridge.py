"""Bridge strain scoring: nightly refit, weights swapped in the running scorer.

The scorer is compiled once per quarter. Each night the refit job trains the same
architecture on the newest strain gauge records and the running process takes over
the new weights without a rebuild.
"""
import os
import shutil
import tempfile

import torch
from torch import nn
from torch.export import Dim

GAUGES = 16
MODES = 24
ALARMS = 3


class StrainScorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(GAUGES)
        self.lift = nn.Linear(GAUGES, MODES)
        self.mix = nn.Linear(MODES, MODES)
        self.alarm = nn.Linear(MODES, ALARMS)

    def forward(self, strain):
        hidden = torch.relu(self.lift(self.norm(strain)))
        hidden = hidden + torch.relu(self.mix(hidden))
        return self.alarm(hidden)


def refit(quarter_state, records, labels):
    model = StrainScorer()
    model.load_state_dict(quarter_state)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(25):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(records), labels)
        loss.backward()
        optimizer.step()
    print(f"refit finished, loss {loss.item():.4f}")
    return model.eval()


class RunningScorer:
    def __init__(self, package):
        self.compiled = torch._inductor.aoti_load_package(package)
        self.names = self.compiled.get_constant_fqns()

    def take_over(self, state):
        wanted = {name: state[name].detach().contiguous() for name in self.names}
        self.compiled.load_constants(wanted, check_full_update=True)
        print(f"took over {len(wanted)} tensors")

    def score(self, strain):
        return self.compiled(strain)


def main():
    folder = tempfile.mkdtemp(prefix="bridge_")
    try:
        torch.manual_seed(5)
        quarter = StrainScorer().eval()
        example = torch.randn(6, GAUGES)
        exported = torch.export.export(
            quarter, (example,), dynamic_shapes=({0: Dim("spans", min=1, max=512)},)
        )
        package = torch._inductor.aoti_compile_and_package(
            exported, package_path=os.path.join(folder, "strain.pt2"), inductor_configs={}
        )
        scorer = RunningScorer(package)

        morning = torch.randn(10, GAUGES)
        with torch.no_grad():
            torch.testing.assert_close(scorer.score(morning), quarter(morning), rtol=1e-4, atol=1e-4)
        print("quarter weights: scores agree")

        scorer.take_over(quarter.state_dict())
        with torch.no_grad():
            torch.testing.assert_close(scorer.score(morning), quarter(morning), rtol=1e-4, atol=1e-4)
        print("rehearsal of the takeover: scores agree")

        records = torch.randn(200, GAUGES)
        labels = torch.stack([records.mean(1) + 0.8, records.amax(1), records.std(1) - 0.5], dim=1)
        nightly = refit(quarter.state_dict(), records, labels)
        scorer.take_over(nightly.state_dict())

        with torch.no_grad():
            got, want = scorer.score(morning), nightly(morning)
        print("mean score per alarm, running:", [round(v, 3) for v in got.mean(0).tolist()])
        print("mean score per alarm, refit:  ", [round(v, 3) for v in want.mean(0).tolist()])
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        print("nightly takeover accepted")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
