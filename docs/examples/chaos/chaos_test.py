"""A chaos test of a service: replicas are killed while clients write, and no write that was confirmed may be lost.

    four threads write, all the time
    replica0 is killed (SIGKILL)      the calls under way fail with torchwire.WorkerDied; writes go on to replica1
    replica0 is started anew          it comes back under its name, and gets what replica1 has
    replica1 is killed                what was ever confirmed is read from replica0

It kills processes as the kernel would, and needs no special build of torchwire. To lose, delay or damage messages as
well, see docs/fault_injection.md.

Exits 0 if every assertion held.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import tempfile
import threading
import time
from multiprocessing.context import SpawnProcess

import torch
import torch.distributed.rpc as rpc
import torchwire
from replicated_store import Client, join, run_replica, stop

REPLICAS = 2
WORLD_SIZE = REPLICAS + 1  # with the client, which is this process
KEYS = 1000  # of each thread; so many that most are not written again between a replica's return and the next kill
LIMIT = 30.0  # seconds after which a step has failed


class Writers:
    """Threads that write numbers under keys of their own, and remember what was confirmed."""

    def __init__(self, client: Client, threads: int) -> None:
        self._client = client
        self._confirmed: dict[str, int] = {}
        self._writes = [0] * threads  # that were confirmed, of each
        self._failures: list[BaseException] = []
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(i,)) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def _write(self, thread: int) -> None:
        try:
            for number in itertools.count():
                if self._stopping.is_set():
                    return
                key = f"{thread}/{number % KEYS}"
                self._client.put(key, torch.tensor(number))
                self._confirmed[key] = number
                self._writes[thread] += 1
        except BaseException as error:
            self._failures.append(error)

    def writes(self) -> int:
        return sum(self._writes)

    def wait_for_more(self, writes: int) -> None:
        """Until so many more have been confirmed: so the service works."""
        wanted, end = self.writes() + writes, time.monotonic() + LIMIT
        while self.writes() < wanted:
            assert not self._failures, self._failures
            assert time.monotonic() < end, "writes are not confirmed any more"
            time.sleep(0.01)

    def stop(self) -> dict[str, int]:
        """Returns the last confirmed number of each key."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(LIMIT)
            assert not thread.is_alive(), "a write hangs"
        assert not self._failures, self._failures
        return self._confirmed


def kill(process: SpawnProcess, name: str, client: Client) -> float:
    """Kills it as by kill -9, and returns after how many seconds the first write noticed."""
    errors, started = len(client.errors), time.monotonic()
    process.kill()
    while len(client.errors) == errors:
        assert time.monotonic() < started + LIMIT, f"nobody noticed that {name} is gone"
        time.sleep(0.001)
    seconds = time.monotonic() - started
    process.join()
    assert name not in client.replicas()
    for error in client.errors[errors:]:
        assert isinstance(error, torchwire.WorkerDied), error
        assert error.worker == name, error
        assert error.executed in ("no", "unknown"), error  # never "yes": it was not heard
    return seconds


def run(init_method: str, threads: int, writes: int) -> None:
    context = multiprocessing.get_context("spawn")

    def start(rank: int) -> SpawnProcess:
        process = context.Process(target=run_replica, args=(rank, WORLD_SIZE, init_method), daemon=True)
        process.start()
        return process

    replicas = [start(rank) for rank in range(REPLICAS)]
    join("client", REPLICAS, WORLD_SIZE, init_method)
    client = Client([f"replica{rank}" for rank in range(REPLICAS)])
    writers = Writers(client, threads)
    writers.wait_for_more(writes)

    noticed = [kill(replicas[0], "replica0", client)]
    writers.wait_for_more(writes)
    replicas[0] = start(0)
    assert client.wait_for("replica0", LIMIT), "replica0 did not come back"
    writers.wait_for_more(writes)
    noticed.append(kill(replicas[1], "replica1", client))
    writers.wait_for_more(writes)

    confirmed = writers.stop()
    for key, number in confirmed.items():
        value = client.get(key)
        assert value is not None and value.item() == number, f"{key}: {number} was confirmed, {value} is there"
    client.close()
    rpc.rpc_sync("replica0", stop)
    rpc.shutdown()
    replicas[0].join(LIMIT)
    assert replicas[0].exitcode == 0
    print(
        f"result: 2 replicas killed, noticed after {max(noticed):.3f} s at most, {len(client.errors)} calls failed, "
        f"{writers.writes()} confirmed writes, none lost"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=4, help="that write; default: %(default)s")
    parser.add_argument("--writes", type=int, default=200, help="between two events; default: %(default)s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(f"file://{folder}/store", args.threads, args.writes)


if __name__ == "__main__":
    main()
