"""Who can write to the rendezvous store, and would have a worker that lives declared dead."""

import hmac
import os
import struct

import pytest
import torch.distributed.rpc as rpc
import torchwire
from group import Group, HostedStore, init, results
from processes import wait_until
from test_store import ROSTER, SECRET, Attacker, call

OTHER_SECRET = "another secret of thirty-two bytes or more"
CREDENTIALS = "torchwire/credentials"
INFO = {"TORCHWIRE_LOG_LEVEL": "info"}
NOT_WRITTEN_BY_A_MEMBER = "was not written by a worker of this group, or is an old one"

# Layouts: docs/protocol.md, "Keys in the store".
HEAD_OF_ENTRY = struct.Struct("<4sQ")  # magic, version
GROUP_ID = struct.Struct("<8xQ")  # in credentials
HEAD_OF_DEATHS = struct.Struct("<4sI")  # magic, count
PROOF_SIZE = 32

# ---- what the workers run ----


def states():
    return {peer["name"]: peer["state"] for peer in torchwire.peers()}


# ---- the list of the dead ----


def text(value):
    return struct.pack("<I", len(value)) + value


def value_of(entry):
    return entry[HEAD_OF_ENTRY.size : -PROOF_SIZE]


def group_id(attacker):
    return GROUP_ID.unpack_from(attacker.get(CREDENTIALS))[0]


def key_of_deaths(attacker, generation=""):
    """Generation: of a static group that has begun in the place of another."""
    return f"torchwire/{generation}deaths/{group_id(attacker)}"


def incarnation_of(attacker, rank):
    record = text(f"worker{rank}".encode()) + struct.pack("<i", rank)
    roster = value_of(attacker.get(ROSTER))
    return struct.unpack_from("<Q", roster, roster.index(record) + len(record))[0]


def digest(key, message):
    return hmac.digest(key, message, "sha256")


def proof_by(secret, attacker, name, content):
    key = digest(secret.encode(), b"torchwire transport 2\0" + struct.pack("<Q", group_id(attacker)))
    return digest(key, b"store entry\0" + struct.pack("<Q", len(name)) + name.encode() + content)


def declare_dead(attacker, rank, secret):
    """Writes such a list, proven by the secret; without one, by a guess."""
    name = key_of_deaths(attacker)
    death = struct.pack("<iQ", rank, incarnation_of(attacker, rank)) + text(b"somebody says so")
    content = HEAD_OF_ENTRY.pack(b"TWSE", 1) + HEAD_OF_DEATHS.pack(b"TWRD", 1) + death
    proof = proof_by(secret, attacker, name, content) if secret else os.urandom(PROOF_SIZE)
    attacker.set_like(name, ROSTER, content + proof)


def expect_together(one, other):
    """Two workers that the rest of the group has left, and that are called by each other."""
    assert one.run(call, other.name) == other.run(call, one.name) == 3
    assert "dead" not in (one.run(states)[other.name], other.run(states)[one.name])


# ---- tests ----


@pytest.fixture
def store():
    return HostedStore()


@pytest.mark.parametrize("secret", [None, OTHER_SECRET, SECRET], ids=["a guess", "another secret", "the secret"])
def test_a_worker_is_declared_dead_by_who_knows_the_secret_alone(store, secret):
    with Group(3, {**store.environment, **INFO}) as group:
        group.all(init, store.init_method, world_size=3, secret=SECRET)
        declare_dead(Attacker(store), 1, secret)
        group[2].kill()  # upon which the others look at the list
        if secret == SECRET:  # so that the list is one that would be read
            wait_until(lambda: set(group[1].run(states).values()) == {"dead"})
            group.kill()
            return
        for worker in group[:2]:
            wait_until(lambda worker=worker: NOT_WRITTEN_BY_A_MEMBER in worker.output())
        expect_together(*group[:2])
        results([worker.start(rpc.shutdown) for worker in group[:2]])


def test_a_list_that_is_written_once_more_declares_nobody_dead_who_has_come_since(store):
    with Group(3, {**store.environment, **INFO}) as group, Group(3, store.environment) as newcomers:
        for worker in group:
            worker.run(init, store.init_method, secret=SECRET)
        attacker = Attacker(store)
        deaths = key_of_deaths(attacker)
        group[1].kill()
        wait_until(lambda: attacker.has(deaths))
        first = attacker.get(deaths)
        group[2].kill()
        wait_until(lambda: attacker.get(deaths) != first)
        for newcomer in newcomers[1:]:
            newcomer.run(init, store.init_method, secret=SECRET)
            assert group[0].run(call, newcomer.name) == 3
        attacker.set(deaths, first)
        newcomers[2].kill()
        wait_until(lambda: NOT_WRITTEN_BY_A_MEMBER in group[0].output())  # it has seen the second
        wait_until(lambda: attacker.get(deaths) != first)  # by the newcomer, which has not, and goes by this one
        expect_together(group[0], newcomers[1])
        results([worker.start(rpc.shutdown) for worker in (group[0], newcomers[1])])


def test_a_list_of_a_former_group_does_not_count_in_one_that_has_the_same_store_and_secret(store):
    with Group(3, store.environment) as former:
        former.all(init, store.init_method, world_size=3, secret=SECRET)
        attacker = Attacker(store)
        former[2].kill()
        wait_until(lambda: attacker.has(key_of_deaths(attacker)))
        former.kill()
    with Group(3, {**store.environment, **INFO}) as group:
        group.all(init, store.init_method, world_size=3, secret=SECRET)
        attacker.set_like(key_of_deaths(attacker, "1/"), ROSTER, attacker.get(key_of_deaths(attacker)))
        group[2].kill()
        for worker in group[:2]:
            wait_until(lambda worker=worker: NOT_WRITTEN_BY_A_MEMBER in worker.output())
        expect_together(*group[:2])
        results([worker.start(rpc.shutdown) for worker in group[:2]])
