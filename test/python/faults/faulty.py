"""Groups on FAULTY_TORCHWIRE whose workers a test drives; see group.py. And what such workers run."""

import contextlib
import functools
import itertools

import group
import torch
import torch.distributed.rpc as rpc
import torchwire.testing as faults
from group import Group, file_in
from processes import wait_until


@contextlib.contextmanager
def running(size, folder, environment=None, **options):
    """A static group that meets in a file below `folder`; `options` are those of FAULTY_TORCHWIRE."""
    with Group(size, environment) as workers:
        workers.all(init, file_in(folder), world_size=size, **options)
        yield workers
        settle(workers)
        workers.all(shut_down)


def init(*args, **options):
    """As group.init, on FAULTY_TORCHWIRE."""
    group.init(*args, backend="FAULTY_TORCHWIRE", options_class=faults.FaultyTorchwireRpcBackendOptions, **options)


def shut_down():
    """Gracefully, and without faults."""
    faults.control.end_faults_here()
    rpc.shutdown()


def settle(workers):
    """Ends the faults of all, and waits until everyone can call everyone.

    Whose link a fault has broken learns of it a little later than the one who broke it, and a call that it makes until
    then fails. A graceful shutdown is made of such calls: where one fails, its caller's shutdown does and the others'
    wait for a minute.
    """
    workers.all(faults.control.end_faults_here)
    for caller, callee in itertools.permutations(workers, 2):
        wait_until(functools.partial(_reaches, caller, callee))


def _reaches(caller, callee):
    return caller.run(outcomes, callee.name, 1) == [True]


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
