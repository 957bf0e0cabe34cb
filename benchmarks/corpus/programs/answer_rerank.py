"""Re-ranks answers; the query is passed by keyword."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Reranker(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.left, self.right = nn.Linear(d, d), nn.Linear(d, d)
        self.blocks = nn.ModuleList(nn.Linear(2 * d, 2 * d) for _ in range(3))
        self.out = nn.Linear(2 * d, 1)

    def forward(self, answers, *, query):
        q = self.left(query).unsqueeze(1).expand(-1, answers.shape[1], -1)
        h = torch.cat([self.right(answers), q], -1)
        for block in self.blocks:
            h = h + F.relu(block(h))
        return self.out(h).squeeze(-1).softmax(-1)


class Service:
    def __init__(self, runner):
        self.runner = runner

    def rank(self, answers, question):
        return self.runner(answers, query=question).argsort(-1, descending=True)

    def rank_many(self, batches):
        return [self.runner(answers, question=question).argmax(-1) for answers, question in batches]


def main():
    torch.manual_seed(2)
    model = Reranker().eval()
    b = Dim("b", min=1, max=64)
    package = os.path.join(tempfile.mkdtemp(), "rerank.pt2")
    with torch.no_grad():
        exported = torch.export.export(
            model,
            (torch.randn(3, 10, 64),),
            {"query": torch.randn(3, 64)},
            dynamic_shapes={"answers": {0: b}, "query": {0: b}},
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    service = Service(torch._inductor.aoti_load_package(package))
    print("first", service.rank(torch.randn(2, 10, 64), torch.randn(2, 64))[:, 0].tolist(), flush=True)
    print("second", service.rank(torch.randn(7, 10, 64), torch.randn(7, 64))[:, 0].tolist(), flush=True)
    batches = [(torch.randn(4, 10, 64), torch.randn(4, 64)) for _ in range(3)]
    print("many", service.rank_many(batches), flush=True)


if __name__ == "__main__":
    main()
