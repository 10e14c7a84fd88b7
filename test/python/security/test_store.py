"""Who can write to the rendezvous store, but does not know the group's secret."""

import contextlib
import datetime
import re

import pytest
import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
from group import Group, HostedStore, errors, init
from processes import wait_until
from proxy import Proxy

SECRET = "a secret of thirty-two bytes or more, at least"
ROSTER = "torchwire/roster"
DECISION = "torchwire/startup_decision"

# ---- what the workers run ----


def echo(value):
    return value


def call(to):
    return rpc.rpc_sync(to, echo, (torch.ones(3),), timeout=20).sum().item()


# ---- the attacker ----


class Listening(Proxy):
    """Keeps all that it passes on."""

    def __init__(self, to):
        self.heard = bytearray()
        super().__init__(to)

    def connected(self):
        def hear(data):
            self.heard += data
            return data

        return hear, hear


class Attacker:
    """A client of the store."""

    def __init__(self, store):
        host, port = re.fullmatch(r"tcp://(.*):(\d+)", store.init_method).groups()
        timeout = datetime.timedelta(seconds=20)
        self._store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timeout)

    def key(self, name):
        """With all that PyTorch puts before it."""
        [key] = [key for key in self._store.list_keys() if key.endswith(name)]
        return key

    def has(self, name):
        return any(key.endswith(name) for key in self._store.list_keys())

    def get(self, name):
        return self._store.get(self.key(name))

    def set(self, name, value):
        self._store.set(self.key(name), value)

    def set_like(self, name, like, value):
        self._store.set(self.key(like).removesuffix(like) + name, value)

    def add_like(self, name, like, amount):
        self._store.add(self.key(like).removesuffix(like) + name, amount)


@pytest.fixture
def store():
    return HostedStore()


@pytest.fixture
def group(store):
    with Group(2, store.environment) as group:
        yield group


def init_first(group, store, **options):
    """init_rpc of the first worker is under way, and has entered itself; returns what is pending, and the attacker."""
    pending = [group[0].start(init, store.init_method, world_size=2, secret=SECRET, **options)]
    attacker = Attacker(store)
    wait_until(lambda: attacker.has(ROSTER))
    return pending, attacker


# ---- tests ----


def test_a_worker_that_is_led_to_another_address_does_not_talk_there(group, store):
    options = {"_transports": ["wire_tcp"], "bind_address": "127.0.0.1"}
    pending, attacker = init_first(group, store, **options)
    roster = attacker.get(ROSTER)
    place = re.search(rb"wire_tcp://127\.0\.0\.1:(\d{5})", roster)
    with contextlib.closing(Listening(int(place[1]))) as relay:
        attacker.set(ROSTER, roster.replace(place[1], b"%05d" % relay.port))
        pending.append(group[1].start(init, store.init_method, world_size=2, secret=SECRET, **options))
        for error in errors(pending):
            assert "was not written by a worker of this group" in str(error)
        assert not relay.heard


@pytest.mark.parametrize("decision", [b"ok", b"nobody may start\x1b[31m"])
def test_a_decision_to_start_counts_of_members_alone(group, store, decision):
    pending, attacker = init_first(group, store)
    attacker.set_like(DECISION, ROSTER, decision)
    pending.append(group[1].start(init, store.init_method, world_size=2, secret=SECRET))
    for error in errors(pending):
        expected = "does not know the group's secret has written" if decision == b"ok" else r"nobody may start\\x1b"
        assert re.search(expected, str(error))
        assert "\x1b" not in str(error)


@pytest.mark.parametrize("forge", ["count", "sums", "numbers", "failure"])
def test_nothing_that_is_forged_ends_a_shutdown_early(group, store, forge):
    group.all(init, store.init_method, world_size=2, secret=SECRET)
    attacker = Attacker(store)
    for name in ("reach0", "join1", "join2"):
        round_key = f"torchwire/shutdown/{name}"
        if forge == "count":
            attacker.add_like(f"{round_key}/arrived", ROSTER, 1)
        elif forge == "sums":
            attacker.set_like(f"{round_key}/all", ROSTER, bytes(24))
        elif forge == "numbers":
            attacker.set_like(f"{round_key}/of/1", ROSTER, bytes(24))
        else:
            attacker.set_like("torchwire/shutdown/failed", ROSTER, b"it is over")
    pending = group[0].start(rpc.shutdown)
    wait_until(lambda: attacker.has("torchwire/shutdown/begun/of/0"))
    assert group[1].run(call, "worker0") == 3  # it has not ended
    group[1].run(rpc.shutdown)
    pending.result()


def test_who_has_another_secret_is_told_so_and_so_are_the_others(group, store):
    pending, _ = init_first(group, store)
    pending.append(group[1].start(init, store.init_method, world_size=2, secret="another secret of thirty-two bytes"))
    for error in errors(pending):
        assert re.search(r"worker 'worker1' \(rank 1\) was started with another group secret", str(error))
