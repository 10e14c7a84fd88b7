"""What becomes of calls while somebody on the path changes what passes."""

import contextlib
import functools
import os
import random
import threading

import pytest
import torch
import torch.distributed.rpc as rpc
from proxy import Proxy, group_behind

SAID_BY_DIALER, SAID_BY_ACCEPTER = 104, 73  # bytes of the handshake
HANDSHAKE = 200  # bytes, more than either side says in it
RECORD_HEADER = 5  # bytes; the last two say how many follow
# A lost record is noticed after half of SESSION_TIMEOUT, a message that does not go on after 1.8 s (half of KEEPALIVE
# would be less).
SESSION_TIMEOUT, KEEPALIVE = 6, 2  # seconds
pytestmark = pytest.mark.slow

CHANGES = int(os.environ.get("TORCHWIRE_TEST_CHANGES", "20"))
SEED = int(os.environ.get("TORCHWIRE_TEST_SEED", "0"))


class Tamperer(Proxy):
    """Changes a piece now and then, where one is due."""

    def __init__(self, to, seed):
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._due = 0
        self._in_handshake = False
        self.changes = 0
        super().__init__(to)

    def one_more(self, in_handshake=False):
        """Of the pieces to come one is changed: of what a connection begins with, or of what comes behind that."""
        with self._lock:
            self._due += 1
            self._in_handshake = in_handshake

    def no_more(self):
        with self._lock:
            self._due = 0

    def connected(self):
        return self._side(), self._side()

    def _side(self):
        said = 0
        before = b""

        def hear(data):
            nonlocal said, before
            said += len(data)
            with self._lock:
                if self._due == 0 or (said < HANDSHAKE + len(data)) is not self._in_handshake:
                    before = data
                    return data
                self._due -= 1
                self.changes += 1
                return self._changed(data, before)

        return hear

    def _changed(self, data, before):
        at = self._random.randrange(len(data))
        way = self._random.choice(["flip", "leave out", "insert", "repeat", "swap", "put before"])
        if way == "flip":
            changed = bytearray(data)
            changed[at] ^= 1 << self._random.randrange(8)
            return bytes(changed)
        if way == "leave out":
            return data[:at] + data[at + 1 + self._random.randrange(64) :]
        if way == "insert":
            return data[:at] + self._random.randbytes(1 + self._random.randrange(64)) + data[at:]
        if way == "repeat":
            return data + data
        if way == "swap":
            return data[at:] + data[:at] if at else data[1:]
        return before + data if before else data[1:]


class RecordTamperer(Tamperer):
    """Repeats a record as a whole, or brings one of another connection; leaves one out, or puts it behind the next."""

    def __init__(self, to, seed):
        self._foreign = b""
        super().__init__(to, seed)

    def connected(self):
        return self._side_of(SAID_BY_DIALER), self._side_of(SAID_BY_ACCEPTER)

    def _side_of(self, handshake):
        plain = handshake
        unread = held = b""

        def hear(data):
            nonlocal plain, unread, held
            passed_on, unread = data[:plain], unread + data[plain:]
            plain -= len(passed_on)
            while record := unread[: self._record_size(unread)]:
                unread = unread[len(record) :]
                with self._lock:
                    becomes, held = self._becomes(record, held)
                passed_on += becomes
            return passed_on

        return hear

    @staticmethod
    def _record_size(unread):
        size = RECORD_HEADER + int.from_bytes(unread[3:RECORD_HEADER], "big")
        return size if RECORD_HEADER < size <= len(unread) else 0

    def _becomes(self, record, held):
        """What is passed on for it, and what is held back until the next one."""
        foreign, self._foreign = self._foreign, record
        if self._due == 0 or held:
            return record + held, b""
        self._due -= 1
        self.changes += 1
        way = self._random.choice(["leave out", "repeat", "bring another", "put behind the next"])
        if way == "put behind the next":
            return b"", record
        return {"leave out": b"", "repeat": record + record, "bring another": foreign + record}[way], b""


# ---- what the workers run ----


def echo(value):
    return value


def calls(to, size, count):
    """So many calls, one after another, each of which has to come back right."""
    for number in range(count):
        value = torch.full((size,), number % 251, dtype=torch.uint8)
        returned = rpc.rpc_sync(to, echo, (value,), timeout=60)
        assert torch.equal(returned, value), f"call {number} came back wrong"


# ---- tests ----


@contextlib.contextmanager
def tampered_pair(seed, kind=Tamperer):
    """Two workers, each of which the other reaches by way of a tamperer of that kind."""
    kinds = [functools.partial(kind, seed=f"{SEED} {seed} {rank}") for rank in range(2)]
    with group_behind(*kinds, session_timeout=SESSION_TIMEOUT, keepalive_interval=KEEPALIVE) as (group, _, tamperers):
        yield group, tamperers
        for tamperer in tamperers:
            tamperer.no_more()
        group.shut_down()


@pytest.mark.parametrize("kind", [Tamperer, RecordTamperer])
@pytest.mark.parametrize("size", [10, 100_000, 3_000_000])
def test_no_call_comes_back_wrong_or_not_at_all(size, kind):
    with tampered_pair(size, kind) as (group, tamperers):
        for _ in range(CHANGES):
            for tamperer in tamperers:  # of which one is in use
                tamperer.no_more()
                tamperer.one_more()
            group[0].run(calls, "worker1", size, 3)
        assert sum(tamperer.changes for tamperer in tamperers) >= CHANGES


def test_a_handshake_that_is_changed_harms_no_call():
    with tampered_pair(1) as (group, tamperers):
        for _ in range(CHANGES):
            for tamperer in tamperers:
                tamperer.no_more()
                tamperer.one_more(in_handshake=True)
                tamperer.cut()
            group[0].run(calls, "worker1", 10, 3)
        assert sum(tamperer.changes for tamperer in tamperers) >= CHANGES
