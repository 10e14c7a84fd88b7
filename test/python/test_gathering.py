"""PyTorch's _all_gather and _barrier in dynamic groups: over the present members, and over those that are named."""

import concurrent.futures
import logging
import threading

import pytest
import torch
import torch.distributed.rpc as rpc
from group import file_in, init, results
from processes import WorkerError, WorkerProcess, close_all, wait_until
from torch.distributed.rpc import api
from torchwire import gathering

LIMIT = 20  # seconds


class Members:
    """Workers of a dynamic group by rank, each a process."""

    def __init__(self, init_method):
        self._init_method = init_method
        self._ended = []
        self.workers = {}

    def join(self, *ranks):
        for rank in ranks:
            self.workers[rank] = WorkerProcess(f"worker{rank}")
            self.workers[rank].run(init, self._init_method)

    def start(self, ranks, function, *args):
        return [self.workers[rank].start(function, *args) for rank in ranks]

    def all(self, function, *args):
        return results(self.start(self.workers, function, *args))

    def begin(self, ranks, function, *args):
        """Has them run the function on a thread, so that they can run others meanwhile."""
        for rank in ranks:
            self.workers[rank].run(begin, function, *args)

    def ends(self, *ranks):
        """What the functions return that were begun."""
        return results(self.start(ranks, result))

    def leave(self, rank):
        worker = self.workers.pop(rank)
        worker.run(rpc.shutdown)
        self._ended.append(worker)

    def kill(self, rank):
        worker = self.workers.pop(rank)
        worker.kill()
        self._ended.append(worker)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        everybody = [*self.workers.values(), *self._ended]
        try:
            if kind is None:
                results([worker.start(rpc.shutdown) for worker in self.workers.values()])
            else:
                for worker in everybody:
                    worker.show_output()
        finally:
            for worker in self.workers.values():
                worker.kill()
            close_all(everybody)


@pytest.fixture
def members(tmp_path):
    with Members(file_in(tmp_path)) as group:
        yield group


# ---- what the workers run ----

_begun = []


def begin(function, *args):
    executor = concurrent.futures.ThreadPoolExecutor(1)
    _begun.append(executor.submit(function, *args))
    executor.shutdown(wait=False)


def result():
    return _begun.pop().result(LIMIT)


def gather(names=None, timeout=None):
    me = rpc.get_worker_info().name
    given = {} if timeout is None else {"timeout": timeout}
    found = api._all_gather((me, torch.ones(2)), names, **given)
    assert all(tensor.tolist() == [1, 1] for _, tensor in found.values())
    return {name: value for name, (value, _) in found.items()}


def gather_often(times):
    for number in range(times):
        found = api._all_gather(number)
        assert set(found.values()) == {number}
    return len(found)


def gather_on_threads(names):
    """Twice at the same time; each finds one of the two of every other worker."""
    found = []
    threads = [threading.Thread(target=lambda: found.append(gather(names))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    return found


def barrier(names):
    """What it logs."""
    logged = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(str(record.exc_info[1]))
    api.logger.addHandler(handler)
    try:
        api._barrier(names)
    finally:
        api.logger.removeHandler(handler)
    return logged


def waiting():
    """Who waits in the rounds that this worker gathers."""
    return [sorted(each.objects) for each in gathering._Leader.current._rounds]


def expected(*ranks):
    return {f"worker{rank}": f"worker{rank}" for rank in ranks}


def failure(members, rank, function=None, *args):
    with pytest.raises(WorkerError) as error:
        members.workers[rank].run(function or result, *args)
    return str(error.value)


def wait_for(members, leader, *rounds):
    wait_until(lambda: sorted(members.workers[leader].run(waiting)) == sorted(list(each) for each in rounds))


# ---- tests ----


def test_the_present_members_gather_whoever_came_first(members):
    members.join(0, 1, 2)
    assert members.all(gather) == [expected(0, 1, 2)] * 3
    members.join(3)
    assert members.all(gather) == [expected(0, 1, 2, 3)] * 4
    members.leave(0)
    assert members.all(gather) == [expected(1, 2, 3)] * 3
    members.join(0)
    assert members.all(gather) == [expected(0, 1, 2, 3)] * 4
    assert members.all(gather_often, 20) == [4] * 4


def test_those_that_are_named_gather(members):
    members.join(0, 1, 2)
    names = {"worker1", "worker2"}
    for _ in range(3):
        assert results(members.start([1, 2], gather, names)) == [expected(1, 2)] * 2
    members.join(3)
    assert results(members.start([1, 3], gather, ["worker3", "worker1"])) == [expected(1, 3)] * 2
    assert results(members.start([1, 3], barrier, ["worker3", "worker1"])) == [[], []]
    assert results(members.start([1, 2], gather_on_threads, names)) == [[expected(1, 2)] * 2] * 2


def test_one_alone_gathers(members):
    members.join(0)
    assert members.all(gather) == [expected(0)]
    assert members.workers[0].run(barrier, ["worker0"]) == []


def test_one_that_waits_waits_for_one_that_joins_meanwhile(members):
    members.join(1, 2)
    members.begin([1], gather)
    wait_for(members, 1, ["worker1"])
    members.join(0)  # which leads from now on
    wait_for(members, 0, ["worker1"])
    members.begin([2, 0], gather)
    assert members.ends(0, 1, 2) == [expected(0, 1, 2)] * 3


@pytest.mark.parametrize("names", [None, ["worker0", "worker1", "worker2"]], ids=["present", "named"])
@pytest.mark.parametrize("way", ["kill", "leave"])
def test_one_that_goes_ends_the_wait_of_all(members, way, names):
    members.join(0, 1, 2)
    members.begin([0, 1], gather, names)
    wait_for(members, 0, ["worker0", "worker1"])
    getattr(members, way)(2)
    for rank in (0, 1):
        text = failure(members, rank)
        assert "_all_gather of workers 'worker0', 'worker1', 'worker2' has failed" in text and "'worker2'" in text
    assert members.all(gather) == [expected(0, 1)] * 2


@pytest.mark.parametrize("way", ["kill", "leave"])
def test_a_leader_that_goes_ends_the_wait_of_all(members, way):
    members.join(0, 1, 2)
    members.begin([1, 2], gather)
    wait_for(members, 0, ["worker1", "worker2"])
    getattr(members, way)(0)
    for rank in (1, 2):
        assert "worker 'worker0', which gathers what all others send, has gone" in failure(members, rank)
    assert members.all(gather) == [expected(1, 2)] * 2


def test_one_that_was_named_may_die_once_it_has_sent_its_part(members):
    members.join(0, 1, 2)
    names = ["worker0", "worker1", "worker2"]
    members.begin([0, 2], gather, names)
    wait_for(members, 0, ["worker0", "worker2"])
    members.kill(2)
    members.begin([1], gather, names)
    assert members.ends(0, 1) == [expected(0, 1, 2)] * 2


def test_among_the_present_members_one_may_not(members):
    members.join(0, 1, 2)
    members.begin([0, 2], gather)
    wait_for(members, 0, ["worker0", "worker2"])
    members.kill(2)
    assert "worker 'worker2' has gone" in failure(members, 0)
    assert members.all(gather) == [expected(0, 1)] * 2


def test_a_barrier_logs_who_has_gone(members):
    members.join(0, 1)
    members.begin([0], barrier, ["worker0", "worker1"])
    wait_for(members, 0, ["worker0"])
    members.kill(1)
    [[text]] = members.ends(0)
    assert "has failed: worker 'worker1' has gone" in text


def test_a_time_out_says_for_whom(members):
    members.join(0, 1, 2)
    text = failure(members, 1, gather, None, 0.5)
    assert "has timed out: nothing has come from 'worker0', 'worker2'" in text
    assert members.workers[0].run(waiting) == []
    assert members.all(gather) == [expected(0, 1, 2)] * 3


def test_names_that_are_not_there(members):
    members.join(0, 1)
    assert "'worker7' is not in the group" in failure(members, 0, gather, ["worker0", "worker7"])
    assert "'a' is not in the group" in failure(members, 0, gather, ["a", "worker0"])
    text = failure(members, 0, gather, ["worker1"])
    assert "worker 'worker0' is not one of those that are to gather: 'worker1'" in text
    assert members.all(gather) == [expected(0, 1)] * 2
