"""Cables that are cut, and bad ones, under load: what sessions make good, and what is known where they cannot."""

import collections
import functools
import os
import time

import pytest
import torch
import torch.distributed.rpc as rpc
import torchwire
from bad_cable import BadCable
from group import Group
from network import Hosts
from processes import LIMIT, wait_until
from repetition import Repetition, begin, count, stop
from test_sessions import Calls, runs

STORE = f"tcp://{Hosts.ADDRESSES[0][0]}:29500"
BACK = 1.0  # seconds after which calls go on as before
MOVED = 5.0  # the same, on a busy machine, where a worker has to be found by the other at another address
SIZES = (1, 1000, 100_000)

pytestmark = [pytest.mark.slow, pytest.mark.alone]

# ---- what the workers run ----

_begun = collections.Counter()


def note(number, tensor):
    _begun[number] += 1
    return tensor + 1


def begun():
    return dict(_begun)


class CallsThatMayFail(Repetition):
    """Notes of each call whether it was answered, or else what its error says."""

    def __init__(self, to):
        super().__init__()
        self._to = to
        self._outcomes = []

    def step(self):
        first = len(self._outcomes)
        futures = [
            rpc.rpc_async(self._to, note, (first + i, torch.ones(size)), timeout=60) for i, size in enumerate(SIZES)
        ]
        for future in futures:
            try:
                future.wait()
                self._outcomes.append(("answered", ""))
            except torchwire.RpcError as error:
                self._outcomes.append((error.executed, str(error)))
                time.sleep(0.01)

    def outcome(self):
        return self._outcomes


# ---- the networks ----


@pytest.fixture
def cable(hosts):
    """The cable that is not the store's: cable("down") and cable("up")."""
    yield functools.partial(hosts.plug, 1)
    hosts.plug(1, "up")


def running_across(hosts, interface):
    return Group(2, {"TP_SOCKET_IFNAME": interface}, hosts.entrances())


def init(group, **options):
    # Namespaces of one machine could exchange large tensors past the cable.
    group.init(STORE, _channels=["mpt_wire_tcp"], **options)


def begin_on_both(group, kind):
    """Returns once each of the two has made some calls to the other."""
    group[0].run(begin, kind, "worker1")
    group[1].run(begin, kind, "worker0")
    wait_until(lambda: min(group.all(count)) >= 3)


def await_steps(group, number, limit=LIMIT):
    """Returns once each has made so many steps more."""
    done = group.all(count)
    wait_until(lambda: all(now >= then + number for now, then in zip(group.all(count), done, strict=True)), limit)


def stop_and_expect_one_run_each(group):
    """Returns how many calls each has made, all of which the other has run once."""
    made = group.all(stop)
    for callee, number in zip(group, reversed(made), strict=True):
        assert callee.run(runs) == dict.fromkeys(range(number), 1)
    return made


def rate(group, seconds=1.0):
    before = group.all(count)
    time.sleep(seconds)
    return [(now - then) / seconds for now, then in zip(group.all(count), before, strict=True)]


# ---- cuts ----


@pytest.mark.parametrize(
    "seconds", [pytest.param(1, marks=pytest.mark.long), 3, pytest.param(8, marks=pytest.mark.long)]
)
def test_a_cut_within_a_session_costs_time_only(hosts, cable, seconds):
    with running_across(hosts, "net1") as group:
        init(group)
        begin_on_both(group, Calls)
        usual = rate(group)
        cable("down")
        time.sleep(seconds)
        cable("up")
        healed = time.monotonic()
        await_steps(group, 1)
        back = time.monotonic() - healed
        time.sleep(max(0.0, healed + BACK - time.monotonic()))
        after = rate(group)
        print(f"cut for {seconds} s: back after {back:.2f} s, steps/s before {usual}, after {after}")
        assert back < BACK
        assert sum(after) > sum(usual) / 2
        stop_and_expect_one_run_each(group)
        group.shut_down()


@pytest.mark.parametrize("session, seconds", [(3, 6), pytest.param(10, 15, marks=pytest.mark.long)])
def test_after_a_longer_cut_each_error_says_what_is_known(hosts, cable, session, seconds):
    with running_across(hosts, "net1") as group:
        init(group, session_timeout=session)
        begin_on_both(group, CallsThatMayFail)
        cable("down")
        time.sleep(seconds)
        cable("up")
        expect_that_each_error_says_what_is_known(group)


def expect_that_each_error_says_what_is_known(group):
    await_steps(group, 6)
    outcomes = group.all(stop)
    for callee, of_caller in zip(group, reversed(outcomes), strict=True):
        check(of_caller, callee.run(begun))
    # They could not talk to each other, so one is dead for the group, and both say which.
    first, second = group.all(error_of_call)
    assert {first, second} == {"WorkerDied", "WorkerUnreachable"}
    group.all(rpc.shutdown, False)


def error_of_call():
    """Of a call to the other worker, once it is known what has become of it."""
    other = "worker1" if rpc.get_worker_info().name == "worker0" else "worker0"
    wait_until(lambda: torchwire.peers()[0]["state"] == "dead")
    try:
        rpc.rpc_sync(other, begun)
    except torchwire.RpcError as error:
        return type(error).__name__
    return None


def check(outcomes, ran):
    print(collections.Counter(kind for kind, _ in outcomes))
    assert len(outcomes) > collections.Counter(kind for kind, _ in outcomes)["answered"]
    for number, (kind, text) in enumerate(outcomes):
        expected = {"answered": (1,), "yes": (1,), "no": (0,), "unknown": (0, 1)}[kind]
        assert ran.get(number, 0) in expected, (number, kind, text)


# ---- a bad cable ----

needs_tun = pytest.mark.skipif(not os.path.exists("/dev/net/tun"), reason="needs /dev/net/tun")


@needs_tun
def test_nothing_fails_over_a_cable_that_loses_delays_and_reorders(hosts):
    with BadCable(hosts, loss=0.05, delay=0.05, reorder=0.1) as cable, running_across(hosts, "net2") as group:
        init(group)
        begin_on_both(group, Calls)
        made = stop_and_expect_one_run_each(group)
        print(f"{made} calls; packets: {cable.passed} passed, {cable.lost} lost, {cable.reordered} reordered")
        assert cable.lost and cable.reordered
        group.shut_down()


@needs_tun
@pytest.mark.parametrize("deaf", [0, 1])
def test_a_cut_of_one_way_within_a_session_costs_time_only(hosts, deaf):
    with BadCable(hosts) as cable, running_across(hosts, "net2") as group:
        init(group)
        begin_on_both(group, Calls)
        cable.cut(to=deaf)
        time.sleep(3)
        cable.heal()
        await_steps(group, 1, BACK)
        stop_and_expect_one_run_each(group)
        assert cable.lost
        group.shut_down()


@needs_tun
@pytest.mark.parametrize("deaf", [0, pytest.param(1, marks=pytest.mark.long)])
def test_after_a_longer_cut_of_one_way_each_error_says_what_is_known(hosts, deaf):
    with BadCable(hosts) as cable, running_across(hosts, "net2") as group:
        init(group, session_timeout=3)
        begin_on_both(group, CallsThatMayFail)
        cable.cut(to=deaf)
        time.sleep(6)
        cable.heal()
        expect_that_each_error_says_what_is_known(group)


@needs_tun
@pytest.mark.parametrize("both", [True, False], ids=["calls both ways", "calls one way"])
def test_calls_go_on_where_large_packets_are_lost(hosts, both):
    with BadCable(hosts, mtu=1300) as cable, running_across(hosts, "net2") as group:
        init(group, keepalive_interval=4)
        if both:
            begin_on_both(group, Calls)
            stop_and_expect_one_run_each(group)
        else:
            group[0].run(begin, Calls, "worker1")
            wait_until(lambda: group[0].run(count) >= 3)
            group[0].run(stop)
        assert cable.too_long
        group.shut_down()


def move(hosts, side, old, new):
    hosts.ip(side, "address", "del", f"{old}/24", "dev", "net1")
    hosts.ip(side, "address", "add", f"{new}/24", "dev", "net1")


@pytest.fixture
def moving(hosts):
    """moving(side) gives the host another address on the cable that is not the store's."""
    moved = []

    def to_another(side):
        old, new = Hosts.ADDRESSES[1][side], f"10.78.0.{side + 11}"
        move(hosts, side, old, new)
        moved.append((side, new, old))

    yield to_another
    for back in moved:
        move(hosts, *back)


@pytest.mark.parametrize("side", [0, 1])
def test_calls_both_ways_go_on_after_a_change_of_a_workers_own_address(hosts, moving, side):
    with running_across(hosts, "net1") as group:
        init(group)
        begin_on_both(group, Calls)
        moving(side)
        await_steps(group, 3, MOVED)
        stop_and_expect_one_run_each(group)
        group.shut_down()


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("caller", [0, 1])
def test_a_connection_that_rests_outlasts_a_change_of_a_workers_own_address(hosts, moving, side, caller):
    with running_across(hosts, "net1") as group:
        init(group)
        callee = f"worker{1 - caller}"
        group[caller].run(rpc.rpc_sync, callee, torch.add, (torch.ones(1), 1))
        moving(side)
        begun = time.monotonic()
        group[caller].run(rpc.rpc_sync, callee, torch.add, (torch.ones(1), 1))
        assert time.monotonic() - begun < MOVED
        group.shut_down()
