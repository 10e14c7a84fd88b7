"""The rendezvous store dies, with the worker that hosts it or by itself: the group goes on, and shuts down in order."""

import contextlib
import re
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import Group, environment_of_store, free_port, init
from processes import WorkerError, WorkerProcess, close_all, wait_until
from rref_counts import counts

# A shutdown of those that live.
IN_ORDER = 5.0

# Of calls and the store, where a test waits for it.
TIMEOUT = 3

# The same where nothing is to be waited for but the store's host.
HOSTED_TIMEOUT = 12

# ---- what the workers run ----

_kept = []
_event = threading.Event()
_stores = []


def host_store(port):
    _stores.append(dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False))


def answer():
    return 42


def double(tensor):
    return tensor * 2


def work_with(peer):
    """A call, an RRef and a backward pass."""
    assert rpc.rpc_sync(peer, answer) == 42
    assert rpc.remote(peer, answer).to_here() == 42
    with dist_autograd.context() as context:
        tensor = torch.ones(2, requires_grad=True)
        dist_autograd.backward(context, [rpc.rpc_sync(peer, double, (tensor,)).sum()])
        assert dist_autograd.get_gradients(context)[tensor].tolist() == [2, 2]


def wait_for_release():
    _event.wait()
    return 42


def release():
    _event.set()


def release_on(peer):
    rpc.rpc_sync(peer, release)


def call_that_waits(peer):
    _kept.append(rpc.rpc_async(peer, wait_for_release))


def result_of_call():
    return _kept[-1].wait()


def keep_rref_on(peer):
    _kept.append(rpc.remote(peer, answer))
    _kept[-1].to_here()
    wait_until(lambda: counts()["pending_users"] == 0)


def shut_down(**arguments):
    begin = time.monotonic()
    rpc.shutdown(**arguments)
    return time.monotonic() - begin


def init_timed(*args, **options):
    """Returns how long init_rpc took to fail, and with what."""
    begin = time.monotonic()
    try:
        init(*args, **options)
    except Exception as error:
        return time.monotonic() - begin, str(error)
    raise AssertionError("it did not fail")


# ---- what the tests ask ----

WARNING = r"torchwire warning: the RPC group shuts down without its rendezvous store, which is gone \(.*\), by links"


def warnings_of(worker):
    return re.findall(f"{WARNING}.*", worker.output())


def shut_down_in_order(workers, limit=IN_ORDER):
    pending = [worker.start(shut_down) for worker in workers]
    for one in pending:
        assert one.result() < limit


def expect_warning(workers, dead=()):
    names = ", ".join(f"worker '{worker.name}' (rank {worker.name.removeprefix('worker')})" for worker in dead)
    for worker in workers:
        (line,) = warnings_of(worker)
        assert line.endswith(f", and without those that have died: {names}" if dead else "by links")


def is_waiting_in(port, round_name):
    client = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    return client.check([f"rpc_prefix_0/torchwire/shutdown/{round_name}/arrived"])


@pytest.fixture
def hosted():
    """Four workers of a static group, the first of which hosts the store."""
    with Group(4) as group:
        group.port = free_port()
        group.init(f"tcp://127.0.0.1:{group.port}", rpc_timeout=HOSTED_TIMEOUT)
        yield group


@contextlib.contextmanager
def store_apart():
    """The process of a store that no worker hosts."""
    store = WorkerProcess("store")
    try:
        store.port = free_port()
        store.init_method = f"tcp://127.0.0.1:{store.port}"
        store.environment = environment_of_store(store.port)
        store.run(host_store, store.port)
        yield store
    finally:
        store.kill()
        store.close()


@pytest.fixture
def apart():
    with store_apart() as store:
        yield store


# ---- the store dies with a worker ----


def test_survivors_go_on_and_shut_down_in_order(hosted):
    hosted[1].run(keep_rref_on, "worker0")
    hosted[0].run(keep_rref_on, "worker2")
    hosted[0].kill()
    survivors = hosted[1:]
    for worker, peer in zip(survivors, [*survivors[1:], survivors[0]], strict=True):
        worker.run(work_with, peer.name)
    hosted[1].run(keep_rref_on, "worker3")
    shut_down_in_order(survivors)
    expect_warning(survivors, dead=[hosted[0]])


def test_survivors_shut_down_at_once(hosted):
    # Some have not noticed the death yet.
    hosted[0].kill()
    shut_down_in_order(hosted[1:])
    expect_warning(hosted[1:], dead=[hosted[0]])


def test_calls_that_are_under_way_end_before_the_shutdown(hosted):
    hosted[1].run(call_that_waits, "worker2")
    hosted[0].kill()
    pending = [worker.start(shut_down) for worker in hosted[1:3]]
    hosted[3].run(release_on, "worker2")
    shut_down_in_order(hosted[3:])
    for one in pending:
        one.result()
    assert hosted[1].run(result_of_call) == 42
    expect_warning(hosted[1:], dead=[hosted[0]])


def test_a_shutdown_in_which_one_waits_already_goes_on(hosted):
    pending = hosted[1].start(shut_down)
    wait_until(lambda: is_waiting_in(hosted.port, "reach0"))
    hosted[0].kill()
    shut_down_in_order(hosted[2:])
    assert pending.result() < IN_ORDER
    expect_warning(hosted[1:], dead=[hosted[0]])


def test_who_serves_the_store_dies_too(hosted):
    hosted[0].kill()
    pending = hosted[2].start(shut_down)
    wait_until(lambda: "has died" in hosted[2].output())
    hosted[1].kill()
    shut_down_in_order(hosted[3:])
    assert pending.result() < IN_ORDER
    expect_warning(hosted[2:], dead=hosted[:2])


def test_all_but_one_die(hosted):
    for worker in hosted[:3]:
        worker.kill()
    shut_down_in_order(hosted[3:])
    expect_warning(hosted[3:], dead=hosted[:3])


# ---- the store dies by itself ----


@pytest.mark.parametrize("when", ["before", "during"])
def test_all_workers_shut_down_in_order_without_their_store(apart, when):
    with Group(4, apart.environment) as group:
        group.init(apart.init_method)
        first = []
        if when == "during":
            first.append(group[3].start(shut_down))
            wait_until(lambda: is_waiting_in(apart.port, "reach0"))
        apart.kill()
        shut_down_in_order(group[: 4 - len(first)])
        for one in first:
            one.result()
        expect_warning(group)


def test_a_store_that_stands_still_is_waited_for_only_so_long(apart):
    with Group(3, apart.environment) as group:
        group.init(apart.init_method, rpc_timeout=TIMEOUT)
        apart.signal(signal.SIGSTOP)
        shut_down_in_order(group, TIMEOUT + IN_ORDER)
        expect_warning(group)


def test_a_dynamic_group_shuts_down_without_its_store(apart):
    workers = [WorkerProcess(f"worker{rank}", apart.environment) for rank in range(3)]
    try:
        for worker in workers:
            worker.run(init, apart.init_method)
        apart.kill()
        for worker in workers:
            worker.run(work_with, "worker0")
        shut_down_in_order(workers)
    finally:
        close_all(workers)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dynamic_group_is_not_held_up_by_its_store(apart, number):
    workers = [WorkerProcess(f"worker{rank}", apart.environment) for rank in range(2)]
    try:
        for worker in workers:
            worker.run(init, apart.init_method, rpc_timeout=TIMEOUT)
        apart.signal(number)
        shut_down_in_order(workers, TIMEOUT + IN_ORDER)
    finally:
        close_all(workers)


# ---- who comes when the store is gone ----


# PyTorch's options as well as torchwire's.
each_options_class = pytest.mark.parametrize(
    "options_class", [torchwire.TorchwireRpcBackendOptions, rpc.TensorPipeRpcBackendOptions]
)


@each_options_class
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_newcomer_is_told(apart, number, options_class):
    apart.signal(number)
    newcomer = WorkerProcess("worker1", apart.environment)
    try:
        seconds, sentence = newcomer.run(
            init_timed, apart.init_method, rpc_timeout=TIMEOUT, options_class=options_class
        )
        assert TIMEOUT <= seconds < TIMEOUT + IN_ORDER
        assert re.fullmatch("the worker with rank 1 could not join the RPC group: the rendezvous store .*", sentence)
    finally:
        newcomer.close()


@each_options_class
def test_a_worker_of_a_static_group_is_told_of_a_store_that_stands_still(apart, options_class):
    apart.signal(signal.SIGSTOP)
    worker = WorkerProcess("worker0", apart.environment)
    try:
        seconds, sentence = worker.run(
            init_timed, apart.init_method, world_size=2, rpc_timeout=TIMEOUT, options_class=options_class
        )
        assert TIMEOUT <= seconds < TIMEOUT + IN_ORDER
        assert sentence == (
            "the worker with rank 0 could not join the RPC group: the rendezvous store "
            f"at 127.0.0.1:{apart.port} takes "
            f"connections, but has not answered for {TIMEOUT} s: the process that hosts it stands still, or is no store"
        )
    finally:
        worker.close()


@pytest.mark.slow
def test_a_worker_of_a_static_group_waits_for_its_store_to_start():
    # So long that the next attempt of the store's own client would come later than calls time out.
    timeout, wait = 2, 6
    port = free_port()
    with Group(2) as group:
        early = group[1].start(init, f"tcp://127.0.0.1:{port}", world_size=2, rpc_timeout=timeout)
        assert not early.is_there(wait)
        group[0].run(init, f"tcp://127.0.0.1:{port}", world_size=2, rpc_timeout=timeout)
        early.result()
        group.shut_down()


# ---- the host stands still ----


def test_a_host_that_stands_still_does_not_hold_the_others_up_for_ever(hosted):
    hosted[0].signal(signal.SIGSTOP)
    begin = time.monotonic()
    pending = [worker.start(shut_down) for worker in hosted[1:]]
    for one in pending:
        with pytest.raises(
            WorkerError, match="cannot shut down gracefully: worker 'worker0' \\(rank 0\\) does not answer"
        ):
            one.result()
    assert time.monotonic() - begin < HOSTED_TIMEOUT + IN_ORDER
    hosted[0].kill()  # which would not end by itself
