"""What somebody on the path makes of a handshake: another one than was offered, or one with another worker."""

import contextlib
import dataclasses
import socketserver
import threading
from collections.abc import Callable

import pytest
import torch
import torch.distributed.rpc as rpc
from processes import wait_until
from proxy import Proxy, group_behind

# Where things are in the two first messages: docs/protocol.md, "The handshake".
GREETING, CHALLENGE = 72, 40
SAID_BY_DIALER, SAID_BY_ACCEPTER = GREETING + 32, CHALLENGE + 33

ATTEMPTS = 4  # greetings and challenges under an attack, before it ends

# ---- what the workers run ----


def echo(value):
    return value


def call(to):
    return rpc.rpc_sync(to, echo, (torch.ones(3),), timeout=30).sum().item()


# ---- on the path ----


@dataclasses.dataclass
class Rewriting:
    """What becomes of the bytes from `begin` on of greetings, or of challenges."""

    begin: int
    become: Callable[[bytes], bytes]
    of_challenge: bool = False


def byte(value):
    return lambda before: bytes([value]) + before[1:]


def without(bits):
    return lambda before: bytes([before[0] & ~bits]) + before[1:]


def no_point(before):
    return bytes(32) + before[32:]


REWRITINGS = {
    "not encrypted": Rewriting(32, without(3)),
    "encrypted if the other wants it": Rewriting(32, byte(1 | 4)),
    "without AES": Rewriting(32, without(4)),
    "not encrypted, in the challenge": Rewriting(7, byte(0), of_challenge=True),
    "another cipher, in the challenge": Rewriting(7, byte(2), of_challenge=True),
    "an older version": Rewriting(4, byte(1)),
    "an older version, in the challenge": Rewriting(4, byte(1), of_challenge=True),
    "shared memory": Rewriting(6, byte(1)),
    "another lane": Rewriting(7, byte(1)),
    "a key by which all agree on the same": Rewriting(40, no_point),
    "such a key in the challenge": Rewriting(8, no_point, of_challenge=True),
}


@dataclasses.dataclass
class Counts:
    handshakes: int = 0
    after_handshake: int = 0


class Path(Proxy):
    """Leads connections where `to` says, and rewrites what they begin with.

    Counts, on connections since the attack began, handshakes that have begun and bytes that are said behind one.
    """

    def __init__(self, to):
        self.rewriting = None
        self.begin_attack()
        super().__init__(to)

    def lead(self, to):
        self._to = to

    def begin_attack(self):
        self.counts = Counts()

    def connected(self):
        return self._side(GREETING, SAID_BY_DIALER, False), self._side(CHALLENGE, SAID_BY_ACCEPTER, True)

    def _side(self, first, handshake, is_accepter):
        said = b""
        counts = self.counts
        rewriting = self.rewriting if self.rewriting and self.rewriting.of_challenge is is_accepter else None

        def hear(data):
            nonlocal said
            before, said = len(said), said + data
            counts.after_handshake += max(0, len(said) - max(before, handshake))
            counts.handshakes += before == 0
            if before >= first or rewriting is None:
                return data
            assert len(said) >= first, "the first message comes in one piece"
            return said[: rewriting.begin] + rewriting.become(said[rewriting.begin :])

        return hear


@contextlib.contextmanager
def echo_server():
    """Says to whoever connects what it says; gives the port."""

    class Echo(socketserver.BaseRequestHandler):
        def handle(self):
            with contextlib.suppress(OSError):
                while data := self.request.recv(1 << 16):
                    self.request.sendall(data)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture(scope="module")
def crossed():
    """Three workers, the ports on which they listen, and the paths by which the others reach them."""
    with group_behind(Path, Path, Path) as (group, ports, paths):
        for caller, callee in ((1, 0), (2, 0), (2, 1)):
            group[caller].run(call, f"worker{callee}")
        yield group, ports, paths
        group.shut_down()


@contextlib.contextmanager
def attack(crossed):
    """Connections are made anew under the attack that has been set up, and nothing is said on them behind a handshake.

    A call that begins under it ends right once it is over.
    """
    group, ports, paths = crossed
    for path in paths:
        path.begin_attack()
        path.cut()
    pending = group[1].start(call, "worker0")
    wait_until(lambda: sum(path.counts.handshakes for path in paths) >= ATTEMPTS)
    yield
    assert sum(path.counts.after_handshake for path in paths) == 0
    for path, port in zip(paths, ports):
        path.lead(port)
        path.rewriting = None
    assert pending.result() == 3
    assert group[0].run(call, "worker1") == 3


# ---- tests ----


@pytest.mark.parametrize("rewriting", REWRITINGS.values(), ids=REWRITINGS.keys())
def test_nobody_talks_two_workers_into_another_handshake(crossed, rewriting):
    for path in crossed[2]:
        path.rewriting = rewriting
    with attack(crossed):
        pass


@pytest.mark.parametrize("led_to", [(1, 2, 0), (2, 0, 1)], ids=["itself", "another member"])
def test_nobody_leads_a_worker_to_another_one(crossed, led_to):
    group, ports, paths = crossed
    for path, to in zip(paths, led_to):
        path.lead(ports[to])
    with attack(crossed):
        wait_until(lambda: any("was meant for another address" in worker.output() for worker in group))


def test_nobody_answers_a_worker_with_its_own_words(crossed):
    with echo_server() as port:
        for path in crossed[2]:
            path.lead(port)
        with attack(crossed):
            pass
