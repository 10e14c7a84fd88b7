"""Uses RRefs and distributed autograd in all ways that the tripwire knows of: python tripwire_control.py BACKEND FOLDER

Three workers, which meet in a file in the folder. What they call of libtorch is for the tripwire to tell.
"""

import multiprocessing
import sys

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc

WORKERS = 3


def doubled(tensor):
    return tensor * 2


def fetched(rref):
    return rref.to_here()


@torch.jit.script
def scripted(tensor):
    return tensor + tensor


@torch.jit.script
def scripted_backward(context_id: int, loss: torch.Tensor):
    dist_autograd.backward(context_id, [loss])


def use_rrefs():
    ones = torch.ones(2)
    made = [
        rpc.remote("worker1", torch.add, (ones, 1)),
        rpc.remote("worker1", scripted, (ones,)),
        rpc.remote("worker1", doubled, (ones,)),
        rpc.remote("worker0", doubled, (ones,)),
    ]
    for rref in made:
        rref.to_here()
        rpc.rpc_sync("worker2", fetched, (rref,))  # a user tells another
    rpc.rpc_sync("worker1", fetched, (rpc.RRef(ones),))  # an owner tells a user


def run_passes():
    a = torch.ones(2, requires_grad=True)
    with dist_autograd.context() as context:
        loss = rpc.rpc_sync("worker1", doubled, (a,)).sum()
        dist_autograd.backward(context, [loss], retain_graph=True)
        scripted_backward(context, loss)


def run_passes_from_rrefs():
    a = torch.ones((), requires_grad=True)
    with dist_autograd.context() as context:
        rpc.remote("worker1", doubled, (a,)).backward(context)
    with dist_autograd.context() as context:
        rpc.RRef(rpc.rpc_sync("worker1", doubled, (a,))).backward(context)


def profile():
    with torch.autograd.profiler_legacy.profile():  # the one that knows of RPC
        rpc.rpc_sync("worker1", torch.add, (torch.ones(2), 1))


def work(rank, backend, folder):
    if backend == "TORCHWIRE":
        import torchwire  # noqa: F401 - registers the backend
    member = rpc.backend_registry.BackendType[backend]
    options = rpc.backend_registry.construct_rpc_backend_options(member, init_method=f"file://{folder}/store")
    rpc.init_rpc(f"worker{rank}", backend=member, rank=rank, world_size=WORKERS, rpc_backend_options=options)
    if rank == 0:
        use_rrefs()
        run_passes()
        run_passes_from_rrefs()
        profile()
    rpc.shutdown()  # all RRefs are gone by then


def main():
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(rank, *sys.argv[1:])) for rank in range(WORKERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return max(abs(process.exitcode) for process in processes)


if __name__ == "__main__":
    sys.exit(main())
