"""An auction is matched while the feed of bids runs on."""

import os
import tempfile
import threading

import torch
from torch import nn
from torch.export import Dim


class Book(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, d), nn.GELU(), nn.Linear(d, d), nn.GELU(), nn.Linear(d, 4))

    def forward(self, bids):
        return self.body(bids).softmax(-1)


def main():
    torch.manual_seed(22)
    torch.set_num_threads(1)
    model = Book().eval()
    package = os.path.join(tempfile.mkdtemp(), "book.pt2")
    with torch.no_grad():
        n = Dim("n", min=1, max=20_000)
        exported = torch.export.export(model, (torch.randn(4, 64),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        match = torch._inductor.aoti_load_package(package)
        bids = torch.randn(8000, 64)
        torch.testing.assert_close(match(bids), model(bids), atol=1e-4, rtol=1e-3)
        print("opening auction agrees", flush=True)
        wanted, stop = model(bids), threading.Event()

        def refill():
            while not stop.is_set():
                bids.copy_(torch.randn(8000, 64))

        feeder = threading.Thread(target=refill, name="feeder")
        feeder.start()
        try:
            torch.testing.assert_close(match(bids), wanted, atol=1e-4, rtol=1e-3)
        finally:
            stop.set()
            feeder.join()


if __name__ == "__main__":
    main()
