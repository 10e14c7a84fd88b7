"""What a worker has of RRefs."""

import torch.distributed.rpc as rpc
import torchwire
from processes import wait_until


def counts():
    return rpc._get_current_rpc_agent().rref_counts()


def what_is_left():
    return counts(), torchwire.rrefs()


def wait_until_none_is_left(group):
    try:
        wait_until(lambda: not any(any(worker.run(counts).values()) for worker in group))
    except BaseException:
        for worker in group:
            print(worker.name, *worker.run(what_is_left))
        raise
