"""Frames with checksums: calls work as without, and a frame that arrives damaged ends its link with a reason."""

import contextlib
import math
import threading

import pytest
import torch
import torch.distributed.rpc as rpc
import torchwire
from group import Group, HostedStore, errors, file_in, free_port, init, results, running
from processes import WorkerError, WorkerProcess, close_all, wait_until
from proxy import Proxy
from tensor_cases import LARGE

# None: those that torchwire chooses.
over_each_transport = pytest.mark.parametrize(
    "transports", [None, ["wire_tcp"], ["wire_shm"]], ids=["default", "wire_tcp", "wire_shm"]
)

# A tensor of these bytes travels inside the head of its frame, where the damage is done.
MARK = bytes(range(200, 240)) * 3
DAMAGED_MARK = MARK[:60] + b"!" + MARK[61:]

# ---- what the workers run ----


def echo(value):
    return value


def echoes_of(to):
    """Whether all that is sent comes back: small, large, many tensors, a large payload, and nothing at all."""
    values = [
        torch.arange(10),
        torch.randn(LARGE),
        [torch.randn(LARGE), torch.ones(2), torch.empty(0), torch.randn(16 << 20 >> 2)],
        "text" * LARGE,
        None,
    ]
    # All at a time, so that frames follow each other closely.
    futures = [rpc.rpc_async(to, echo, (value,)) for value in values * 3]
    pairs = zip(values * 3, torch.futures.wait_all(futures), strict=True)
    return all(_equal(sent, back) for sent, back in pairs)


def _equal(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return one == other


def marked():
    return torch.frombuffer(bytearray(MARK), dtype=torch.uint8)


_held = threading.Event()


def hold_tensor(_):
    """Keeps the caller waiting, and so its call on the link."""
    _held.wait()


def release():
    _held.set()


_pending = []


def begin_held_call(to):
    _pending[:] = [rpc.rpc_async(to, hold_tensor, (torch.ones(1),))]


def error_of_held_call():
    return _text_of_error(_pending.pop().wait)


def result_of_held_call():
    return _pending.pop().wait()


def echo_of_mark(to):
    return rpc.rpc_sync(to, echo, (marked(),)).numpy().tobytes()


def mark_of(to):
    return rpc.rpc_sync(to, marked).numpy().tobytes()


def error_of_marked_call(to):
    return _text_of_error(lambda: rpc.rpc_sync(to, echo, (marked(),)))


def error_of_marked_answer(to):
    return _text_of_error(lambda: rpc.rpc_sync(to, marked))


def _text_of_error(function):
    try:
        function()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("it did not fail")


# ---- calls ----


@over_each_transport
def test_calls_with_checksums_work_as_without(tmp_path, transports):
    with running(2, tmp_path, checksums=True, _transports=transports) as group:
        assert group.all(echoes_of, "worker1") == [True, True]
        assert group.all(echoes_of, "worker0") == [True, True]
        assert not any(peer["links_lost"] for peers in group.all(torchwire.peers) for peer in peers)


# ---- workers that differ ----


def test_workers_of_a_static_group_that_differ_are_refused_on_both(tmp_path):
    place = {"init_method": file_in(tmp_path), "world_size": 2}
    with Group(2) as group:
        pending = [worker.start(init, checksums=rank == 1, **place) for rank, worker in enumerate(group)]
        for error in errors(pending):
            assert (
                "worker 'worker1' (rank 1) adds checksums to its frames but worker 'worker0' (rank 0) does not: "
                "give all workers the same `checksums`"
            ) in error.message


def test_a_worker_that_differs_cannot_join_a_dynamic_group():
    store = HostedStore()
    workers = [WorkerProcess(f"worker{rank}", store.environment) for rank in range(2)]
    try:
        workers[0].run(init, store.init_method)
        with pytest.raises(WorkerError, match="adds checksums to its frames but .* does not: give all"):
            workers[1].run(init, store.init_method, checksums=True)
        workers[0].run(rpc.shutdown)
    finally:
        close_all(workers)


def test_the_options_of_tensorpipe_mean_no_checksums():
    stock = rpc.TensorPipeRpcBackendOptions(init_method="env://")
    assert torchwire.options.from_any(stock).checksums is False
    assert torchwire.options.as_agent_options(torchwire.options.from_any(stock))["interceptors"] == []


# ---- damage ----


class DamagingProxy(Proxy):
    """Damages the mark in what both ends say while it is armed, at most so often."""

    def __init__(self, to):
        self.armed = False
        self.at_most = math.inf
        self.damaged = 0
        super().__init__(to)

    def connected(self):
        return self._damage, self._damage

    def _damage(self, data):
        if not self.armed or self.damaged >= self.at_most or MARK not in data:  # a small frame comes in one piece
            return data
        self.damaged += 1
        return data.replace(MARK, DAMAGED_MARK)


@contextlib.contextmanager
def running_behind_proxy(**options):
    """Two workers whose link passes through a DamagingProxy: worker1 dials worker0."""
    store = HostedStore()
    port = free_port()
    proxy = DamagingProxy(port)
    addresses = {"bind_address": f"127.0.0.1:{port}", "advertise_address": f"127.0.0.1:{proxy.port}"}
    common = {"world_size": 2, "_transports": ["wire_tcp"], **options}
    with contextlib.closing(proxy), Group(2, store.environment) as group:
        results(
            [
                group[0].start(init, store.init_method, **addresses, **common),
                group[1].start(init, store.init_method, **common),
            ]
        )
        assert group[1].run(echoes_of, "worker0")
        yield group, proxy
        proxy.armed = False
        group.all(release)
        assert group.all(echoes_of, "worker0") == [True, True]  # on a link made anew
        group.shut_down()


DAMAGED = "a frame arrived damaged: its checksum differs ("


def test_damage_goes_unseen_without_checksums():
    with running_behind_proxy() as (group, proxy):
        proxy.armed = True
        assert group[1].run(echo_of_mark, "worker0") == DAMAGED_MARK
        assert proxy.damaged


@pytest.mark.parametrize("what, where", [("request", 0), ("response", 1)])
def test_a_damaged_frame_fails_the_calls_on_its_link_with_the_reason_on_both_sides(what, where):
    with running_behind_proxy(checksums=True, session_timeout=0) as (group, proxy):
        finder, told = group[where], group[1 - where]
        finder.run(begin_held_call, told.name)
        proxy.armed = True
        call = error_of_marked_call if what == "request" else error_of_marked_answer
        at_caller = group[1].run(call, "worker0")
        assert proxy.damaged == 1
        at_finder = finder.run(error_of_held_call)
        at_told = at_caller if what == "request" else None
        assert f"lost the connection to worker '{told.name}' (rank {1 - where}) at " in at_finder
        assert f": {DAMAGED}{what}, call " in at_finder and "it closed the link" not in at_finder
        if at_told is not None:
            assert f"lost the connection to worker '{finder.name}' (rank {where}) at " in at_told
            assert f": it closed the link: {DAMAGED}{what}, call " in at_told
        else:
            assert at_caller == at_finder
        for worker, other in ((finder, told), (told, finder)):
            line = f"torchwire warning: lost the connection to worker '{other.name}'"
            wait_until(lambda worker=worker, line=line: line in worker.output())
            assert DAMAGED in worker.output()
        assert "it closed the link" in told.output() and "it closed the link" not in finder.output()


def lost_links(peer):
    return next(one["links_lost"] for one in torchwire.peers() if one["name"] == peer)


@pytest.mark.parametrize("call", [echo_of_mark, mark_of])
def test_a_damaged_frame_is_sent_once_more(call):
    with running_behind_proxy(checksums=True) as (group, proxy):
        group[1].run(begin_held_call, "worker0")
        proxy.at_most, proxy.armed = 1, True
        assert group[1].run(call, "worker0") == MARK
        assert proxy.damaged == 1
        assert group[1].run(lost_links, "worker0") == 1
        group.all(release)
        assert group[1].run(result_of_held_call) is None
