"""A job under torchrun, one of whose workers dies in its first attempt. Argument: whether the group is elastic."""

import os
import signal
import sys

import torch
import torch.distributed.rpc as rpc
import torchwire

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def answer(number):
    if attempt == 0 and rank == 1 and number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return number + attempt


if __name__ == "__main__":
    options = torchwire.TorchwireRpcBackendOptions(elastic=sys.argv[1] == "elastic")
    rpc.init_rpc(
        f"worker{rank}",
        backend=rpc.BackendType.TORCHWIRE,
        rank=rank,
        world_size=size,
        rpc_backend_options=options,
    )
    total = torch.zeros(1)
    for number in range(10):
        for to in range(size):
            total += rpc.rpc_sync(f"worker{to}", answer, (number,))
    rpc.shutdown()
    print(f"attempt {attempt}, rank {rank}: {int(total.item())}")
