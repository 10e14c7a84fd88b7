"""Who is in the group: static groups start whole or not at all; dynamic ones are joined and left while they run."""

import random

import pytest
import torch
import torch.distributed.rpc as rpc
from group import Group, HostedStore, errors, file_in, init, results, running
from processes import WorkerError, WorkerProcess, close_all
from torchwire import rendezvous

# ---- what the workers run ----


def names():
    return sorted(info.name for info in rpc.api._get_current_rpc_agent().get_worker_infos())


def my_name():
    return rpc.get_worker_info().name


def call_all(others):
    return [rpc.rpc_sync(name, my_name) for name in others]


def call_all_with_tensors(others):
    """Small and large tensors, so that each pair of workers also sets up its channel."""
    tensors = [torch.ones(10), torch.ones(100_000)]
    futures = [rpc.rpc_async(name, torch.add, (tensor, 1)) for name in others for tensor in tensors]
    return all(bool((future.wait() == 2).all()) for future in futures)


# ---- the rendezvous store ----


def test_a_worker_that_comes_a_moment_before_the_stores_host_does_not_wait_long(monkeypatch):
    pauses = []
    monkeypatch.setattr(rendezvous.time, "sleep", pauses.append)
    monkeypatch.setattr(rendezvous, "_is_listening", lambda url: sum(pauses) > 10)
    rendezvous._await_listener("tcp://127.0.0.1:29500")
    assert pauses[0] <= 0.001
    assert all(later <= 1.5 * earlier for earlier, later in zip(pauses, pauses[1:]))
    assert max(pauses) == 0.2


# ---- static groups ----

MIXED = "RPC group mixes statically and dynamically initialized members which is not supported"


def sentence(error):
    return error.message.partition("\n")[0]


def refused(group, arguments):
    """The sentence with which init_rpc fails on every worker."""
    pending = [worker.start(init, **kwargs) for worker, kwargs in zip(group, arguments)]
    sentences = {sentence(error) for error in errors(pending)}
    assert len(sentences) == 1, sentences
    return sentences.pop()


def test_a_name_that_two_workers_have_is_refused_on_all(tmp_path):
    place = {"init_method": file_in(tmp_path), "world_size": 3}
    with Group(3) as group:
        said = refused(group, [dict(place, rank=rank, name=name) for rank, name in enumerate(["one", "twin", "twin"])])
    assert "worker name 'twin' is not unique: rank" in said and "give every worker its own name" in said


def test_a_rank_that_two_workers_have_is_refused_on_all(tmp_path):
    place = {"init_method": file_in(tmp_path), "world_size": 3}
    with Group(3) as group:
        said = refused(group, [dict(place, rank=rank, name=f"w{i}") for i, rank in enumerate([0, 2, 2])])
    assert said.startswith("rank 2 is not unique: worker 'w")


def test_world_sizes_that_differ_are_refused_on_all(tmp_path):
    with Group(2) as group:
        said = refused(group, [{"init_method": file_in(tmp_path), "world_size": size} for size in (2, 3)])
    assert "world_size=2" in said and "world_size=3" in said and "with the same world_size" in said


def test_a_dynamic_member_is_refused_by_a_static_group(tmp_path):
    with running(2, tmp_path) as group, Group(1) as outside:
        with pytest.raises(WorkerError, match=MIXED):
            outside[0].run(init, file_in(tmp_path), name="late", rank=2)
        assert group[0].run(call_all, ["worker1"]) == ["worker1"]


def test_a_latecomer_to_a_complete_group_is_refused_and_disturbs_nobody(tmp_path):
    with running(2, tmp_path) as group, Group(1) as outside:
        with pytest.raises(WorkerError, match="rank 1 is not unique: worker 'worker1' and worker 'late' both have it"):
            outside[0].run(init, file_in(tmp_path), name="late", rank=1, world_size=2)
        assert group[0].run(call_all, ["worker1"]) == ["worker1"]


def test_after_a_refusal_the_same_processes_start_a_right_group(tmp_path, tmp_path_factory):
    with Group(2) as group:
        arguments = [{"init_method": file_in(tmp_path), "world_size": 2, "name": "twin", "rank": r} for r in (0, 1)]
        assert "'twin' is not unique" in refused(group, arguments)
        # Another file: PyTorch deletes that of a group that ended, perhaps only after somebody has opened it anew.
        group.init(file_in(tmp_path_factory.mktemp("second")))
        assert group.all(names) == [["worker0", "worker1"]] * 2
        group.shut_down()


@pytest.mark.slow
def test_16_workers_start_call_one_another_and_shut_down(tmp_path):
    everybody = [f"worker{rank}" for rank in range(16)]
    with running(16, tmp_path) as group:
        assert group.all(names) == [sorted(everybody)] * 16
        assert all(group.all(call_all_with_tensors, everybody))


# ---- dynamic groups ----


class DynamicGroup:
    """Workers by rank, each a process that starts when it joins and ends when it leaves."""

    def __init__(self, init_method, environment=None):
        self.init_method = init_method
        self.environment = environment
        self.members = {}

    def join(self, *ranks):
        """Lets the workers join at the same time."""
        for rank in ranks:
            self.members[rank] = WorkerProcess(f"worker{rank}", self.environment)
        results([self.members[rank].start(init, self.init_method) for rank in ranks])

    def start_leaving(self, rank):
        return self.members[rank].start(rpc.shutdown)

    def leave(self, *ranks):
        results([self.start_leaving(rank) for rank in ranks])
        close_all([self.members.pop(rank) for rank in ranks])

    def check(self):
        """All members know of each other, and can call each other, right away."""
        expected = [f"worker{rank}" for rank in self.members]
        answers = results([worker.start(names) for worker in self.members.values()])
        assert answers == [sorted(expected)] * len(expected)
        answers = results([worker.start(call_all, expected) for worker in self.members.values()])
        assert answers == [expected] * len(expected)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.leave(*self.members)
            else:
                for worker in self.members.values():
                    worker.show_output()
        finally:
            for worker in self.members.values():
                worker.kill()
            close_all(self.members.values())


@pytest.fixture(params=["file", "tcp"])
def dynamic(request, tmp_path):
    """An empty dynamic group, with a store that belongs to no worker."""
    if request.param == "file":
        group, store = DynamicGroup(file_in(tmp_path)), None
    else:
        store = HostedStore()
        group = DynamicGroup(store.init_method, store.environment)
    with group:
        yield group
    del store


def test_each_that_joins_is_known_to_all_when_its_init_rpc_returns(dynamic):
    for rank in range(4):
        dynamic.join(rank)
        dynamic.check()


def test_workers_that_join_at_the_same_time_find_each_other(dynamic):
    dynamic.join(*range(5))
    dynamic.check()


def test_one_that_leaves_is_unknown_to_all_when_its_shutdown_returns(dynamic):
    dynamic.join(0, 1, 2)
    dynamic.leave(1)
    dynamic.check()
    with pytest.raises(WorkerError, match="could not find destination name worker1.*'worker0', 'worker2'"):
        dynamic.members[0].run(call_all, ["worker1"])


def test_a_worker_joins_again_under_its_old_name(dynamic):
    dynamic.join(0, 1)
    for _ in range(3):
        dynamic.leave(1)
        dynamic.check()
        dynamic.join(1)
        dynamic.check()


def test_rank_0_leaves_first(dynamic):
    dynamic.join(0, 1, 2)
    dynamic.leave(0)
    dynamic.check()
    dynamic.join(3)
    dynamic.leave(1, 2)
    dynamic.join(0)
    dynamic.check()


def test_all_leave_at_the_same_time_and_others_come(dynamic):
    dynamic.join(0, 1, 2)
    dynamic.leave(0, 1, 2)
    dynamic.join(1, 3)
    dynamic.check()


def test_a_name_that_is_taken_is_refused_and_the_group_goes_on(dynamic):
    dynamic.join(0, 1)
    with Group(1, dynamic.environment) as outside:
        with pytest.raises(WorkerError, match="worker name 'worker1' is not unique: rank 1 and rank 5 both have it"):
            outside[0].run(init, dynamic.init_method, name="worker1", rank=5)
    dynamic.check()


def test_a_static_member_is_refused_by_a_dynamic_group(dynamic):
    dynamic.join(0, 1)
    with Group(1, dynamic.environment) as outside, pytest.raises(WorkerError, match=MIXED):
        outside[0].run(init, dynamic.init_method, name="late", rank=2, world_size=3)
    dynamic.check()


def test_workers_leave_while_others_join(dynamic):
    dynamic.join(0, 1, 2, 3)
    leaving = [dynamic.start_leaving(rank) for rank in (1, 2)]
    gone = [dynamic.members.pop(rank) for rank in (1, 2)]
    dynamic.join(4, 5)
    results(leaving)
    close_all(gone)
    dynamic.check()


def test_workers_come_and_go_in_any_order(dynamic):
    order = random.Random(7)
    for _ in range(20):
        present = list(dynamic.members)
        absent = [rank for rank in range(6) if rank not in present]
        if absent and (not present or order.random() < 0.6):
            dynamic.join(order.choice(absent))
        else:
            dynamic.leave(order.choice(present))
        dynamic.check()
