"""Batch serving with async functions: requests of many clients are answered by one forward pass.

    client ── a row ──> server     the function returns a future at once, and no thread waits
                        server     a thread of its own takes what has come, up to a batch, and computes it in one go
    client <── answer ─ server     each future is completed with its row

The same requests are made once without batches and once with them. Every answer is compared with the model's own,
requests that clients have given up are left out of the batch, and a row that the model cannot take is an error of its
call.

Exits 0 if all answers were right and batches were faster.
"""

from __future__ import annotations

import argparse
import queue
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
import torchwire
from torch import Tensor, nn

WIDTH = 1024


def make_model() -> nn.Module:
    torch.manual_seed(0)  # clients make the same one to check the answers
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))


class Request:
    """A row that waits for its turn, the future of its answer, and whether anybody still wants it."""

    def __init__(self, row: Tensor) -> None:
        self.row = row
        self.answer: torch.futures.Future[Tensor] = torch.futures.Future()
        self._call = torchwire.current_call()

    @property
    def is_wanted(self) -> bool:
        return not self._call.cancelled


class Server:
    """Computes batches of at most `batch_size` rows. It lives on the server; clients hold an RRef to it."""

    def __init__(self, batch_size: int) -> None:
        self._model = make_model()
        self._batch_size = batch_size
        self._waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._batches: list[int] = []
        threading.Thread(target=self._compute, daemon=True).start()

    def enqueue(self, row: Tensor) -> torch.futures.Future[Tensor]:
        request = Request(row)
        self._waiting.put(request)
        return request.answer.then(lambda answer: answer.value())  # raises: an exception would be the call's result

    def batches(self) -> list[int]:
        """The size of each batch until now."""
        return self._batches

    def _compute(self) -> None:
        while True:
            requests = [self._waiting.get()]
            while len(requests) < self._batch_size and not self._waiting.empty():
                requests.append(self._waiting.get())
            wanted = [request for request in requests if request.is_wanted]
            for request in set(requests) - set(wanted):
                request.answer.set_exception(  # nobody hears it, but the call is over
                    RuntimeError("given up")  # pyright: ignore[reportArgumentType]: torch names a wrong type
                )
            if wanted:
                self._answer(wanted)

    def _answer(self, requests: list[Request]) -> None:
        self._batches.append(len(requests))
        try:
            with torch.no_grad():
                answers = self._model(torch.stack([request.row for request in requests]))
        except Exception as error:  # a bad row fails its batch, and not the server
            for request in requests:
                request.answer.set_exception(error)  # pyright: ignore[reportArgumentType]
            return
        for request, answer in zip(requests, answers):
            request.answer.set_result(answer.clone())  # a row alone: a view would send the whole batch's memory


@rpc.functions.async_execution
def predict(server: rpc.RRef[Server], row: Tensor) -> torch.futures.Future[Tensor]:
    return server.local_value().enqueue(row)


def ask(server: rpc.RRef[Server], client: int, threads: int, requests: int) -> float:
    """What a client does: on each of its threads, one request after the other. Returns the largest error."""
    model = make_model()

    def converse(thread: int) -> float:
        generator = torch.Generator().manual_seed(1000 * client + thread)
        rows = torch.randn(requests, WIDTH, generator=generator)
        answers = [rpc.rpc_sync(server.owner(), predict, args=(server, row)) for row in rows]
        with torch.no_grad():
            return (torch.stack(answers) - model(rows)).abs().max().item()

    with ThreadPoolExecutor(threads) as pool:
        return max(pool.map(converse, range(threads)))


def measure(clients: list[str], batch_size: int, threads: int, requests: int) -> tuple[float, float, float]:
    """Requests a second, mean size of a batch, and largest error."""
    server = rpc.remote("server", Server, args=(batch_size,))
    server.rpc_sync().batches()  # until it is there
    started = time.perf_counter()
    errors = torch.futures.wait_all(
        [rpc.rpc_async(client, ask, args=(server, i, threads, requests)) for i, client in enumerate(clients)]
    )
    seconds = time.perf_counter() - started
    batches = server.rpc_sync().batches()
    return sum(batches) / seconds, sum(batches) / len(batches), max(errors)


def give_one_up() -> bool:
    """Whether a request that is given up while others are computed is left out."""
    server = rpc.remote("server", Server, args=(1,))
    rows = torch.randn(50, WIDTH)
    calls = [rpc.rpc_async("server", predict, args=(server, row)) for row in rows]
    torchwire.cancel(calls[-1])  # some 50 batches are computed before its turn
    torch.futures.wait_all(calls[:-1])
    return len(server.rpc_sync().batches()) == len(rows) - 1


def send_a_bad_row() -> bool:
    """Whether its call raises what the model says of it."""
    server = rpc.remote("server", Server, args=(1,))
    try:
        rpc.rpc_sync("server", predict, args=(server, torch.randn(3)))
    except RuntimeError as error:
        return "shapes cannot be multiplied" in str(error)
    return False


def drive(clients: list[str], batch_size: int, threads: int, requests: int) -> bool:
    rate_alone, _, error_alone = measure(clients, 1, threads, requests)
    rate, mean, error = measure(clients, batch_size, threads, requests)
    left_out, raised = give_one_up(), send_a_bad_row()
    print(
        f"result: {rate_alone:.0f} -> {rate:.0f} requests/s with batches of {mean:.1f} on average, "
        f"largest error {max(error_alone, error):.1e}, given up: {'left out' if left_out else 'computed'}, "
        f"bad row: {'raised' if raised else 'not raised'}"
    )
    return rate > rate_alone and mean > 1 and max(error_alone, error) < 1e-4 and left_out and raised


def run_worker(rank: int, store: str, clients: int, batch_size: int, threads: int, requests: int) -> None:
    torch.set_num_threads(1)  # all processes share the cores
    names = ["driver", "server", *(f"client{i}" for i in range(clients))]
    rpc.init_rpc(
        names[rank],
        backend=rpc.BackendType.TORCHWIRE,  # pyright: ignore[reportAttributeAccessIssue]
        rank=rank,
        world_size=len(names),
        rpc_backend_options=torchwire.TorchwireRpcBackendOptions(init_method=store),
    )
    enough = drive(names[2:], batch_size, threads, requests) if rank == 0 else True
    rpc.shutdown()  # waits until nobody needs this worker any more
    if not enough:
        sys.exit("answers were wrong, or batches no faster")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=2, help="processes; default: %(default)s")
    parser.add_argument("--threads", type=int, default=8, help="of a client; default: %(default)s")
    parser.add_argument("--requests", type=int, default=40, help="of a thread; default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=16, help="at most; default: %(default)s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(
            run_worker,
            (f"file://{folder}/store", args.clients, args.batch_size, args.threads, args.requests),
            nprocs=2 + args.clients,
        )


if __name__ == "__main__":
    main()
