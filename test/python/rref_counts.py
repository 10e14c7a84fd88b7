"""What a worker has of RRefs."""

import gc

import torch.distributed.rpc as rpc
import torchwire
from processes import wait_until


def counts():
    return rpc._get_current_rpc_agent().rref_counts()


def what_is_left():
    return counts(), torchwire.rrefs()


def wait_until_none_is_left(group, collects=False):
    """`collects`: after an error, which is in its own traceback if it is raised anew, with the RRefs of its frames."""

    def none_is_left():
        if collects:
            for worker in group:
                worker.run(gc.collect)
        return not any(any(worker.run(counts).values()) for worker in group)

    try:
        wait_until(none_is_left)
    except BaseException:
        for worker in group:
            print(worker.name, *worker.run(what_is_left))
        raise
