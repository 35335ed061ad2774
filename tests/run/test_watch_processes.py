"""A watch in two processes (gloo, CPU): each measures its samples, only numbers are gathered; DDP and fully_shard."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lisse
from lisse.run import load_profiles

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, sys
from pathlib import Path
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
import lisse
from lisse.instruments import Extremes, Sensitivity
from lisse.networks import zoo
from lisse.run import Watch

kind, out = sys.argv[1:]
world = int(os.environ["WORLD_SIZE"])
if world > 1:
    # A file and not a port: another process may take a port that was free a moment ago.
    store = Path(out, "store").as_uri()
    torch.distributed.init_process_group("gloo", init_method=store, rank=int(os.environ["RANK"]), world_size=world)
rank = int(os.environ["RANK"])
network = zoo.build("vit_small", seed=0, depth=2, width=16, heads=2, size=8, patch=2, classes=3)
generator = torch.Generator().manual_seed(0)
images, labels = torch.rand(40, 3, 8, 8, generator=generator), torch.arange(40) % 3
model, counts = network, [0]
if kind == "fsdp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (world,))
    for block in network.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(network, mesh=mesh)
elif kind == "ddp":
    model = DistributedDataParallel(network)
network.blocks[0].register_forward_hook(lambda m, a, o: counts.append(len(o)))
watch = Watch((images, labels), [Extremes(samples=40), Sensitivity(samples=40, points=0, draws=0, margins=0)], batch=7,
              out=out, ranks="all", on_error="raise")
optimiser = torch.optim.SGD(network.parameters(), 0.01)
first = watch.measure(model, step=0)
seen = sum(counts)
for step in range(2):
    loss = nn.functional.cross_entropy(model(images[:8]), labels[:8])
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
last = watch.measure(model, step=2)
assert (first is None) == (rank != 0)
again = watch.measure(model, step=2)
Path(out, f"told-{rank}.json").write_text(json.dumps([seen, float(loss)]))
if world > 1:
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
"""


def run(tmp_path: Path, kind: str, world: int) -> tuple[dict[int, lisse.Profile], list]:
    out = tmp_path / f"{kind}-{world}"
    out.mkdir()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    # DETAIL compares what processes exchange: a forward too many in one of them is an error, not luck. (Under it
    # torch itself crashes in a DistributedDataParallel.)
    checked = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"} if kind == "fsdp" else {}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), kind, str(out)],
            env={**os.environ, **checked, "WORLD_SIZE": str(world), "RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(world)
    ]  # fmt: skip
    try:
        ends = [process.communicate(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * world, "\n".join(error[-2000:] for _, error in ends)
    told = [json.loads((out / f"told-{rank}.json").read_text()) for rank in range(world)]
    return load_profiles(out), told


def numbers(profile: lisse.Profile) -> dict:
    return {(row.quantity, row.layer, repr(sorted(dict(row.at).items()))): row.value for row in profile.rows}


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_measure_what_one_does(tmp_path, kind):
    whole, _ = run(tmp_path, "alone", 1)
    parts, told = run(tmp_path, kind, 2)
    assert list(parts) == list(whole) == [0, 2]
    for step in (0, 2):
        one, two = numbers(whole[step]), numbers(parts[step])
        assert two.keys() == one.keys()
        for key, value in one.items():
            assert two[key] == pytest.approx(value, rel=1e-3, abs=1e-5), (step, key)
    assert told[0][1] == pytest.approx(told[1][1], rel=1e-4)  # the training went on alike
