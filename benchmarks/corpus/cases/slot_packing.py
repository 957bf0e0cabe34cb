"""Packs the marked events of a session into a fixed number of slots, then classifies the session."""

import os
import tempfile

import torch
import torch.nn as nn
from torch.export import Dim

SLOTS = 8


class SessionModel(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.inp = nn.Linear(width, 10)
        self.cls = nn.Linear(SLOTS * 10, 4)

    def pack(self, events, marks):
        place = marks.long().cumsum(1) - 1
        place = torch.where(marks, place, SLOTS)
        room = events.new_zeros(events.shape[0], SLOTS + 1, events.shape[2])
        room = room.scatter(1, place[..., None].expand_as(events), events)
        return room[:, :SLOTS]

    def forward(self, events, marks):
        packed = self.pack(torch.tanh(self.inp(events)), marks)
        return self.cls(packed.flatten(1))


def sessions():
    g = torch.Generator().manual_seed(14)
    for length, often in ((12, 0.3), (20, 0.2), (30, 0.15), (60, 0.5)):
        yield torch.rand(5, length, 6, generator=g), torch.rand(5, length, generator=g) < often


def main():
    torch.manual_seed(3)
    model = SessionModel().eval()
    t = Dim("t", min=4, max=200)
    with torch.no_grad():
        example = (torch.rand(5, 16, 6), torch.rand(5, 16) < 0.2)
        program = torch.export.export(model, example, dynamic_shapes=({1: t}, {1: t}))
        path = os.path.join(tempfile.mkdtemp(), "sessions.pt2")
        classify = torch._inductor.aoti_load_package(
            torch._inductor.aoti_compile_and_package(program, package_path=path)
        )
        for events, marks in sessions():
            kind = classify(events, marks).argmax(-1)
            print(events.shape[1], "events, kinds", kind.tolist(), flush=True)


if __name__ == "__main__":
    main()
