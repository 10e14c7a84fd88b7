"""A program of two workers, of which worker0 forks a child that ends as a main program does, with all that runs then.

usage: forking_program.py FOLDER TRANSPORT HOW [worker1]

Prints the child's status, and how worker1 sees worker0 afterwards.
"""

import atexit
import os
import subprocess
import sys

import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire


def main():
    folder, transport, how = sys.argv[1:4]
    rank = len(sys.argv) - 4
    if how == "atexit":
        atexit.register(rpc.shutdown)
    if rank == 0:
        other = subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "worker1"])
    options = torchwire.TorchwireRpcBackendOptions(init_method=f"file://{folder}/store", _transports=[transport])
    rpc.init_rpc(
        f"worker{rank}",
        backend=rpc.BackendType.TORCHWIRE,
        rank=rank,
        world_size=2,
        rpc_backend_options=options,
    )
    if rank == 0:
        kept = rpc.remote("worker1", list)
        kept.to_here()
        child = os.fork()
        if child == 0:
            end_child(how)
            return
        _, status = os.waitpid(child, 0)
        print(status, rpc.rpc_sync("worker1", state_of_worker0), kept.to_here(), flush=True)
        del kept
    if how != "atexit":
        rpc.shutdown()
    if rank == 0 and how != "atexit":
        assert other.wait() == 0


def end_child(how):
    if how == "shutdown":
        rpc.shutdown()
    elif how == "shutdown, not graceful":
        rpc.shutdown(graceful=False)
    elif how == "context":
        with dist_autograd.context():
            pass


def state_of_worker0():
    return next(peer["state"] for peer in torchwire.peers() if peer["name"] == "worker0")


if __name__ == "__main__":
    main()
