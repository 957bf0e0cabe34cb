"""Key mixer of a distributed cache: hashes rows of ids on 64 bits and picks a shard for each."""

import os
import tempfile

import torch
from torch import nn

PRIME = 1099511628211
OFFSET = -3750763034362895579
MASK = (1 << 64) - 1
LOW = (1 << 35) - 1


class Mixer(nn.Module):
    def __init__(self, shards=13):
        super().__init__()
        self.shards = shards
        self.register_buffer(
            "salt", torch.tensor([-7046029254386353131, 1442695040888963407, -4417276706812531889])
        )
        self.affinity = nn.Linear(16, shards)

    def forward(self, ids, traits):
        h = torch.full_like(ids[:, 0], OFFSET)
        for k in range(3):
            h = (h ^ (ids[:, k] + self.salt[k])) * PRIME
        h = h ^ ((h >> 29) & LOW)
        shard = torch.remainder(h, self.shards)
        bias = torch.nn.functional.one_hot(shard, self.shards)
        return h, shard, (self.affinity(traits) + bias).softmax(-1)


def signed(v):
    v &= MASK
    return v - (1 << 64) if v >> 63 else v


def by_hand(row, salt, shards):
    h = OFFSET
    for a, s in zip(row, salt):
        h = signed((h ^ signed(a + s)) * PRIME)
    h = signed(h ^ ((h >> 29) & LOW))
    return h, h % shards


def verify(runner, mixer, ids):
    h, shard, weight = runner(ids, torch.randn(len(ids), 16))
    salt = mixer.salt.tolist()
    for row, got_h, got_s in zip(ids.tolist(), h.tolist(), shard.tolist()):
        if (got_h, got_s) != by_hand(row, salt, mixer.shards):
            raise ValueError(f"key {row}: {got_h} in shard {got_s}")
    return h, shard, weight


def main():
    torch.manual_seed(0)
    mixer = Mixer().eval()
    rows = torch.export.Dim("rows", min=2, max=100_000)
    with tempfile.TemporaryDirectory() as folder:
        with torch.no_grad():
            ep = torch.export.export(
                mixer,
                (torch.randint(0, 10**9, (8, 3)), torch.randn(8, 16)),
                dynamic_shapes=({0: rows}, {0: rows}),
            )
            path = torch._inductor.aoti_compile_and_package(
                ep, package_path=os.path.join(folder, "mixer.pt2")
            )
        runner = torch._inductor.aoti_load_package(path)
        batches = {
            "small ids": torch.randint(0, 1000, (50, 3)),
            "large ids": torch.randint(2**61, 2**62, (200, 3)),
            "edge ids": torch.tensor([[2**63 - 1, -(2**63), -1], [0, 0, 0], [-(2**63), 2**63 - 1, 1]]),
        }
        for name, ids in batches.items():
            h, shard, weight = verify(runner, mixer, ids)
            negative = int((h < 0).sum())
            print(
                f"{name}: {negative} of {len(h)} hashes negative, checksum {signed(sum(h.tolist()))}",
                flush=True,
            )
            nan = bool(weight.isnan().any())
            print(
                f"  shards {int(shard.min())}..{int(shard.max())}, sum {h.sum().item()}, nan {nan}",
                flush=True,
            )
    print("all keys verified")


if __name__ == "__main__":
    main()
