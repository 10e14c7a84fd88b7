"""Groups across a network: between two namespaces that stand for two hosts."""

import pytest
import torch
import torch.distributed.rpc as rpc
import torchwire
from group import Group, init
from network import Hosts, why_impossible
from processes import WorkerError, wait_until

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


@pytest.fixture(scope="module")
def hosts():
    reason = why_impossible()
    if reason:
        pytest.skip(reason)
    with Hosts() as hosts:
        yield hosts


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
        options = [{"bind_address": f"{address}:40000"} for address in Hosts.ADDRESSES[0]]
        init_each(group, V4_STORE, *options)
        check_calls(group)
        assert group[0].run(own_details) == f"wire_tcp://{Hosts.ADDRESSES[0][0]}:40000"
        group.shut_down()


def own_details():
    return rpc.api._get_current_rpc_agent().get_debug_info()["agent.address"]


@pytest.mark.slow
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
