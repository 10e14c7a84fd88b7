"""What a worker has of RRefs."""

import torch.distributed.rpc as rpc
from processes import wait_until


def counts():
    return rpc._get_current_rpc_agent().rref_counts()


def wait_until_none_is_left(group):
    wait_until(lambda: not any(any(worker.run(counts).values()) for worker in group))
