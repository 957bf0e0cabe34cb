"""Search ranking whose weights are refreshed from the trainer's checkpoints without a new build."""

import os
import re
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

D = 56


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(600, D)
        self.query_proj, self.doc_proj = nn.Linear(D, D), nn.Linear(D, D)
        self.scale = nn.Linear(D, 24)

    def forward(self, query, document):
        q = torch.tanh(self.query_proj(self.words(query).mean(1)))
        d = torch.relu(self.doc_proj(self.words(document).mean(1)))
        return self.scale(F.normalize(q * d + q, dim=-1))


class Trainer:
    """Trains a copy and writes checkpoints under the names of its own code base."""

    OWN = {"words": "vocab", "query_proj": "tower_b", "doc_proj": "tower_a", "scale": "out"}

    def __init__(self, model):
        self.model = model

    def checkpoint(self, path):
        for p in self.model.parameters():
            p.add_(0.1 * torch.randn_like(p))
        state = {}
        for name, value in self.model.state_dict().items():
            part, rest = name.split(".", 1)
            state[f"{self.OWN[part]}/{rest}"] = value.clone()
        torch.save(state, path)


class Publisher:
    SERVED = {"vocab": "words", "tower_a": "query_proj", "tower_b": "doc_proj", "out": "scale"}

    def __init__(self, served):
        self.served = served

    def publish(self, path):
        state = torch.load(path, weights_only=True)
        renamed = {re.sub(r"^(\w+)/", lambda m: self.SERVED[m[1]] + ".", k): v for k, v in state.items()}
        self.served.load_constants(renamed, check_full_update=True)


def main():
    torch.manual_seed(9)
    model = Ranker().eval()
    folder = tempfile.mkdtemp()
    b = Dim("b", min=1, max=512)
    example = (torch.randint(0, 600, (4, 5)), torch.randint(0, 600, (4, 20)))
    with torch.no_grad():
        program = torch.export.export(model, example, dynamic_shapes=({0: b}, {0: b}))
        path = torch._inductor.aoti_compile_and_package(
            program, package_path=os.path.join(folder, "ranker.pt2")
        )
        served = torch._inductor.aoti_load_package(path)
        torch.testing.assert_close(served(*example), model(*example), atol=1e-4, rtol=1e-4)
        print("build agrees with the trainer", flush=True)
        trainer, publisher = Trainer(model), Publisher(served)
        trainer.checkpoint(os.path.join(folder, "step_100.pt"))
        publisher.publish(os.path.join(folder, "step_100.pt"))
        print("published step 100", flush=True)
        torch.testing.assert_close(served(*example), model(*example), atol=1e-4, rtol=1e-4)
        print("step 100 agrees with the trainer", flush=True)


if __name__ == "__main__":
    main()
