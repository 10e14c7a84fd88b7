"""What `torchwire.explain` says of transports and channels that are not used, in real groups."""

import functools
import os

import connections
import machine_faults
import network
import pytest
import torch
import torch.distributed.rpc as rpc
import torchwire
from group import Group, HostedStore, init, results
from processes import wait_until
from sockets import unix_names
from torchwire.explanation import NotTaken

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
needs_numbers = pytest.mark.skipif(machine_faults.NUMBERS is None, reason="the system calls' numbers are not known")


# ---- what the workers run ----


def connect_and_explain(to):
    rpc.rpc_sync(to, torch.add, (torch.ones(2), 1))
    return torchwire.explain(to)


def explain_first(to):
    before = torchwire.explain(to)
    return before, str(before), connect_and_explain(to)


def add_large(to):
    return rpc.rpc_sync(to, torch.add, (torch.ones(1 << 20), 1)).sum().item()


# ---- the tests ----


def explanations(prepare=None, options=({}, {}), init_method=None):
    """What each of two workers says of the other; both transfer something large, too."""
    store = None if init_method else HostedStore()
    with Group(2, store and store.environment, prepare=prepare) as group:
        where = init_method or store.init_method
        results([worker.start(init, where, world_size=2, **options[rank]) for rank, worker in enumerate(group)])
        found = [group[0].run(connect_and_explain, "worker1"), group[1].run(connect_and_explain, "worker0")]
        assert group[0].run(add_large, "worker1") == 2 << 20
        group.shut_down()
    return found


def nothing():
    pass


def only(not_taken):
    (one,) = not_taken
    return one


def test_on_one_host_nothing_better_is_left_out():
    for found in explanations():
        assert (found.transport, found.channel) == ("wire_shm", "cma")
        assert found.transports_not_taken == found.channels_not_taken == ()
        assert "not taken" not in str(found)


def test_nothing_is_said_of_a_connection_that_there_has_not_been():
    store = HostedStore()
    with Group(2, store.environment) as group:
        group.init(store.init_method, _transports=["wire_tcp"])
        before, text, after = group[0].run(explain_first, "worker1")
        group.shut_down()
    assert before.transports_not_taken == before.channels_not_taken == ()
    assert "by a connection, once there is one" in text
    assert only(after.transports_not_taken).name == "wire_shm"


def explain_once(to, state):
    """Once the link to it is in that state."""
    wait_until(lambda: any(peer["name"] == to and peer["state"] == state for peer in torchwire.peers()))
    return torchwire.explain(to)


def test_of_a_worker_that_is_gone_the_last_connection_is_told_if_there_was_one():
    store = HostedStore()
    with Group(3, store.environment) as group:
        group.init(store.init_method)
        group[0].run(connect_and_explain, "worker1")
        for worker in reversed(group[1:]):  # or worker2 would be dialed, to be told of worker1's death
            worker.kill()
        had_one, had_none = (group[0].run(explain_once, name, "dead") for name in ("worker1", "worker2"))
        group.kill()
    assert had_one.state == had_none.state == "dead"
    assert str(had_one).splitlines()[:2] == [
        "to worker 'worker1', which is dead. The last connection:",
        "  calls           by wire_shm",
    ]
    assert str(had_none).splitlines()[:2] == [
        "to worker 'worker2', which is dead",
        "  calls           by nothing: there has been no connection",
    ]


def break_and_explain(to, names):
    assert connections.break_all(names)
    return explain_once(to, "idle")


def test_a_connection_that_is_no_more_is_not_shown_as_one_that_is():
    store = HostedStore()
    with Group(2, store.environment) as group:
        group.init(store.init_method, session_timeout=0)
        group[0].run(connect_and_explain, "worker1")
        broken = group[0].run(break_and_explain, "worker1", {one for each in group for one in unix_names(each.pid)})
        group.shut_down()
    assert broken.transport == "wire_shm"
    assert str(broken).startswith("to worker 'worker1'. There is no connection now. The last connection:\n")


def test_a_transport_that_the_option_leaves_out_is_told():
    option = {"_transports": ["wire_tcp"]}
    for found in explanations(options=(option, option)):
        assert found.transport == "wire_tcp"
        assert only(found.transports_not_taken) == NotTaken(
            "wire_shm", "the option _transports leaves it out", "name it there, for both workers"
        )
        assert (
            "  calls           by wire_tcp\n"
            "    wire_shm not taken: the option _transports leaves it out; remedy: name it there, for both workers\n"
        ) in str(found)


def test_a_transport_that_the_other_workers_option_leaves_out_is_told():
    here, there = explanations(options=({}, {"_transports": ["wire_tcp"], "_channels": ["basic"]}))
    assert only(here.transports_not_taken).reason == "the other worker's options leave it out"
    assert only(here.transports_not_taken).remedy == "give both workers the same _transports, or none"
    assert [one.name for one in here.channels_not_taken][0] == "cma"
    assert here.channels_not_taken[0].reason == "the other worker's options leave it out"
    assert only(there.transports_not_taken).reason == "the option _transports leaves it out"


def test_channels_that_are_for_other_cases_are_told_before_the_one_that_is_left():
    option = {"_channels": ["basic"]}
    here, _ = explanations(options=(option, option))
    assert [one.name for one in here.channels_not_taken] == ["cma", "mpt_wire_tcp", "mpt_uv"]
    assert {one.reason for one in here.channels_not_taken} == {"the option _channels leaves it out"}


def test_a_worker_on_another_network_is_told():
    reason = network.why_impossible()
    if reason:
        pytest.skip(reason)
    with network.Hosts() as hosts:
        store = f"tcp://{hosts.ADDRESSES[0][0]}:29500"
        found = explanations(prepare=hosts.entrances(), init_method=store)
    for each in found:
        assert (each.transport, each.channel) == ("wire_tcp", "cma")
        shared = only(each.transports_not_taken)
        assert shared.name == "wire_shm"
        assert shared.reason.startswith("the two workers are in different network namespaces (net:[")
        assert "--network=host" in shared.remedy


@needs_root
def test_a_ptrace_scope_that_is_too_strict_is_told_on_both_sides():
    strict = functools.partial(machine_faults.restrict_tracing, 2)
    here, there = explanations(prepare=[strict, nothing])
    assert here.channel == there.channel == "basic"
    assert here.channels_not_taken[0].reason == "Yama's ptrace_scope is 2"
    assert there.channels_not_taken[0].reason == "it does not work for the other worker: Yama's ptrace_scope is 2"
    for found in (here, there):
        assert found.channels_not_taken[0].name == "cma"
        assert found.channels_not_taken[0].remedy == "set it to 1 or less: sysctl kernel.yama.ptrace_scope=1"
        assert found.transports_not_taken == ()
    # Behind it is what goes with other transports, or has to be named.
    assert [(one.name, one.reason) for one in here.channels_not_taken[1:]] == [
        ("mpt_wire_tcp", "it is used only where it is named"),
        ("mpt_uv", "it needs the transport 'uv', which is not used"),
    ]


@needs_numbers
@pytest.mark.parametrize(
    "call, kind, name, reason",
    [
        ("process_vm_readv", "channels_not_taken", "cma", "process_vm_readv: Operation not permitted"),
        ("memfd_create", "transports_not_taken", "wire_shm", "Operation not permitted"),
    ],
)
def test_a_denied_system_call_is_told_on_both_sides(call, kind, name, reason):
    here, there = explanations(prepare=[functools.partial(machine_faults.deny, call), nothing])
    own, peers = getattr(here, kind)[0], getattr(there, kind)[0]
    assert own.name == peers.name == name
    assert reason in own.reason and "seccomp profile" in own.remedy
    assert peers.reason == f"it does not work for the other worker: {own.reason}"
    assert peers.remedy == own.remedy
