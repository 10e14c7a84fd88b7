"""Groups across a network: between two namespaces that stand for two hosts."""

import functools
import signal
import threading
import time

import pytest
import torch
import torch.distributed.rpc as rpc
import torchwire
from group import Group, init
from network import Hosts
from processes import WorkerError, wait_until
from repetition import Repetition, begin, count, stop

PORT = 29500  # of the store; nothing else lives in these namespaces
V4_STORE = f"tcp://{Hosts.ADDRESSES[0][0]}:{PORT}"
V6_STORE = f"tcp://[{Hosts.V6_ADDRESSES[0]}]:{PORT}"

# ---- what the workers run ----


def echo(value):
    return value


def echo_to(to):
    """Calls with small and large tensors, one after another and at once."""
    tensors = [torch.full((size,), 1.5) for size in (10, 1_000_000) * 5]
    assert torch.equal(rpc.rpc_sync(to, echo, (tensors[1],)), tensors[1])
    futures = [rpc.rpc_async(to, echo, (tensor,)) for tensor in tensors]
    return all(torch.equal(future.wait(), tensor) for future, tensor in zip(futures, tensors))


def own_address():
    info = rpc.api._get_current_rpc_agent().get_debug_info()
    host, _, port = info["agent.address"].rpartition(":")
    assert 0 < int(port) < 65536
    return host, info["agent.address_chosen_by"]


def addresses_of_peers():
    return [peer["address"].rpartition(":")[0] for peer in torchwire.peers()]


def call_within(seconds, to):
    try:
        return rpc.rpc_sync(to, echo, ("fine",), timeout=seconds)
    except RuntimeError as error:
        return str(error)


# ---- the networks ----


@pytest.fixture
def across(hosts):
    """Runs worker0 on one host and worker1 on the other; they have not called init_rpc."""

    def make(**environment):
        return Group(2, environment, hosts.entrances())

    return make


def init_each(group, store, *options):
    """init_rpc, with options for each worker."""
    pending = [worker.start(init, store, world_size=2, **each) for worker, each in zip(group, options)]
    [one.result() for one in pending]


def check_calls(group):
    pending = [group[0].start(echo_to, "worker1"), group[1].start(echo_to, "worker0")]
    assert [one.result() for one in pending] == [True, True]


@pytest.mark.parametrize(
    "store, addresses",
    [(V4_STORE, Hosts.ADDRESSES[0]), (V6_STORE, [f"[{address}]" for address in Hosts.V6_ADDRESSES])],
    ids=["IPv4", "IPv6"],
)
def test_a_group_across_hosts_uses_the_route_to_its_store(across, store, addresses):
    with across() as group:
        group.init(store)
        check_calls(group)
        for worker, address in zip(group, addresses):
            host, reason = worker.run(own_address)
            assert host == f"wire_tcp://{address}"
            assert reason.startswith("route to the store at ")
        assert group[0].run(addresses_of_peers) == [f"wire_tcp://{addresses[1]}"]
        group.shut_down()


@pytest.mark.parametrize("channels", [["mpt_wire_tcp"], ["basic"]])
def test_large_tensors_cross_the_network_through_each_channel(across, channels):
    with across() as group:
        group.init(V4_STORE, _channels=channels)
        check_calls(group)
        group.shut_down()


@pytest.mark.parametrize(
    "environment, reason",
    [
        ({"TP_SOCKET_IFNAME": "net1"}, "TP_SOCKET_IFNAME=net1"),
        ({"GLOO_SOCKET_IFNAME": "net1"}, "GLOO_SOCKET_IFNAME=net1"),
        ({"TP_SOCKET_IFNAME": "net1", "GLOO_SOCKET_IFNAME": "net0"}, "TP_SOCKET_IFNAME=net1"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_an_environment_variable_names_the_interface(across, environment, reason):
    with across(**environment) as group:
        group.init(V4_STORE)
        check_calls(group)
        assert group.all(own_address) == [(f"wire_tcp://{address}", reason) for address in Hosts.ADDRESSES[1]]
        group.shut_down()


def test_the_option_precedes_the_environment(across):
    with across(TP_SOCKET_IFNAME="net0") as group:
        init_each(group, V4_STORE, *({"bind_address": address} for address in Hosts.ADDRESSES[1]))
        check_calls(group)
        assert group.all(own_address) == [(f"wire_tcp://{address}", "bind_address") for address in Hosts.ADDRESSES[1]]
        group.shut_down()


def test_a_worker_listens_everywhere_and_advertises_one_address(across):
    with across() as group:
        options = [{"bind_address": "0.0.0.0", "advertise_address": address} for address in Hosts.ADDRESSES[1]]
        init_each(group, V4_STORE, *options)
        check_calls(group)
        assert group.all(addresses_of_peers) == [[f"wire_tcp://{address}"] for address in reversed(Hosts.ADDRESSES[1])]
        group.shut_down()


def test_a_worker_that_listens_everywhere_advertises_a_reachable_address(across):
    with across() as group:
        group.init(V4_STORE, bind_address="0.0.0.0")
        check_calls(group)
        assert group.all(addresses_of_peers) == [[f"wire_tcp://{address}"] for address in reversed(Hosts.ADDRESSES[0])]
        group.shut_down()


def test_a_port_can_be_chosen(across):
    with across() as group:
        options = [{"bind_address": f"{address}:29501"} for address in Hosts.ADDRESSES[0]]
        init_each(group, V4_STORE, *options)
        check_calls(group)
        assert group[0].run(own_details) == f"wire_tcp://{Hosts.ADDRESSES[0][0]}:29501"
        group.shut_down()


def test_only_workers_in_one_network_namespace_share_memory(hosts):
    near, far = hosts.entrances()
    with Group(4, prepare=[near, near, far, far]) as group:
        group.init(V4_STORE)
        for worker in group:
            for other in group:
                assert worker.run(rpc.rpc_sync, other.name, echo, (1,)) == 1
        assert group.all(transports_of_peers) == [
            {"worker1": "wire_shm", "worker2": "wire_tcp", "worker3": "wire_tcp"},
            {"worker0": "wire_shm", "worker2": "wire_tcp", "worker3": "wire_tcp"},
            {"worker0": "wire_tcp", "worker1": "wire_tcp", "worker3": "wire_shm"},
            {"worker0": "wire_tcp", "worker1": "wire_tcp", "worker2": "wire_shm"},
        ]
        group.shut_down()


def transports_of_peers():
    return {peer["name"]: peer["transport"] for peer in torchwire.peers()}


def own_details():
    return rpc.api._get_current_rpc_agent().get_debug_info()["agent.address"]


@pytest.mark.slow
@pytest.mark.alone
def test_an_address_that_leads_nowhere_is_named_by_who_cannot_reach_it(across):
    with across() as group:
        options = [{}, {"bind_address": "0.0.0.0", "advertise_address": "10.77.0.99"}]
        init_each(group, V4_STORE, *options)
        with pytest.raises(WorkerError, match=r"cannot reach worker 'worker1' \(rank 1\) at wire_tcp://10\.77\.0\.99"):
            group[0].run(rpc.rpc_sync, "worker1", echo, (1,))
        # The other way works, and once there is a link it serves both.
        assert group[1].run(rpc.rpc_sync, "worker0", echo, (1,)) == 1
        assert group[0].run(rpc.rpc_sync, "worker1", echo, (1,)) == 1
        group.shut_down()


def test_calls_time_out_while_the_cable_is_out_and_work_when_it_is_back(across, hosts):
    # The store's cable stays where it is; the workers use the other one.
    with across(TP_SOCKET_IFNAME="net1") as group:
        group.init(V4_STORE)
        check_calls(group)
        hosts.plug(1, "down")
        try:
            assert "RPC ran for more than set timeout (300 ms)" in group[0].run(call_within, 0.3, "worker1")
        finally:
            hosts.plug(1, "up")
        wait_until(lambda: group[0].run(call_within, 5, "worker1") == "fine")
        check_calls(group)
        group.shut_down()


# ---- a cable that is cut ----

INTERVAL = 2.0  # seconds between the beats
LATEST = 2 * INTERVAL + 0.5  # a busy machine may start a process late

_event = threading.Event()
_pending = None
_failed_at = []


def wait_for_event():
    _event.wait()


def begin_call(to):
    """Makes a call that the callee does not answer before set_event, and notes when it fails."""
    global _pending
    _failed_at.clear()
    _pending = rpc.rpc_async(to, wait_for_event)
    _pending.add_done_callback(lambda _: _failed_at.append(time.monotonic()))


def set_event():
    _event.set()


def result_of_call():
    return _pending.wait()


def failure_of_call():
    try:
        _pending.wait()
    except RuntimeError as error:
        while not _failed_at:  # whoever waits may be told before the callback is
            time.sleep(0.001)
        return str(error), _failed_at[0]
    raise AssertionError("it did not fail")


class LargeCalls(Repetition):
    """One after another, so that at any time something is on its way."""

    def __init__(self, to):
        super().__init__()
        self._to = to
        self._tensor = torch.ones(5_000_000)

    def step(self):
        assert torch.equal(rpc.rpc_sync(self._to, echo, (self._tensor,)), self._tensor)


def failure_of_large_calls():
    while True:
        try:
            count()
        except RuntimeError as error:
            return str(error), time.monotonic()
        time.sleep(0.001)


@pytest.fixture
def cable(hosts):
    """The cable that is not the store's: cable("down") and cable("up")."""
    yield functools.partial(hosts.plug, 1)
    hosts.plug(1, "up")


@pytest.fixture
def linked(across):
    """A group without sessions whose calls take that cable, with short beats. It is not shut down."""
    with across(TP_SOCKET_IFNAME="net1") as group:
        # Namespaces of one machine could exchange large tensors past the cable.
        group.init(V4_STORE, keepalive_interval=INTERVAL, session_timeout=0, _channels=["mpt_wire_tcp"])
        check_calls(group)
        yield group


def check_failures(failures, cut):
    """One for each worker."""
    for (text, when), name in zip(failures, ["worker1", "worker0"], strict=True):
        print(f"{when - cut:.2f} s after the cut: {text.splitlines()[0]}")
        assert f"lost the connection to worker '{name}'" in text
        assert when - cut < LATEST


def test_a_pending_call_fails_within_two_beats_of_the_cut(linked, cable):
    linked[0].run(begin_call, "worker1")
    linked[1].run(begin_call, "worker0")
    cable("down")
    cut = time.monotonic()
    check_failures(linked.all(failure_of_call), cut)


def test_calls_that_are_being_sent_fail_within_two_beats_of_the_cut(linked, cable):
    linked[0].run(begin, LargeCalls, "worker1")
    linked[1].run(begin, LargeCalls, "worker0")
    wait_until(lambda: min(linked.all(count)) >= 2)
    cable("down")
    cut = time.monotonic()
    check_failures(linked.all(failure_of_large_calls), cut)


@pytest.mark.slow
@pytest.mark.alone
def test_a_call_that_is_made_after_the_cut_does_not_delay_the_failure_of_earlier_ones(linked, cable):
    linked[0].run(begin_call, "worker1")
    cable("down")
    cut = time.monotonic()
    time.sleep(INTERVAL)  # that is how much later it is made
    linked[0].run(begin_another_call, "worker1")
    text, when = linked[0].run(failure_of_call)
    print(f"{when - cut:.2f} s after the cut: {text.splitlines()[0]}")
    assert when - cut < LATEST


def begin_another_call(to):
    rpc.rpc_async(to, echo, (1,))


def test_nothing_fails_when_the_cable_is_soon_back(linked, cable):
    linked[0].run(begin_call, "worker1")
    linked[1].run(begin, LargeCalls, "worker0")
    wait_until(lambda: linked[1].run(count) >= 2)
    cable("down")
    time.sleep(INTERVAL / 2)  # that is how long it is out
    cable("up")
    before = linked[1].run(count)
    wait_until(lambda: linked[1].run(count) >= before + 3)
    linked[1].run(set_event)
    linked[0].run(result_of_call)
    linked[1].run(stop)
    linked.shut_down()


SIZE = 50_000_000  # elements of a tensor that takes a while to cross


def begin_large_call(to):
    global _pending
    _pending = rpc.rpc_async(to, total_of, (torch.ones(SIZE),))


def total_of(tensor):
    return tensor.sum().item()


def bytes_received(worker):
    with open(f"/proc/{worker.pid}/net/dev") as file:
        return next(int(line.split()[1]) for line in file if line.strip().startswith("net1:"))


@pytest.mark.slow
@pytest.mark.alone
def test_a_worker_that_stands_still_is_not_taken_for_gone(linked):
    before = bytes_received(linked[1])
    linked[0].run(begin_large_call, "worker1")
    wait_until(lambda: bytes_received(linked[1]) > before + SIZE // 10)
    linked[1].signal(signal.SIGSTOP)
    try:
        time.sleep(4 * INTERVAL + 1)  # that is how long it stands
    finally:
        linked[1].signal(signal.SIGCONT)
    assert linked[0].run(result_of_call) == SIZE
    linked.shut_down()
