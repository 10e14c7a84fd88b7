"""A shutdown that waits for nobody, while the other workers go on with RRefs of this one."""

import time

import pytest
import torch
import torch.distributed.rpc as rpc
from group import Group, file_in, init
from processes import LIMIT, WorkerError, wait_until
from repetition import Repetition, begin, count
from rref_counts import counts

# So many that libtorch takes tens of milliseconds to list them.
KEPT = 3000


class Holder(Repetition):
    """Keeps many RRefs owned by another worker, and creates and drops more of them until that fails."""

    def __init__(self, owner):
        super().__init__()
        self._owner = owner
        self._kept = [self._create() for _ in range(KEPT)]

    def _create(self):
        return rpc.remote(self._owner, torch.add, args=(torch.ones(1), 1))

    def step(self):
        for rref in [self._create() for _ in range(20)]:
            rref.to_here()


def test_a_worker_leaves_while_others_create_and_drop_rrefs_of_its(tmp_path):
    # libtorch's RRefContext lists what is left without its lock.
    with Group(3) as group:
        group.init(file_in(tmp_path))
        leaver, *others = group
        for worker in others:
            worker.run(begin, Holder, leaver.name)
        wait_until(lambda: min(worker.run(count) for worker in others) >= 2)
        leaver.run(rpc.shutdown, graceful=False)
        for worker in others:
            worker.run(rpc.shutdown, graceful=False)


HELD = []


def hold_one_of(owner):
    HELD.append(rpc.remote(owner, torch.add, args=(torch.ones(1), 1)))
    HELD[0].to_here()


def use_held():
    HELD[0].to_here()


def test_a_worker_leaves_a_dynamic_group_whatever_the_others_hold(tmp_path):
    with Group(2) as group:
        holder, leaver = group
        for worker in group:
            worker.run(init, file_in(tmp_path))
        holder.run(hold_one_of, leaver.name)
        leaver.run(hold_one_of, holder.name)
        begun = time.monotonic()
        leaver.run(rpc.shutdown)
        assert time.monotonic() - begun < LIMIT / 4
        with pytest.raises(WorkerError, match="has left the RPC group"):
            holder.run(use_held)
        wait_until(lambda: holder.run(counts)["owners"] == 0)  # what the leaver held
        holder.run(rpc.shutdown)
