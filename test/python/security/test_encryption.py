"""What can be read on the network between two workers: two namespaces stand for two hosts."""

import contextlib
import pathlib
import re
import socket
import subprocess
import sys

import pytest
import torch
import torch.distributed.rpc as rpc
import torchwire
from group import Group, HostedStore, errors, init
from network import Hosts
from processes import WorkerError, wait_until
from torchwire.doctor.reachability import place_of
from torchwire.observe.remote_group import RemoteGroup

STORE = f"tcp://{Hosts.ADDRESSES[0][0]}:29500"
TEXT = "what nobody else is to read"
SECRET = "a secret of thirty-two bytes or more, at least"
PATTERN = b"ABCDEFGH" * 4
LAST = b"nothing comes behind this"

SNIFFER = """
import socket, sys
into = open(sys.argv[1], "wb", buffering=0)
listening = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # all protocols
listening.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
listening.bind(("net0", 0))
print("listening", flush=True)
while True:
    into.write(listening.recv(1 << 17))
"""

# ---- what the workers run ----


def echo(*values):
    return values


def exchange(to):
    tensor = torch.frombuffer(bytearray(PATTERN * 2048), dtype=torch.uint8)
    text, large, small = rpc.rpc_sync(to, echo, (TEXT, tensor, tensor[: len(PATTERN)]))
    return text == TEXT and torch.equal(large, tensor) and torch.equal(small, tensor[: len(PATTERN)])


def send_last():
    """On worker1's end of the cable, behind all that has been said there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.sendto(LAST, (Hosts.ADDRESSES[0][0], 9))


def encryption_to(worker):
    [peer] = [peer for peer in torchwire.peers() if peer["name"] == worker]
    return peer["encryption"], str(torchwire.explain(worker))


def status_of(worker):
    """As `python -m torchwire top --store` asks for it, from another host."""
    group = RemoteGroup(place_of(STORE.removeprefix("tcp://")))
    [remote] = [each for each in group.workers() if each.name == worker]
    return sorted(group.ask(remote, "status", 20))


# ---- the networks ----


@contextlib.contextmanager
def cable_of(hosts, folder):
    """The bytes that go over the cable meanwhile, once more and more of them can be asked for."""
    path = pathlib.Path(folder) / "cable"
    path.touch()
    command = ["ip", "netns", "exec", hosts[1], sys.executable, "-c", SNIFFER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sniffer:
        try:
            assert sniffer.stdout.readline() == "listening\n"
            yield path.read_bytes
        finally:
            sniffer.kill()


# ---- what is on the cable ----


@pytest.mark.parametrize(
    "options, encrypted",
    [({}, True), ({"secret": SECRET}, True), ({"encryption": True}, True), ({"encryption": False}, False)],
    ids=["by default", "with a secret of their own", "True", "False"],
)
def test_text_and_tensors_can_be_read_on_the_cable_without_encryption_alone(hosts, tmp_path, options, encrypted):
    log = {"TORCHWIRE_LOG_LEVEL": "info"}
    with cable_of(hosts, tmp_path) as seen, Group(2, log, hosts.entrances()) as group:
        group.all(init, STORE, world_size=2, **options)
        assert group[0].run(exchange, "worker1")
        group[1].run(send_last)
        wait_until(lambda: LAST in seen())
        cable = seen()
        assert (TEXT.encode() in cable) == (not encrypted)
        assert (PATTERN in cable) == (not encrypted)
        assert SECRET.encode() not in cable
        cipher, explained = group[0].run(encryption_to, "worker1")
        assert bool(cipher) == encrypted
        assert (f"wire_tcp, encrypted ({cipher})" in explained) == encrypted
        told = (
            f"connected to worker 'worker1' (rank 1) over wire_tcp, {f'encrypted ({cipher})' if encrypted else 'not'}"
        )
        wait_until(lambda: told in group[0].output())
        group.shut_down()


@pytest.mark.parametrize("encryption", ["auto", False])
def test_an_observers_answer_is_encrypted_as_the_workers_connections_are(hosts, tmp_path, encryption):
    with cable_of(hosts, tmp_path) as seen, Group(2, {}, hosts.entrances()) as group:
        group.all(init, STORE, world_size=2, encryption=encryption)
        assert "functions" in group[1].run(status_of, "worker0")
        group.shut_down()
        group[1].run(send_last)
        wait_until(lambda: LAST in seen())
        assert (b'"functions"' in seen()) == (encryption is False)


@pytest.mark.parametrize("options", [{"_transports": ["uv"]}, {"_channels": ["mpt_uv", "basic"]}], ids=["uv", "mpt_uv"])
def test_what_cannot_be_encrypted_does_not_leave_the_host_unless_that_is_asked_for(hosts, options):
    with Group(2, {}, hosts.machines()) as group:
        group.all(init, STORE, world_size=2, **options)
        with pytest.raises(WorkerError, match="it is on another host, and .* cannot be encrypted: leave it out of _"):
            group[0].run(exchange, "worker1")
        group.kill()
    with Group(2, {}, hosts.machines()) as group:
        group.all(init, STORE, world_size=2, encryption=False, **options)
        assert group[0].run(exchange, "worker1")
        group.shut_down()


def test_one_that_asks_for_encryption_within_a_host_has_it():
    store = HostedStore()
    with Group(2, store.environment) as group:
        pending = [
            group[0].start(init, store.init_method, world_size=2, _transports=["wire_tcp"], encryption=True),
            group[1].start(init, store.init_method, world_size=2, _transports=["wire_tcp"]),
        ]
        [one.result() for one in pending]
        assert group[1].run(exchange, "worker0")
        assert group[1].run(encryption_to, "worker0")[0]
        group.shut_down()


@pytest.mark.parametrize("others", [True, "auto"])
def test_workers_that_do_not_agree_are_told_so(others):
    store = HostedStore()
    with Group(2, store.environment) as group:
        pending = [
            group[0].start(init, store.init_method, world_size=2, encryption=False),
            group[1].start(init, store.init_method, world_size=2, encryption=others),
        ]
        for error in errors(pending):
            assert re.search(
                r"worker 'worker0' \(rank 0\) lets no connection be encrypted \(encryption=False\) but "
                r"worker 'worker1' \(rank 1\) does not: give all workers the same `encryption`",
                str(error),
            )


@pytest.mark.parametrize(
    "options, names",
    [
        ({"_transports": ["uv"]}, "_transports names 'uv'"),
        ({"_transports": ["wire_tcp", "shm"]}, "_transports names 'shm'"),
        ({"_channels": ["mpt_uv", "basic"]}, "_channels names 'mpt_uv'"),
        ({"nccl": True}, "nccl=True"),
    ],
)
def test_what_cannot_be_encrypted_is_refused_where_all_has_to_be(options, names):
    store = HostedStore()
    with Group(1, store.environment) as group:
        with pytest.raises(WorkerError, match=f"encryption=True, but {names}, which cannot be encrypted: leave it out"):
            group[0].run(init, store.init_method, world_size=1, encryption=True, **options)
