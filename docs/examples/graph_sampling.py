"""Graph sampling: workers own partitions of a graph, and a trainer samples neighbors from all of them by RPC.

    trainer ── nodes ──────> owner0, owner1     each is asked for the nodes that it owns
    trainer <── neighbors ── owner0, owner1     a random sample of them, and then, for the next hop, of theirs
    trainer <── features ─── owner0, owner1     of all nodes that were sampled
    trainer    a GraphSAGE layer per hop, loss, backward

The graph has communities. A node's features alone say little of its community, its neighbors' together much more.

Exits 0 if at least 90 % of unseen nodes are put into the right community, and more than from their own features.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
import torch.nn.functional as F
import torchwire
from torch import Tensor, nn

REQUIRED_ACCURACY = 0.90
NODES = 4000
COMMUNITIES = 4
FEATURES = 16
DEGREE = 12
FANOUT = 6  # neighbors that are sampled for each node
BATCH_SIZE = 64


def make_communities() -> Tensor:
    return torch.randint(COMMUNITIES, (NODES,), generator=torch.Generator().manual_seed(0))


class Partition:
    """The nodes that one owner has: node `n` belongs to owner `n % owners`, where it has the index `n // owners`."""

    def __init__(self, owner: int, owners: int) -> None:
        communities = make_communities()
        mine = torch.arange(owner, NODES, owners)
        generator = torch.Generator().manual_seed(1 + owner)
        centers = torch.randn(COMMUNITIES, FEATURES, generator=torch.Generator().manual_seed(99))
        self._features = centers[communities[mine]] + 4 * torch.randn(len(mine), FEATURES, generator=generator)
        # Five of six neighbors are of the same community, the others are anybody.
        same = torch.rand(len(mine), DEGREE, generator=generator) < 5 / 6
        anybody = torch.randint(NODES, (len(mine), DEGREE), generator=generator)
        members = [torch.nonzero(communities == community).squeeze(1) for community in range(COMMUNITIES)]
        picks = torch.randint(1 << 30, (len(mine), DEGREE), generator=generator)
        friends = torch.stack(
            [members[community][pick % len(members[community])] for community, pick in zip(communities[mine], picks)]
        )
        self._neighbors = torch.where(same, friends, anybody)
        self._generator = generator
        self._owners = owners

    def sample(self, nodes: Tensor) -> Tensor:
        """For each node FANOUT of its neighbors: nodes x FANOUT."""
        choice = torch.randint(DEGREE, (len(nodes), FANOUT), generator=self._generator)
        return self._neighbors[nodes // self._owners].gather(1, choice)

    def features(self, nodes: Tensor) -> Tensor:
        return self._features[nodes // self._owners]


class Graph:
    """The trainer's view of all partitions."""

    def __init__(self, owners: list[str]) -> None:
        self._partitions = [rpc.remote(owner, Partition, args=(i, len(owners))) for i, owner in enumerate(owners)]

    def sample(self, nodes: Tensor) -> Tensor:
        return self._ask_owners(nodes, lambda partition, part: partition.rpc_async().sample(part))

    def features(self, nodes: Tensor) -> Tensor:
        return self._ask_owners(nodes, lambda partition, part: partition.rpc_async().features(part))

    def _ask_owners(self, nodes: Tensor, ask: Callable[[rpc.RRef[Partition], Tensor], Any]) -> Tensor:
        """Asks all owners at the same time, and puts the rows that they return in the order of `nodes`."""
        owner = nodes % len(self._partitions)
        places = [torch.nonzero(owner == i).squeeze(1) for i in range(len(self._partitions))]
        calls = [ask(partition, nodes[place]) for partition, place in zip(self._partitions, places)]
        rows = torch.cat(torch.futures.wait_all(calls))
        result = torch.empty_like(rows)
        result[torch.cat(places)] = rows
        return result


class GraphSage(nn.Module):
    """Two layers: each joins a node's state with the mean of its sampled neighbors'."""

    def __init__(self) -> None:
        super().__init__()
        self._first = nn.Linear(2 * FEATURES, 32)
        self._second = nn.Linear(64, COMMUNITIES)

    def forward(self, graph: Graph, nodes: Tensor) -> Tensor:
        near = graph.sample(nodes).flatten()  # one hop away
        far = graph.sample(torch.cat([nodes, near])).flatten()  # neighbors of both
        everyone = graph.features(torch.cat([nodes, near, far]))
        own, around = everyone[: len(nodes) + len(near)], everyone[len(nodes) + len(near) :]
        around = around.view(-1, FANOUT, FEATURES).mean(dim=1)
        hidden = F.relu(self._first(torch.cat([own, around], dim=1)))
        hidden_around = hidden[len(nodes) :].view(-1, FANOUT, 32).mean(dim=1)
        return self._second(torch.cat([hidden[: len(nodes)], hidden_around], dim=1))


def train(scores_of: Callable[[Tensor], Tensor], model: nn.Module, steps: int) -> tuple[float, float, float]:
    """Trains on three quarters of the nodes; returns the first and the last loss, and the accuracy on the others."""
    communities = make_communities()
    nodes = torch.randperm(NODES, generator=torch.Generator().manual_seed(5))
    seen, unseen = nodes[: NODES * 3 // 4], nodes[NODES * 3 // 4 :]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses: list[float] = []
    for _ in range(steps):
        batch = seen[torch.randint(len(seen), (BATCH_SIZE,))]
        loss = F.cross_entropy(scores_of(batch), communities[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        accuracy = (scores_of(unseen).argmax(dim=1) == communities[unseen]).float().mean().item()
    return sum(losses[:10]) / len(losses[:10]), sum(losses[-10:]) / len(losses[-10:]), accuracy


def drive(owners: list[str], steps: int) -> bool:
    """What the trainer does. Returns whether the network has learned enough."""
    torch.manual_seed(0)
    graph = Graph(owners)
    alone = nn.Linear(FEATURES, COMMUNITIES)
    _, _, accuracy_alone = train(lambda nodes: alone(graph.features(nodes)), alone, steps)
    sage = GraphSage()
    first, last, accuracy = train(lambda nodes: sage(graph, nodes), sage, steps)
    print(f"result: loss {first:.3f} -> {last:.3f}, accuracy {accuracy:.3f}; without neighbors {accuracy_alone:.3f}")
    return accuracy >= REQUIRED_ACCURACY and accuracy > accuracy_alone


def run_worker(rank: int, store: str, owners: int, steps: int) -> None:
    torch.set_num_threads(1)  # the matrices are small, and all processes share the cores
    names = ["trainer", *(f"owner{i}" for i in range(owners))]
    rpc.init_rpc(
        names[rank],
        backend=rpc.BackendType.TORCHWIRE,  # pyright: ignore[reportAttributeAccessIssue]
        rank=rank,
        world_size=len(names),
        rpc_backend_options=torchwire.TorchwireRpcBackendOptions(init_method=store),
    )
    enough = drive(names[1:], steps) if rank == 0 else True
    rpc.shutdown()  # waits until nobody needs this worker any more
    if not enough:
        sys.exit("the network did not learn enough")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--owners", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=300, help="default: %(default)s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_worker, (f"file://{folder}/store", args.owners, args.steps), nprocs=1 + args.owners)


if __name__ == "__main__":
    main()
