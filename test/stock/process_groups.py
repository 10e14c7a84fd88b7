"""Keeps every process group that a test makes until its process ends.

DistributedDataParallel drops its group while holding the GIL. When that is the last reference to
a Gloo group, its destructor joins a thread that may itself wait for the GIL, to free a tensor of
the all-reduce just done: the rank hangs (pytorch#56297). That race is c10d's; the RPC backend
only changes how often it is lost (one run in four of test_ddp_comparison_uneven_inputs on
TENSORPIPE over uv).
"""

import functools

import torch.distributed as dist

_KEPT = []


def _keeping(make):
    @functools.wraps(make)
    def wrapper(*args, **kwargs):
        group = make(*args, **kwargs)
        _KEPT.append(dist.group.WORLD if group is None else group)
        return group

    return wrapper


def keep():
    """From now on, in this process and those forked from it."""
    dist.init_process_group = _keeping(dist.init_process_group)
    dist.new_group = _keeping(dist.new_group)
