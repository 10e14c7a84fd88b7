"""A worker of a dynamic group that has died comes back: another process under its name and rank."""

import collections
import threading
import time

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in, init
from processes import WorkerError, WorkerProcess, close_all, wait_until
from rref_counts import counts

# ---- what the workers run ----

_kept = []


def answer():
    return 42


def call(to, timeout=10):
    return rpc.rpc_sync(to, answer, timeout=timeout)


def names():
    return sorted(info.name for info in rpc._get_current_rpc_agent().get_worker_infos())


def create_on(owner):
    _kept.append(rpc.remote(owner, answer))
    assert _kept[-1].to_here() == 42
    wait_until(_kept[-1].confirmed_by_owner)  # else its creation may be what fails, by other words


def keep(rref):
    _kept.append(rref)


def hand_on(to):
    """Gives the latest RRef to another worker, which keeps it."""
    rpc.rpc_sync(to, keep, (_kept[-1],))


def drop():
    _kept.clear()


_release = collections.defaultdict(threading.Event)


def wait_for(word):
    _release[word].wait()
    return word


def waiting():
    return list(_release)


def release(word):
    _release[word].set()


def begin_wait_for(to, word):
    _kept.append(rpc.rpc_async(to, wait_for, (word,), timeout=30))


def result_of_wait():
    return _kept[-1].wait()


def fetch():
    """The text and the type of the error, and the seconds that it took."""
    begin = time.monotonic()
    try:
        value = _kept[-1].to_here(timeout=30)
    except RuntimeError as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return value


def own_ids():
    """Of an RRef and of an autograd context that this process makes now."""
    with dist_autograd.context() as context:
        return str(rpc.RRef(1)), context


def info_of(name):
    return rpc.get_worker_info(name)


def keep_info_of(name):
    _kept.append(rpc.get_worker_info(name))


def call_kept():
    return rpc.rpc_sync(_kept[-1], answer, timeout=10)


def train(to):
    with dist_autograd.context() as context:
        tensor = torch.ones(2, requires_grad=True)
        dist_autograd.backward(context, [rpc.rpc_sync(to, torch.mul, (tensor, 3)).sum()])
        return dist_autograd.get_gradients(context)[tensor].tolist()


def is_clean():
    now = counts()
    return now["owners"] == now["forks"] == now["pending_users"] == now["pending_children"] == 0


def contexts():
    return torchwire.autograd_contexts()


# ---- a group ----


class Restarting:
    """A dynamic group of worker0, worker1 ..., of which each can be killed and started again."""

    def __init__(self, size, init_method):
        self._init_method = init_method
        self._ended = []
        self.workers = [WorkerProcess(f"worker{rank}") for rank in range(size)]
        for worker in self.workers:
            worker.run(init, init_method)

    def __getitem__(self, rank):
        return self.workers[rank]

    def kill(self, rank):
        self.workers[rank].kill()
        self._ended.append(self.workers[rank])

    def start(self, rank):
        self.workers[rank] = WorkerProcess(f"worker{rank}")
        self.workers[rank].run(init, self._init_method)
        return self.workers[rank]

    def restart(self, rank):
        self.kill(rank)
        return self.start(rank)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                for pending in [worker.start(rpc.shutdown) for worker in self.workers]:
                    pending.result()
            else:
                for worker in [*self.workers, *self._ended]:
                    worker.show_output()
        finally:
            for worker in self.workers:
                worker.kill()
            close_all([*self.workers, *self._ended])


@pytest.fixture
def trio(tmp_path):
    with Restarting(3, file_in(tmp_path)) as group:
        yield group


def test_answers_to_the_former_process_are_not_taken_for_answers_to_the_new_one(trio):
    trio[1].run(begin_wait_for, "worker0", "former")
    wait_until(lambda: trio[0].run(waiting) == ["former"])
    trio.restart(1)
    trio[1].run(begin_wait_for, "worker0", "new")
    wait_until(lambda: trio[0].run(waiting) == ["former", "new"])
    trio[0].run(release, "former")
    assert trio[1].run(call, "worker0") == 42  # behind that answer
    trio[0].run(release, "new")
    assert trio[1].run(result_of_wait) == "new"


def test_calls_go_on_with_a_worker_that_has_come_back(trio):
    for caller in (0, 2):
        assert trio[caller].run(call, "worker1") == 42
        trio[caller].run(keep_info_of, "worker1")
    trio.restart(1)
    for caller in (0, 2):
        assert trio[caller].run(call, "worker1") == 42
        assert trio[caller].run(call_kept) == 42  # by the WorkerInfo of before
        assert trio[1].run(call, f"worker{caller}") == 42
        assert trio[caller].run(names) == ["worker0", "worker1", "worker2"]
    assert trio[1].run(names) == ["worker0", "worker1", "worker2"]
    assert trio[0].run(train, "worker1") == [3.0, 3.0]


def test_the_first_worker_comes_back_too(trio):
    trio.restart(0)
    trio.restart(2)
    for caller in range(3):
        for callee in range(3):
            assert trio[caller].run(call, f"worker{callee}") == 42


def test_a_worker_comes_back_when_all_others_have_died_too(trio):
    for rank in range(3):
        trio.kill(rank)
    trio.start(1)
    assert trio[1].run(names) == ["worker1"]
    trio.start(0)
    trio.start(2)
    assert trio[0].run(call, "worker1") == trio[2].run(call, "worker0") == 42
    assert trio[1].run(names) == ["worker0", "worker1", "worker2"]


def test_another_may_have_the_name_of_the_dead_or_its_rank(trio):
    trio.kill(1)
    trio.workers[1] = WorkerProcess("another")
    trio[1].run(init, trio._init_method, name="another", rank=1)
    assert trio[0].run(call, "another") == 42
    assert "another" in trio[2].run(names)
    trio.kill(2)
    trio.workers[2] = WorkerProcess("worker2")
    trio[2].run(init, trio._init_method, name="worker2", rank=7)
    assert trio[0].run(call, "worker2") == trio[1].run(call, "worker2") == 42
    assert trio[0].run(info_of, "worker2").id == 7


def test_one_that_lives_keeps_its_name(trio):
    with Group(1) as outside, pytest.raises(WorkerError, match="rank 1 is not unique"):
        outside[0].run(init, trio._init_method, name="worker1", rank=1)
    assert trio[0].run(call, "worker1") == 42


def test_nothing_of_the_former_process_is_left_and_nothing_of_the_new_one_is_lost(trio):
    for _ in range(3):
        trio[1].run(create_on, "worker0")
        trio.restart(1)
        trio[1].run(create_on, "worker0")  # survives what the former process's death takes along
        assert trio[0].run(counts)["owners"] == 1
        assert trio[1].run(fetch) == 42
        trio[1].run(drop)
        wait_until(lambda: trio[0].run(is_clean))
    assert trio[0].run(contexts) == []


def test_an_rref_that_others_still_use_is_not_taken_for_one_of_the_new_process(trio):
    trio[1].run(create_on, "worker0")
    trio[1].run(hand_on, "worker2")
    wait_until(lambda: trio[0].run(counts)["forks"] == 2)
    trio.restart(1)
    for _ in range(3):
        trio[1].run(create_on, "worker0")
    wait_until(lambda: trio[0].run(counts)["owners"] == 4)
    trio[1].run(drop)
    wait_until(lambda: trio[0].run(counts)["owners"] == 1)
    assert trio[2].run(fetch) == 42
    trio[2].run(drop)
    wait_until(lambda: trio[0].run(is_clean))


def test_the_ids_of_a_process_are_not_those_of_its_former_one(trio):
    rref, context = trio[1].run(own_ids)
    trio.restart(1)
    another_rref, another_context = trio[1].run(own_ids)
    assert rref != another_rref
    assert rref.startswith("OwnerRRef(GloballyUniqueId(created_on=1, local_id=")
    assert context != another_context
    assert context >> 48 == another_context >> 48 == 1


def test_an_rref_whose_owner_has_come_back_fails_at_once(trio):
    trio[0].run(create_on, "worker1")
    trio.restart(1)
    for _ in range(2):
        kind, text, seconds = trio[0].run(fetch)
        assert kind == "WorkerDied"
        assert "worker 'worker1' (rank 1) is another process than the RRef's owner, which has died" in text
        assert seconds < 5
    trio[0].run(drop)
    trio[0].run(create_on, "worker1")
    assert trio[0].run(fetch) == 42
    trio[0].run(drop)
    wait_until(lambda: trio[1].run(is_clean) and trio[0].run(is_clean))


def test_a_worker_dies_again_and_again(trio):
    for _ in range(5):
        trio.restart(1)
        assert trio[0].run(call, "worker1") == trio[1].run(call, "worker2") == 42
    assert trio[0].output().count("has died") == 5


def calls_until(to, seconds):
    """How many of the calls have worked, and the kinds of errors of the others."""
    end = time.monotonic() + seconds
    done, kinds = 0, set()
    while time.monotonic() < end:
        try:
            done += rpc.rpc_sync(to, answer, timeout=10) == 42
        except RuntimeError as error:
            kinds.add(type(error).__name__)
            time.sleep(0.01)
    return done, kinds


def test_calls_made_all_the_while_fail_only_because_the_worker_has_died(trio):
    pending = [trio[caller].start(calls_until, "worker1", 4.0) for caller in (0, 2)]
    for _ in range(3):
        trio.restart(1)
    for one in pending:
        done, kinds = one.result()
        assert done > 0
        assert kinds <= {"WorkerDied"}
    assert trio[0].run(call, "worker1") == trio[2].run(call, "worker1") == 42
