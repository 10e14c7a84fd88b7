"""Groups on FAULTY_TORCHWIRE whose workers a test drives; see group.py. And what such workers run."""

import contextlib
import multiprocessing

import torch
import torch.distributed.rpc as rpc
import torchwire.testing as faults
from group import Group, file_in


@contextlib.contextmanager
def running(size, folder, environment=None, **options):
    """A static group that meets in a file below `folder`; `options` are those of FAULTY_TORCHWIRE."""
    with Group(size, environment) as group:
        group.all(init, file_in(folder), world_size=size, **options)
        yield group
        group.all(shut_down)


def init(init_method, name=None, rank=None, world_size=None, **options):
    """Runs in a worker: init_rpc on FAULTY_TORCHWIRE. Name and rank are those of the process, unless given."""
    if name is None:
        name = multiprocessing.current_process().name
    rpc.init_rpc(
        name,
        backend=rpc.BackendType.FAULTY_TORCHWIRE,
        rank=int(name.removeprefix("worker")) if rank is None else rank,
        world_size=world_size,
        rpc_backend_options=faults.FaultyTorchwireRpcBackendOptions(init_method=init_method, **options),
    )


def shut_down():
    """Gracefully, and without faults."""
    faults.control.end_faults_here()
    rpc.shutdown()


def add(to, timeout=10):
    """Has `to` add something up. A SCRIPT_CALL."""
    return rpc.rpc_sync(to, torch.add, (torch.ones(1), 1), timeout=timeout).item()


def outcomes(to, count, timeout=10):
    """For each of `count` calls, one after the other, whether it worked."""
    return [_works(to, timeout) for _ in range(count)]


def _works(to, timeout):
    try:
        add(to, timeout)
    except RuntimeError:
        return False
    return True
