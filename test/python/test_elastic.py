"""Static groups with elastic=True: workers that have died are replaced, and others join."""

import pytest
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in, init
from processes import WorkerError, WorkerProcess, wait_until
from test_coming_back import Restarting, call, contexts, create_on, drop, fetch, names, train


class Elastic(Restarting):
    """Begins with `size` workers; the last added need not be among them."""

    def __init__(self, size, init_method):
        self._size = size
        self._init_method = init_method
        self._ended = []
        self.workers = [WorkerProcess(f"worker{rank}") for rank in range(size)]
        for pending in [self._begin(worker, rank) for rank, worker in enumerate(self.workers)]:
            pending.result()

    def _begin(self, worker, rank):
        return worker.start(init, self._init_method, rank=rank, world_size=self._size, elastic=True)

    def start(self, rank):
        self.workers[rank] = WorkerProcess(f"worker{rank}")
        self._begin(self.workers[rank], rank).result()
        return self.workers[rank]

    def grow(self):
        self.workers.append(WorkerProcess(f"worker{len(self.workers)}"))
        self._begin(self.workers[-1], len(self.workers) - 1).result()


@pytest.fixture
def trio(tmp_path):
    with Elastic(3, file_in(tmp_path)) as group:
        yield group


def lost_and_joined():
    return list(_events)


_events = []


def watch():
    torchwire.on_worker_lost(lambda worker, error: _events.append(("lost", worker.name, type(error).__name__)))
    torchwire.on_worker_joined(lambda worker: _events.append(("joined", worker.name)))


def test_a_worker_is_replaced_and_the_group_shuts_down_as_a_whole(trio):
    trio[0].run(watch)
    for rank in (1, 2, 1):
        trio.restart(rank)
        for caller in range(3):
            for callee in range(3):
                assert trio[caller].run(call, f"worker{callee}") == 42
    wait_until(lambda: len(trio[0].run(lost_and_joined)) == 6)
    for lost, joined in zip(trio[0].run(lost_and_joined)[::2], trio[0].run(lost_and_joined)[1::2], strict=True):
        assert (lost[0], lost[2], joined[0]) == ("lost", "WorkerDied", "joined") and lost[1] == joined[1]
    assert trio[0].run(train, "worker1") == [3.0, 3.0]
    assert trio[0].run(contexts) == []


def test_the_group_grows(trio):
    trio.grow()
    trio.grow()
    assert trio[4].run(names) == [f"worker{rank}" for rank in range(5)]
    for caller in range(5):
        assert trio[caller].run(call, "worker3") == 42
    trio[4].run(create_on, "worker0")
    assert trio[4].run(fetch) == 42
    trio[4].run(drop)


def test_without_replacement_the_survivors_go_on_and_shut_down(trio):
    trio.kill(2)
    assert trio[0].run(call, "worker1") == 42
    del trio.workers[2]


def test_a_living_worker_is_not_replaced(trio):
    with Group(1) as outside, pytest.raises(WorkerError, match="rank 1 is not unique"):
        outside[0].run(init, trio._init_method, name="worker1", rank=1, world_size=3, elastic=True)
    assert trio[0].run(call, "worker1") == 42


def test_all_workers_have_to_be_elastic(tmp_path):
    with Group(2) as group:
        pending = [
            group[rank].start(init, file_in(tmp_path), world_size=2, rank=rank, elastic=rank == 0) for rank in range(2)
        ]
        for one in pending:
            with pytest.raises(WorkerError, match="give all workers the same `elastic`"):
                one.result()


def test_nobody_joins_a_group_that_shuts_down(tmp_path):
    with Elastic(2, file_in(tmp_path)) as group, Group(1) as outside:
        shutdowns = [worker.start(rpc.shutdown) for worker in group.workers]
        for one in shutdowns:
            one.result()
        group.workers.clear()
        with pytest.raises(WorkerError, match="comes too late: the RPC group shuts down"):
            outside[0].run(init, file_in(tmp_path), name="worker2", rank=2, world_size=2, elastic=True)
