"""torchwire.on_worker_lost and on_worker_joined."""

import threading

import pytest
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in, init
from processes import wait_until
from test_coming_back import Restarting, call

_seen = []
_handles = []


def note_lost(worker, error):
    _seen.append(("lost", worker.name, worker.id, type(error).__name__, error.worker, str(error)))


def note_joined(worker):
    # It can be called, and the callback may wait.
    _seen.append(("joined", worker.name, worker.id, rpc.rpc_sync(worker, call_back, timeout=10)))


def call_back():
    return threading.get_native_id() > 0


def watch():
    _handles.extend([torchwire.on_worker_lost(note_lost), torchwire.on_worker_joined(note_joined)])


def stop_watching():
    for handle in _handles:
        handle.remove()


def fail(*_):
    raise ValueError("a callback that fails")


def watch_badly():
    torchwire.on_worker_lost(fail)


def seen():
    return list(_seen)


def kinds():
    return [(event[0], event[1]) for event in _seen]


@pytest.fixture
def trio(tmp_path):
    with Restarting(3, file_in(tmp_path)) as group:
        yield group


def test_who_dies_and_comes_back_is_reported_in_this_order(trio):
    trio[0].run(watch)
    for count in (1, 2, 3):
        trio.restart(1)
        wait_until(lambda count=count: len(trio[0].run(kinds)) == 2 * count)
    assert trio[0].run(kinds) == [("lost", "worker1"), ("joined", "worker1")] * 3
    lost, joined = trio[0].run(seen)[:2]
    assert lost[2:5] == (1, "WorkerDied", "worker1")
    assert lost[5].startswith("worker 'worker1' (rank 1) has died: its process")
    assert joined == ("joined", "worker1", 1, True)


def test_who_joins_and_leaves_is_reported(tmp_path):
    with Restarting(2, file_in(tmp_path)) as group, Group(1) as more:
        group[0].run(watch)
        more[0].run(init, file_in(tmp_path), name="late", rank=5)
        wait_until(lambda: group[0].run(kinds) == [("joined", "late")])
        more[0].run(rpc.shutdown)
        wait_until(lambda: len(group[0].run(kinds)) == 2)
        left = group[0].run(seen)[1]
        assert left[:5] == ("lost", "late", 5, "WorkerUnreachable", "late")
        assert "has left the RPC group" in left[5]
        assert group[1].run(kinds) == []  # nobody has asked


def test_members_of_a_static_group_die_but_do_not_leave(tmp_path):
    with Group(3) as group:
        group.init(file_in(tmp_path))
        group[0].run(watch)
        group[2].kill()
        wait_until(lambda: group[0].run(kinds) == [("lost", "worker2")])
        for pending in [worker.start(rpc.shutdown) for worker in group[:2]]:
            pending.result()
        assert group[0].run(kinds) == [("lost", "worker2")]


def test_a_callback_that_fails_is_logged_and_the_others_are_called(trio):
    trio[0].run(watch_badly)
    trio[0].run(watch)
    trio.restart(1)
    wait_until(lambda: len(trio[0].run(kinds)) == 2)
    assert "a callback that fails" in trio[0].output()
    assert trio[0].run(call, "worker2") == 42


def test_a_handle_ends_the_reports(trio):
    trio[0].run(watch)
    trio[2].run(watch)
    trio[0].run(stop_watching)
    trio.restart(1)
    wait_until(lambda: len(trio[2].run(kinds)) == 2)
    assert trio[0].run(kinds) == []


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="the callback must be callable, got int"):
        torchwire.on_worker_lost(1)
    with pytest.raises(TypeError, match="the callback must be callable, got NoneType"):
        torchwire.on_worker_joined(None)
