"""Processes that connect where a worker listens, and do not belong to its group.

What they say is made after backend/transport/authentication.cpp; recorded_handshake finds out whether it still fits.
"""

import collections
import contextlib
import errno
import hashlib
import hmac
import itertools
import os
import random
import socket
import struct
import tempfile

from repetition import Repetition

# Magic, version, medium, lane, group id, addressee, sealing, ephemeral key.
GREETING = struct.Struct("<4sHBBQ16sB7x32s")
KEY_OF_CHALLENGE = slice(8, 40)
CHALLENGE_SIZE = 40
PROOF_SIZE = 32
AUTH_RESULT_SIZE = 33
MEDIA = {socket.AF_UNIX: 1, socket.AF_INET: 2}
WELCOME, WRONG_PROOF, BAD_MEMORY = 0, 6, 7

_IP_BIND_ADDRESS_NO_PORT = 24  # the port is chosen by connect, which knows where to
_MAX_OPEN = 64  # connections of one storm, beside the silent ones
_MAX_SILENT = 400  # more than a worker lets into the handshake at a time


def tcp(port):
    """The endpoint of this port of 127.0.0.1."""
    return socket.AF_INET, ("127.0.0.1", port)


def unix(name):
    return socket.AF_UNIX, name


def greeting(endpoint, group_id, public_key):
    family, address = endpoint
    text = "{}:{}".format(*address) if family == socket.AF_INET else address.removeprefix("\0")
    addressee = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return GREETING.pack(b"TWIR", 2, MEDIA[family], 0, group_id, addressee, 0, public_key)


def _x25519(secret, point):
    """RFC 7748, section 5."""
    prime = 2**255 - 19
    scalar = int.from_bytes(secret, "little") & ~7 & ~(1 << 255) | 1 << 254
    x1 = int.from_bytes(point, "little") & ~(1 << 255)
    x2, z2, x3, z3, swapped = 1, 0, x1, 1, 0
    for bit in reversed(range(255)):
        wants = scalar >> bit & 1
        if wants != swapped:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swapped = wants
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb, aa, bb = d * a, c * b, a * a, b * b
        x3, z3 = (da + cb) ** 2 % prime, x1 * (da - cb) ** 2 % prime
        x2, z2 = aa * bb % prime, (aa - bb) * (aa + 121665 * (aa - bb)) % prime
    if swapped:
        x2, z2 = x3, z3
    return (x2 * pow(z2, prime - 2, prime) % prime).to_bytes(32, "little")


def recorded_handshake(endpoint, group_id, secret):
    """All that a worker of the group says in a handshake, which takes place: the proof holds."""
    with socket.socket(endpoint[0]) as connection:
        connection.settimeout(60)
        connection.connect(endpoint[1])
        ephemeral = os.urandom(32)
        said = greeting(endpoint, group_id, _x25519(ephemeral, (9).to_bytes(32, "little")))
        connection.sendall(said)
        challenge = connection.recv(CHALLENGE_SIZE, socket.MSG_WAITALL)
        key = _hmac(secret, b"torchwire transport 2\0" + struct.pack("<Q", group_id))
        agreed = _x25519(ephemeral, challenge[KEY_OF_CHALLENGE])
        session = _hmac(key, b"session\0" + agreed + said + challenge)
        proof = _hmac(session, b"dialling side\0")
        with tempfile.TemporaryFile() as no_memory_file:
            if endpoint[0] == socket.AF_UNIX:
                socket.send_fds(connection, [proof], [no_memory_file.fileno()])
            else:
                connection.sendall(proof)
            auth_result = connection.recv(AUTH_RESULT_SIZE, socket.MSG_WAITALL)
        # wire_shm does not look at the memory before the proof has held.
        assert auth_result[0] == (BAD_MEMORY if endpoint[0] == socket.AF_UNIX else WELCOME), auth_result
        return said + proof


def _hmac(key, message):
    return hmac.new(key, message, hashlib.sha256).digest()


class Storm(Repetition):
    """Connects to an endpoint again and again. `recorded`: a whole handshake.

    A seed makes what is said, and how a connection ends, repeatable; nothing waits for an answer.
    """

    def __init__(self, endpoint, recorded, seed):
        super().__init__()
        self._family, self._address = endpoint
        self._recorded = recorded
        self._greeting = recorded[: GREETING.size]
        self._random = random.Random(seed)
        # A port of the dialing side stays taken for a while, so 100,000 connections need more than one address.
        self._sources = itertools.cycle(f"127.0.0.{number}" for number in range(2, 12))
        self._files = [tempfile.TemporaryFile(), socket.socket(socket.AF_UNIX)]  # to send along
        self._let_in = 0
        self._open = collections.deque()
        self._silent = collections.deque()

    def outcome(self):
        """How many connections there were, and how many of them were let in."""
        return self.done(), self._let_in

    def end(self):
        for connection in [*self._open, *self._silent]:
            self._end(connection)

    def step(self):
        connection = self._connect()
        words = self._random.choice(_WORDS)(self, self._random)
        with contextlib.suppress(BlockingIOError, ConnectionError):  # it has closed already, or does not listen
            self._say(connection, words)
        if self._random.random() < 0.1:
            self._silent.append(connection)
            if len(self._silent) > _MAX_SILENT:
                self._end(self._silent.popleft())
        else:
            self._open.append(connection)
            if len(self._open) > _MAX_OPEN:
                self._end(self._open.popleft())

    def _connect(self):
        connection = socket.socket(self._family)
        if self._family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
            connection.bind((next(self._sources), 0))
        connection.connect(self._address)
        return connection

    def _say(self, connection, words):
        if self._family == socket.AF_INET or self._random.random() < 0.5:
            connection.send(words, socket.MSG_DONTWAIT)
            return
        # Files come along, perhaps only with what follows the greeting.
        bare = self._random.choice([0, GREETING.size]) if len(words) > GREETING.size else 0
        if bare:
            connection.send(words[:bare], socket.MSG_DONTWAIT)
        files = [file.fileno() for file in self._files] * self._random.choice([1, 1, 1, 100])
        try:
            socket.send_fds(connection, [words[bare:] or b"!"], files, socket.MSG_DONTWAIT)
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise

    def _end(self, connection):
        way = self._random.randrange(4)
        with contextlib.suppress(OSError), connection:  # which may be over already
            if way == 0:  # a reset
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif way == 1:
                connection.shutdown(socket.SHUT_WR)
            if way != 0:
                answer = connection.recv(4096, socket.MSG_DONTWAIT)
                if len(answer) > CHALLENGE_SIZE and answer[CHALLENGE_SIZE] == WELCOME:
                    self._let_in += 1

    # ---- what it says ----

    def _nothing(self, _):
        return b""

    def _random_bytes(self, random):
        return random.randbytes(int(10 ** random.uniform(0, 4.5)))

    def _part_of_a_greeting(self, random):
        return self._greeting[: random.randrange(GREETING.size)]

    def _proof_by_guess(self, random):
        return self._greeting + random.randbytes(PROOF_SIZE)

    def _part_of_a_proof(self, random):
        return self._recorded[: random.randrange(GREETING.size, len(self._recorded))]

    def _replay(self, _):
        return self._recorded

    def _replay_and_more(self, random):
        return self._recorded + random.randbytes(1000)

    def _mutation(self, random):
        words = bytearray(self._recorded)
        for _ in range(random.randint(1, 4)):
            words[random.randrange(len(words))] = random.randrange(256)
        return bytes(words)

    def _mutated_head(self, random):
        """The magic, the version, the medium, the lane or the group."""
        words = bytearray(self._recorded)
        words[random.randrange(16)] ^= 1 << random.randrange(8)
        return bytes(words)

    def _shifted(self, random):
        at = random.randrange(len(self._recorded))
        return self._recorded[:at] + random.randbytes(random.randint(1, 8)) + self._recorded[at:]


_WORDS = [
    Storm._nothing,
    Storm._random_bytes,
    Storm._part_of_a_greeting,
    Storm._proof_by_guess,
    Storm._part_of_a_proof,
    Storm._replay,
    Storm._replay_and_more,
    Storm._mutation,
    Storm._mutated_head,
    Storm._shifted,
]
