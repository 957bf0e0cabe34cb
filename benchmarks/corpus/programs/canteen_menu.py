"""Canteen: who will take which dish; on Fridays more people come than anybody thought."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DISHES = 30


class Menu(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.dish = nn.Embedding(DISHES, d)
        self.guest = nn.Linear(6, d)
        self.out = nn.Linear(d, 1)

    def forward(self, guest, last_dish):
        h = F.gelu(self.guest(guest)) + self.dish(last_dish)
        return torch.sigmoid(self.out(h)).squeeze(-1)


def last_dishes(day, count):
    """The dish that each guest took last; the dish of the day is new."""
    taken = torch.randint(0, DISHES, (count,))
    if day == "friday":
        taken[-1] = DISHES
    return taken


def main():
    torch.manual_seed(18)
    model = Menu().eval()
    package = os.path.join(tempfile.mkdtemp(), "menu.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=40)
        sample = (torch.rand(6, 6), torch.arange(6))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for day, count in (("wednesday", 35), ("thursday", 52), ("friday", 70)):
            share = runner(torch.rand(count, 6), last_dishes(day, count))
            print(day, count, "guests", round(share.sum().item(), 1), flush=True)
    print("menu printed", flush=True)


if __name__ == "__main__":
    main()
