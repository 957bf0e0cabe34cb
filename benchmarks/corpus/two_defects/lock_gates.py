"""Canal lock: two gates add what passes to one running count, which the model keeps on the card."""

import os
import tempfile
import threading
import time

import torch
from torch import nn
from torch.export import Dim

DEV = "cuda"


@torch.library.custom_op("lock::book", mutates_args=())
def book(total: torch.Tensor, passed: torch.Tensor) -> torch.Tensor:
    seen = total.clone()
    time.sleep(0.2)  # the register answers slowly
    return seen + passed


@book.register_fake
def _(total, passed):
    return torch.empty_like(total)


class Lock(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.price = nn.Parameter(torch.tensor([40.0, 25.0, 10.0, 0.0]))

    def forward(self, boats):
        passed = (boats * 2.0).sum(0)
        self.total.copy_(torch.ops.lock.book(self.total, passed))
        return (self.total * self.price).sum() + 0.0 * passed.sum()


def let_pass(runner, gates):
    start = threading.Barrier(len(gates))

    def gate(boats):
        start.wait()
        runner(boats)

    threads = [threading.Thread(target=gate, args=(boats,)) for boats in gates]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()


def main():
    torch.cuda.set_per_process_memory_fraction(0.02)
    with torch.device(DEV):
        model, sample = Lock().eval(), torch.ones(3, 4)
    package = os.path.join(tempfile.mkdtemp(), "lock.pt2")
    with torch.no_grad():
        exported = torch.export.export(model, (sample,), dynamic_shapes=({0: Dim("n", min=2, max=64)},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package, run_single_threaded=True)
        fees = 0.0
        for day, rows in (("saturday", [3]), ("sunday", [4, 6])):
            let_pass(runner, [torch.full((count, 4), 0.5, device=DEV) for count in rows])
            fees += 75.0 * sum(rows)
            shown = runner(torch.zeros(2, 4, device=DEV))
            torch.testing.assert_close(shown.cpu(), torch.tensor(fees))
            print(day, fees, flush=True)


if __name__ == "__main__":
    main()
