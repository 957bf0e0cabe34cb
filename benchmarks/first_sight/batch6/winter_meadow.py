"""Low-latency scoring of order books with a captured graph."""

import os
import tempfile

import torch

LEVELS = 40
BOOKS = 256


class Imbalance(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(LEVELS, 64)
        self.head = torch.nn.Linear(64, 3)

    def forward(self, books):
        hidden = torch.nn.functional.gelu(self.mix(books))
        return torch.softmax(self.head(hidden), dim=-1)


def build(module, folder):
    example = torch.randn(BOOKS, LEVELS, device="cuda")
    program = torch.export.export(module, (example,))
    path = os.path.join(folder, "imbalance.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=path)
    return torch._inductor.aoti_load_package(path)


class FastScorer:
    """Records the model once and replays it for every tick."""

    def __init__(self, model):
        self.model = model
        self.books = None
        self.scores = None
        self.graph = torch.cuda.CUDAGraph()

    def warm_up(self, rounds=3):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(rounds):
                self.model(self.books)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()

    def record(self, books):
        self.books = books
        self.warm_up()
        with torch.cuda.graph(self.graph):
            self.scores = self.model(self.books)

    def score(self, books):
        self.books = books
        self.graph.replay()
        torch.cuda.synchronize()
        return self.scores.clone()


def ticks(count):
    """Snapshots as the feed handler delivers them."""
    return [torch.randn(BOOKS, LEVELS, device="cuda") * (1 + k) for k in range(count)]


def compare(name, module, scores, books):
    torch.testing.assert_close(scores, module(books), rtol=1e-3, atol=1e-3)
    print(f"{name}: {scores.argmax(1).bincount(minlength=3).tolist()}", flush=True)


def main():
    torch.manual_seed(23)
    module = Imbalance().cuda().eval()
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        model = build(module, folder)
        feed = ticks(4)
        for number in (0, 1):
            compare(f"direct {number}", module, model(feed[number]), feed[number])

        scorer = FastScorer(model)
        scorer.record(feed[0])
        for number, books in enumerate(feed):
            compare(f"tick {number}", module, scorer.score(books), books)


if __name__ == "__main__":
    main()
