"""A shutdown that waits for nobody, while the other workers go on with RRefs of this one."""

import torch
import torch.distributed.rpc as rpc
from group import Group, file_in
from processes import wait_until
from repetition import Repetition, begin, count

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
