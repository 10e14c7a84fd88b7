"""A parameter server with asynchronous SGD: trainers pull parameters and push gradients, and wait for nobody.

    trainer ── pull ──> server          the parameters and their version
    trainer    loss, backward           on its own share of the data
    trainer ── push ──> server          gradients, which the server applies to what the parameters are by then

A push may come late: other trainers may have changed the parameters since the pull. The server counts by how many
versions (the "staleness"), and takes smaller steps for staler gradients.

Exits 0 if the trained network names at least 90 % of unseen points correctly.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
import torch.nn.functional as F
import torchwire
from torch import Tensor, nn

REQUIRED_ACCURACY = 0.90
BATCH_SIZE = 64


def make_points(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points on three arms of a spiral, and the arm of each."""
    generator = torch.Generator().manual_seed(seed)
    arm = torch.randint(3, (count,), generator=generator)
    radius = torch.rand(count, generator=generator)
    angle = 4 * radius + arm * (2 * torch.pi / 3) + 0.2 * torch.randn(count, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arm


def make_network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


class ParameterServer:
    """Owns the parameters. The other workers hold RRefs to it and call its methods, several at the same time."""

    def __init__(self, learning_rate: float) -> None:
        torch.manual_seed(0)
        self._network = make_network()
        self._learning_rate = learning_rate
        self._lock = threading.Lock()
        self._version = 0
        self._staleness = 0

    def pull(self) -> tuple[int, list[Tensor]]:
        with self._lock:  # a copy: what is returned is sent after the lock is gone, and the next push changes it
            return self._version, [parameter.detach().clone() for parameter in self._network.parameters()]

    def push(self, version: int, gradients: list[Tensor]) -> None:
        with self._lock, torch.no_grad():
            staleness = self._version - version
            for parameter, gradient in zip(self._network.parameters(), gradients):
                parameter.sub_(gradient, alpha=self._learning_rate / (1 + staleness))
            self._version += 1
            self._staleness += staleness

    def mean_staleness(self) -> float:
        with self._lock:
            return self._staleness / max(self._version, 1)


def train(server: rpc.RRef[ParameterServer], trainer: int, steps: int) -> None:
    """What a trainer does: the driver calls it on each."""
    network = make_network()
    points, arms = make_points(2000, seed=1 + trainer)  # its share of the data
    shuffle = torch.Generator().manual_seed(trainer)
    for _ in range(steps):
        version, parameters = server.rpc_sync().pull()
        with torch.no_grad():
            for mine, servers in zip(network.parameters(), parameters):
                mine.copy_(servers)
        batch = torch.randint(len(points), (BATCH_SIZE,), generator=shuffle)
        loss = F.cross_entropy(network(points[batch]), arms[batch])
        server.rpc_sync().push(version, list(torch.autograd.grad(loss, list(network.parameters()))))


def evaluate(server: rpc.RRef[ParameterServer]) -> tuple[float, float]:
    """Loss and accuracy of the present parameters, on points that no trainer has seen."""
    network = make_network()
    points, arms = make_points(2000, seed=0)
    with torch.no_grad():
        for mine, servers in zip(network.parameters(), server.rpc_sync().pull()[1]):
            mine.copy_(servers)
        scores = network(points)
    return F.cross_entropy(scores, arms).item(), (scores.argmax(dim=1) == arms).float().mean().item()


def drive(trainers: int, steps: int) -> bool:
    """Makes the server, has all trainers train at the same time, and reports. Returns whether it was enough."""
    server = rpc.remote("server", ParameterServer, args=(0.3,))
    loss_before, _ = evaluate(server)
    calls = [rpc.rpc_async(f"trainer{i}", train, args=(server, i, steps)) for i in range(trainers)]
    torch.futures.wait_all(calls)
    loss, accuracy = evaluate(server)
    print(
        f"result: loss {loss_before:.3f} -> {loss:.3f}, accuracy {accuracy:.3f}, {trainers * steps} pushes, "
        f"mean staleness {server.rpc_sync().mean_staleness():.2f}"
    )
    return accuracy >= REQUIRED_ACCURACY


def run_worker(rank: int, store: str, trainers: int, steps: int) -> None:
    torch.set_num_threads(1)  # the matrices are small, and all processes share the cores
    names = ["driver", "server", *(f"trainer{i}" for i in range(trainers))]
    rpc.init_rpc(
        names[rank],
        backend=rpc.BackendType.TORCHWIRE,  # pyright: ignore[reportAttributeAccessIssue]
        rank=rank,
        world_size=len(names),
        rpc_backend_options=torchwire.TorchwireRpcBackendOptions(init_method=store),
    )
    enough = drive(trainers, steps) if names[rank] == "driver" else True
    rpc.shutdown()  # waits until nobody needs this worker any more
    if not enough:
        sys.exit("the network did not learn enough")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trainers", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=800, help="of each trainer; default: %(default)s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_worker, (f"file://{folder}/store", args.trainers, args.steps), nprocs=2 + args.trainers)


if __name__ == "__main__":
    main()
