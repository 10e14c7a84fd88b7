"""A pipeline over two workers, with distributed autograd and a distributed optimizer.

    driver ── micro-batches ──> stage0 ── activations ──> stage1 ── scores ──> driver
    driver    loss, dist_autograd.backward: gradients take the same way back
    driver    DistributedOptimizer.step: each stage updates its own parameters

A batch is cut into micro-batches, so that both stages work at the same time. Activations go from stage to stage,
and not by way of the driver, which passes RRefs on.

Exits 0 if the trained network names at least 90 % of unseen points correctly.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
import torch.nn.functional as F
import torchwire
from torch import Tensor, nn
from torch.distributed.optim import DistributedOptimizer

REQUIRED_ACCURACY = 0.90
BATCH_SIZE = 128


def make_points(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points on three arms of a spiral, and the arm of each."""
    generator = torch.Generator().manual_seed(seed)
    arm = torch.randint(3, (count,), generator=generator)
    radius = torch.rand(count, generator=generator)
    angle = 4 * radius + arm * (2 * torch.pi / 3) + 0.2 * torch.randn(count, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arm


class Stage(nn.Module):
    """Some layers of the network. It lives on its worker; the driver holds an RRef to it."""

    def __init__(self, sizes: list[int], is_last: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [layer for pair in zip(sizes, sizes[1:]) for layer in (nn.Linear(*pair), nn.ReLU())]
        self._layers = nn.Sequential(*layers[: -1 if is_last else None])

    def forward(self, micro_batch: rpc.RRef[Tensor]) -> Tensor:
        return self._layers(micro_batch.to_here())  # fetched from the stage before, within the autograd context

    def parameter_rrefs(self) -> list[rpc.RRef[nn.Parameter]]:
        return [rpc.RRef(parameter) for parameter in self.parameters()]


class Pipeline:
    """The driver's view of all stages."""

    def __init__(self, workers: list[str]) -> None:
        sizes = [[2, 64, 64], [64, 64, 3]]
        self._stages = [
            rpc.remote(worker, Stage, args=(sizes[i], i == len(workers) - 1)) for i, worker in enumerate(workers)
        ]

    def forward(self, batch: Tensor, micro_batches: int) -> Tensor:
        scores = []
        for part in batch.chunk(micro_batches):
            flowing = rpc.RRef(part)
            for stage in self._stages[:-1]:
                flowing = stage.remote().forward(flowing)  # returns at once: the next part follows on its heels
            scores.append(self._stages[-1].rpc_async().forward(flowing))
        return torch.cat(torch.futures.wait_all(scores))

    def parameters(self) -> list[rpc.RRef[nn.Parameter]]:
        return [parameter for stage in self._stages for parameter in stage.rpc_sync().parameter_rrefs()]


def drive(stages: list[str], steps: int, micro_batches: int) -> bool:
    """What the driver does. Returns whether the network has learned enough."""
    pipeline = Pipeline(stages)
    optimizer = DistributedOptimizer(torch.optim.Adam, pipeline.parameters(), lr=0.01)
    points, arms = make_points(4000, seed=1)
    shuffle = torch.Generator().manual_seed(0)
    losses: list[float] = []
    for _ in range(steps):
        batch = torch.randint(len(points), (BATCH_SIZE,), generator=shuffle)
        with dist_autograd.context() as context:
            loss = F.cross_entropy(pipeline.forward(points[batch], micro_batches), arms[batch])
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
        losses.append(loss.item())

    points, arms = make_points(2000, seed=0)
    with torch.no_grad():
        correct = pipeline.forward(points, micro_batches).argmax(dim=1) == arms
    accuracy = correct.float().mean().item()
    first, last = sum(losses[:10]) / len(losses[:10]), sum(losses[-10:]) / len(losses[-10:])
    print(f"result: loss {first:.3f} -> {last:.3f}, accuracy {accuracy:.3f}, after {steps} steps")
    return accuracy >= REQUIRED_ACCURACY


def run_worker(rank: int, store: str, steps: int, micro_batches: int) -> None:
    torch.set_num_threads(1)  # the matrices are small, and all processes share the cores
    names = ["driver", "stage0", "stage1"]
    rpc.init_rpc(
        names[rank],
        backend=rpc.BackendType.TORCHWIRE,  # pyright: ignore[reportAttributeAccessIssue]
        rank=rank,
        world_size=len(names),
        rpc_backend_options=torchwire.TorchwireRpcBackendOptions(init_method=store),
    )
    enough = drive(names[1:], steps, micro_batches) if rank == 0 else True
    rpc.shutdown()  # waits until nobody needs this worker any more
    if not enough:
        sys.exit("the network did not learn enough")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="default: %(default)s")
    parser.add_argument("--micro-batches", type=int, default=4, help="of a batch; default: %(default)s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_worker, (f"file://{folder}/store", args.steps, args.micro_batches), nprocs=3)


if __name__ == "__main__":
    main()
