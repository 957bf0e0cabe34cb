"""Stadium gates: two gates add their visitors to one running count, which the model keeps."""

import os
import tempfile
import threading
import time

import torch
from torch import nn
from torch.export import Dim


@torch.library.custom_op("gate::book", mutates_args=())
def book(total: torch.Tensor, visits: torch.Tensor) -> torch.Tensor:
    seen = total.clone()
    time.sleep(0.05)  # the register answers slowly
    return seen + visits


@book.register_fake
def _(total, visits):
    return torch.empty_like(total)


class Gates(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.price = nn.Parameter(torch.tensor([9.0, 6.0, 4.0, 0.0]))

    def forward(self, visits, limit):
        counted = visits.clamp(max=limit).sum(0)
        self.total.copy_(torch.ops.gate.book(self.total, counted))
        return (self.total * self.price).sum() + 0.0 * counted.sum()


def evening(runner, groups):
    gate = threading.Barrier(len(groups))

    def enter(visits):
        gate.wait()
        runner(visits, 80.0)

    threads = [threading.Thread(target=enter, args=(visits,)) for visits in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main():
    package = os.path.join(tempfile.mkdtemp(), "gates.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=64)
        exported = torch.export.export(
            Gates().eval(), (torch.ones(3, 4), 50.0), dynamic_shapes=({0: n}, None)
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package, run_single_threaded=True)
        takings = 0.0
        for name, groups in (("test match", [2]), ("cup final", [4, 6])):
            visits = [torch.full((rows, 4), 3.0) for rows in groups]
            evening(runner, visits)
            takings += sum(3.0 * rows * 19.0 for rows in groups)
            shown = runner(torch.zeros(2, 4), 80.0)
            torch.testing.assert_close(shown, torch.tensor(takings))
            print(name, takings, flush=True)


if __name__ == "__main__":
    main()
