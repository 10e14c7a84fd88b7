"""Trains a digit classifier over RPC with a parameter server, two trainers and a master.

    master ──── one epoch ────────────> trainer0, trainer1    (RRefs, rpc_async, both at once)
    trainer ─── pixels ───────────────> server   first layer
    trainer <── features ───────────── server
    trainer     ReLU
    trainer ─── features ─────────────> server   second layer
    trainer <── logits ─────────────── server
    trainer     loss, dist_autograd.backward back along the same way, DistributedOptimizer.step

The parameters never leave the server. Gradients cross between trainer and server in both
directions. The trainers run asynchronously ("Hogwild"): each has its own autograd contexts, and
each step updates the server's parameters as they are at that moment.

Exits 0 if the trained network names at least 90 % of unseen digits correctly.
"""

import argparse
import itertools
import os
import sys
import tempfile
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.distributed.optim import DistributedOptimizer
from tqdm import tqdm

TRAINERS = ["trainer0", "trainer1"]
WORKERS = ["master", "server", *TRAINERS]  # a worker's rank is its place in this list

BATCH_SIZE = 32
REQUIRED_ACCURACY = 0.90
SEED = 0


class Server:
    """Owns the parameters and computes the two layers. The other workers hold RRefs to it."""

    def __init__(self):
        torch.manual_seed(SEED)
        self.first = torch.nn.Linear(64, 64)
        self.second = torch.nn.Linear(64, 10)

    def features(self, pixels):
        return _linear(pixels, self.first)

    def logits(self, features):
        return _linear(features, self.second)

    def parameters(self):
        return [rpc.RRef(p) for layer in (self.first, self.second) for p in layer.parameters()]


def _linear(x, layer):
    # Backward needs the weight that forward used, but meanwhile the other trainer's step may have
    # changed it in place, which autograd refuses. A copy keeps it, and passes gradients on.
    return F.linear(x, layer.weight.clone(), layer.bias)


def predict(server, pixels):
    """The whole network's forward pass, as seen from outside the server."""
    features = server.rpc_sync().features(pixels)
    return server.rpc_sync().logits(F.relu(features))


class Trainer:
    """Trains on its share of the images. Lives on a trainer; the master holds an RRef to it."""

    def __init__(self, server, images, labels):
        self.server = server
        self.images = images
        self.labels = labels
        self.shuffle = torch.Generator().manual_seed(SEED)
        self.optimizer = DistributedOptimizer(torch.optim.SGD, server.rpc_sync().parameters(), lr=0.02, momentum=0.9)

    def epoch(self):
        """Goes through all images once; returns the mean loss and the number of steps."""
        order = torch.randperm(len(self.labels), generator=self.shuffle)
        losses = [self.step(batch) for batch in order.split(BATCH_SIZE)]
        return sum(losses) / len(losses), len(losses)

    def step(self, batch):
        with dist_autograd.context() as context:
            loss = F.cross_entropy(predict(self.server, self.images[batch]), self.labels[batch])
            dist_autograd.backward(context, [loss])
            self.optimizer.step(context)
        return loss.item()


def train(backend_name, epochs):
    """What the master does. Returns the figures for the report."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16, labels, test_size=0.2, random_state=SEED, stratify=labels)
    images, test_images = (torch.tensor(part, dtype=torch.float32) for part in split[:2])
    labels, test_labels = (torch.tensor(part) for part in split[2:])

    server = rpc.remote("server", Server)
    shares = [slice(i, None, len(TRAINERS)) for i in range(len(TRAINERS))]
    trainers = [
        rpc.remote(name, Trainer, args=(server, images[share], labels[share])) for name, share in zip(TRAINERS, shares)
    ]

    steps = 0
    started = time.perf_counter()
    progress = tqdm(range(epochs), desc="training", unit="epoch", disable=None)  # on a terminal
    for _ in progress:
        results = [future.wait() for future in [t.rpc_async().epoch() for t in trainers]]
        steps += sum(count for _, count in results)
        progress.set_postfix(loss=f"{sum(loss for loss, _ in results) / len(results):.4f}")
    seconds = time.perf_counter() - started

    correct = predict(server, test_images).argmax(dim=1) == test_labels
    return {
        "accuracy": correct.float().mean().item(),
        "tested": len(correct),
        "epochs": epochs,
        "steps": steps,
        "seconds": seconds,
        "peers": collect_peers() if backend_name == "TORCHWIRE" else {},
    }


def collect_peers():
    """What each worker knows about its peers. Only torchwire keeps such a record."""
    import torchwire  # here, because on another backend the demo does not need it

    return {name: rpc.rpc_sync(name, torchwire.peers) for name in WORKERS}


def find_backend(name):
    if name == "TORCHWIRE":
        import torchwire  # noqa: F401  # this registers it
    return rpc.BackendType[name]


def run_worker(rank, backend_name, store_file, epochs, report):
    # The matrices are small and four processes share the cores: more threads would only wait.
    torch.set_num_threads(1)
    backend = find_backend(backend_name)
    rpc.init_rpc(
        WORKERS[rank],
        backend=backend,
        rank=rank,
        world_size=len(WORKERS),
        rpc_backend_options=rpc.backend_registry.construct_rpc_backend_options(
            backend, init_method=f"file://{store_file}"
        ),
    )
    if WORKERS[rank] == "master":
        report.put(train(backend_name, epochs))
    rpc.shutdown()  # waits until nobody needs this worker any more


def print_report(result):
    print(
        f"accuracy   {result['accuracy']:.3f} on {result['tested']} images not seen in training"
        f" (required: {REQUIRED_ACCURACY:.2f})\n"
        f"training   {result['epochs']} epochs, {result['steps']} steps"
        f" in {result['seconds']:.1f} s: {result['steps'] / result['seconds']:.0f} steps/s"
    )
    if not result["peers"]:
        print("traffic    not recorded by this backend")
        return

    views = {(name, peer["name"]): peer for name, seen in result["peers"].items() for peer in seen}
    calls = sum(view["calls"] for view in views.values())
    sent = sum(view["bytes_sent"] for view in views.values())
    print(
        f"calls      {calls}: {calls / result['seconds']:.0f} calls/s\n"
        f"sent       {sent / 1e6:.1f} MB\n\n"
        f"{'pair of workers':<24} {'transport':<12} {'channel':<12} {'calls':>8} {'MB sent':>8}"
    )
    for pair in itertools.combinations(WORKERS, 2):
        both = [views[way] for way in (pair, pair[::-1]) if way in views]
        print(
            f"{' - '.join(pair):<24}"
            f" {_distinct(both, 'transport'):<12} {_distinct(both, 'channel'):<12}"
            f" {sum(view['calls'] for view in both):>8}"
            f" {sum(view['bytes_sent'] for view in both) / 1e6:>8.1f}"
        )


def _distinct(views, key):
    """What both ends of a pair say, once if they agree; a dash where they never talked."""
    return "/".join(sorted({view[key] for view in views if view[key]})) or "-"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["TORCHWIRE", "TENSORPIPE"], default="TORCHWIRE")
    parser.add_argument("--epochs", type=int, default=30, help="default: %(default)s")
    args = parser.parse_args()

    report = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="torchwire-demo-") as folder:
        store_file = os.path.join(folder, "store")
        mp.spawn(run_worker, (args.backend, store_file, args.epochs, report), nprocs=len(WORKERS))
    result = report.get()

    print_report(result)
    if result["accuracy"] < REQUIRED_ACCURACY:
        sys.exit("the network did not learn enough")


if __name__ == "__main__":
    main()
