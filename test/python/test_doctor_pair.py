"""The command doctor between two machines: what it measures, and that each fault between them is found and mended."""

import os
import re
import struct
import time

import doctors
import pytest
import torch.distributed as dist
from doctors import Server, examine, run
from group import HostedStore, free_port
from network import Hosts
from processes import wait_until
from torchwire.doctor import interfaces, pair
from torchwire.doctor import server as server_module

LOCAL = ("--host", "127.0.0.1")
FAR = Hosts.ADDRESSES[0][1]
PORT = 29500  # nothing else lives in the namespaces
CREDENTIALS_MAGIC = 0x54575754

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("TORCHWIRE_SECRET_FILE", *interfaces.VARIABLES):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def secret(tmp_path):
    """Writes a file with a secret; returns its path."""

    def write(name, text):
        path = tmp_path / name
        path.touch(mode=0o600)
        path.write_text(text * 8)
        return path

    return write


def store_of(server):
    host, port = server.place.split(":")
    return dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False)


def start_measuring(server, *arguments):
    """The first client, once it measures."""
    client = doctors.start(server.place, *arguments)
    store = store_of(server)
    wait_until(lambda: store.check([pair.step_key(1, 1)]))
    return client


def check_measured(result, ways):
    assert result.status == 0, result.output + result.errors
    assert [name for name in result.checks if name.startswith("wire_")] == ways
    for name in ways:
        figures = result[name]["figures"]
        assert f"{figures['transport']}, {figures['channel']}" == name
        assert 0 < figures["p50"] <= figures["p99"] < 1
        assert figures["bytes_per_second"] > 1e6 and figures["size"] >= 1 << 20


def from_near(hosts, place, *arguments):
    return examine(place, *arguments, fault=hosts.entrances()[0])


# ---- what is measured ----


@pytest.mark.long
def test_each_way_on_one_host_is_measured_for_one_client_after_the_other():
    with Server(*LOCAL) as server:
        clients = [doctors.start(server.place, "--json") for _ in (1, 2)]
        for result in map(doctors.finish, clients):
            check_measured(result, ["wire_shm, cma", "wire_shm, basic", "wire_tcp, basic", "wire_tcp, mpt_wire_tcp"])
            assert result["calls"]["figures"]["transport"] == "wire_shm"
            assert result["calls"]["figures"]["size"] == 64 << 20
        assert [server.line(), server.line()] == ["client 1: 5 measurements", "client 2: 5 measurements"]
        assert server.interrupt() == 0


@pytest.mark.long
def test_each_way_across_hosts_is_measured(hosts):
    with Server("--once", fault=hosts.entrances()[1]) as server:
        assert server.place.startswith(f"{FAR}:")  # the first interface's
        result = from_near(hosts, server.place)
        check_measured(result, ["wire_tcp, basic", "wire_tcp, mpt_wire_tcp"])
        assert result["calls"]["figures"]["transport"] == "wire_tcp"
        assert "encrypted (" in result["calls"]["found"] and result["calls"]["figures"]["encryption"]
        assert server.wait() == 0


@pytest.mark.long
def test_a_pair_may_meet_by_ipv6(hosts):
    with Server("--once", "--host", Hosts.V6_ADDRESSES[1], fault=hosts.entrances()[1]) as server:
        assert server.place.startswith(f"[{Hosts.V6_ADDRESSES[1]}]:")
        check_measured(from_near(hosts, server.place), ["wire_tcp, basic", "wire_tcp, mpt_wire_tcp"])


# ---- secrets and versions ----


@pytest.mark.long
def test_a_wrong_secret_is_found_and_copying_the_file_helps(secret):
    here, there = secret("here", "mine"), secret("there", "theirs")
    with Server(*LOCAL, "--secret-file", there) as server:
        for arguments in (["--secret-file", here], []):
            wrong = examine(server.place, *arguments)
            assert wrong.status == 1 and wrong.failed() == ["calls"]
            assert "group secret" in wrong["calls"]["found"]
            assert wrong["calls"]["remedy"].startswith("copy the secret's file from one machine to the other")
        here.write_bytes(there.read_bytes())
        assert examine(server.place, "--secret-file", here).status == 0


def test_a_secret_that_cannot_be_read_ends_it_at_once(tmp_path):
    missing = tmp_path / "missing"
    assert examine("127.0.0.1:1", "--secret-file", missing).failed() == ["secret"]
    server = run("serve", "--secret-file", missing)
    assert server.status == 1 and "cannot be read" in server.output


@pytest.fixture
def other_version(tmp_path):
    """What makes a process announce other versions than are installed."""

    def environment(assignment):
        (tmp_path / "sitecustomize.py").write_text(f"import torch, torchwire\n{assignment}\n")
        return {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}

    return environment


@pytest.mark.long
def test_another_torch_is_found_and_the_same_one_helps(other_version):
    port = free_port()
    with Server(*LOCAL, "--port", port, environment=other_version("torch.__version__ = '1.0.0+cpu'")) as server:
        wrong = examine(server.place)
        assert wrong.status == 1 and wrong.failed() == ["versions"]
        assert wrong["versions"]["found"].startswith("torch 1.0.0+cpu runs there, ")
        assert wrong["versions"]["remedy"] == "install the same torch on both machines"
    with Server(*LOCAL, "--port", port) as server:
        assert examine(server.place).status == 0


@pytest.mark.long
def test_another_torchwire_that_speaks_the_same_protocol_is_warned_of(other_version):
    with Server(*LOCAL, environment=other_version("torchwire.__version__ = '0.0.1'")) as server:
        found = examine(server.place)
    assert found.status == 0 and found["versions"]["status"] == "warning"
    assert found["versions"]["remedy"] == "install the same torchwire on both machines"


@pytest.mark.long
def test_another_protocol_is_found():
    with Server(*LOCAL) as server:
        # As a worker of another version leaves them, which began the group of the first client.
        credentials = struct.pack("<II", CREDENTIALS_MAGIC, 99)
        store_of(server).set(f"{pair.group_prefix(1, 0)}/rpc_prefix_0/torchwire/credentials", credentials)
        wrong = examine(server.place)
        assert wrong.status == 1 and wrong.failed() == ["calls"]
        assert "speak torchwire protocol 99" in wrong["calls"]["found"]
        assert wrong["calls"]["remedy"] == "install the same torchwire on both machines"
        assert examine(server.place).status == 0


# ---- the network ----


def test_a_server_that_is_not_there_is_found():
    place = f"127.0.0.1:{free_port()}"
    found = examine(place)
    assert found.status == 1 and found["server"]["found"] == f"nobody listens at {place}"
    assert found["server"]["remedy"].startswith("start `python -m torchwire doctor serve` there")


def test_a_store_of_something_else_is_found():
    store = HostedStore()
    found = examine(store.init_method.removeprefix("tcp://"))
    assert found.status == 1 and "it is the store of something else" in found["server"]["found"]


def test_an_address_that_this_machine_does_not_have_is_a_sentence():
    found = run("serve", "--host", "203.0.113.1")
    assert found.status == 1 and "serve: cannot listen: Cannot assign requested address" in found.errors
    assert len(found.errors.splitlines()) == 1


@pytest.mark.long
def test_an_interface_that_is_down_is_found_and_its_remedy_helps(hosts):
    with Server("--port", PORT, fault=hosts.entrances()[1]) as server:
        hosts.ip(0, "link", "set", "net0", "down")
        found = from_near(hosts, server.place)
        hosts.ip(0, "link", "set", "net0", "up")
        assert found.status == 1 and found["server"]["found"].startswith(f"there is no way to {FAR}:{PORT}: ")
        assert found["server"]["remedy"].startswith("bring up the interface and the route to it")
        hosts.ip(0, "address", "replace", f"{Hosts.V6_ADDRESSES[0]}/64", "dev", "net0", "nodad")  # it went with it
        assert from_near(hosts, server.place).status == 0


@pytest.mark.long
def test_a_blocked_port_is_found_and_opening_it_helps(hosts):
    with Server("--port", PORT, fault=hosts.entrances()[1]) as server:
        rule = ("ipproto", "tcp", "sport", str(PORT), "blackhole")  # what comes from the port is dropped
        hosts.ip(1, "rule", "add", *rule)
        try:
            found = from_near(hosts, server.place)
        finally:
            hosts.ip(1, "rule", "delete", *rule)
        assert found.status == 1 and found["server"]["found"] == f"{FAR}:{PORT} does not answer within 3 s"
        assert found["server"]["remedy"].startswith("let this TCP port through all firewalls")
        assert from_near(hosts, server.place).status == 0


@pytest.mark.long
def test_blocked_ports_of_workers_are_found_and_opening_them_helps(hosts):
    with Server("--port", PORT, fault=hosts.entrances()[1]) as server:
        rule = ("ipproto", "tcp", "sport", "32768-60999", "blackhole")  # all but the server's
        hosts.ip(1, "rule", "add", *rule)
        try:
            found = from_near(hosts, server.place)
        finally:
            hosts.ip(1, "rule", "delete", *rule)
        assert found.status == 1 and found.failed() == ["calls"]
        assert re.search(f"at wire_tcp://{FAR}:[0-9]+, has not answered a call within", found["calls"]["found"])
        assert found["calls"]["remedy"].startswith("let all TCP ports through between the two machines")
        assert from_near(hosts, server.place).status == 0


# ---- who talks nonsense, or dies ----


@pytest.mark.parametrize(
    "way",
    [
        "{not json",
        '["wire_tcp", "basic", "of a later version"]',
        "1",
        "[" * 100_000,
        b"\xff",
        '["uv", "basic"]',  # who has no secret could have calls run
    ],
    ids=["no JSON", "too long", "no list", "too deep", "no text", "a transport that lets strangers in"],
)
def test_a_client_that_asks_for_what_is_not_known_costs_only_its_own_turn(way):
    said = []
    server = server_module.Server("127.0.0.1", 0, None, said.append)
    store = dist.TCPStore(*server.place, is_master=False, wait_for_workers=False)
    for client, asked in enumerate((way, pair.DONE), 1):
        store.add(pair.CLIENTS, 1)
        store.set(pair.step_key(client, 0), asked)
    assert not server.serve_one() and server.serve_one()
    assert said == [
        "client 1: it asks for what this version does not know: install the same torchwire on both machines",
        "client 2: 0 measurements",
    ]


def test_a_client_that_asks_for_ever_has_its_turn_only(monkeypatch):
    said, measured = [], []
    server = server_module.Server("127.0.0.1", 0, None, said.append)
    monkeypatch.setattr(server_module.child, "run", lambda *arguments, **_: measured.append(arguments))
    store = dist.TCPStore(*server.place, is_master=False, wait_for_workers=False)
    store.add(pair.CLIENTS, 1)
    for step in range(100):
        store.set(pair.step_key(1, step), pair.DEFAULT_WAY.encode())
    assert not server.serve_one()
    assert said == ["client 1: it asks for more than the 5 measurements that there are"] and len(measured) == 5


@pytest.mark.parametrize("card", ["[1, 2, 3, 4]", '["1", "2", "3"]', "7", "{}", "[" * 100_000])
def test_what_is_no_card_is_said(card):
    with pytest.raises((ValueError, TypeError, RecursionError)):
        pair.decode_card(card.encode())


def test_a_count_of_clients_that_is_no_number_is_put_right():
    said = []
    server = server_module.Server("127.0.0.1", 0, None, said.append)
    store = dist.TCPStore(*server.place, is_master=False, wait_for_workers=False)
    store.set(pair.CLIENTS, "abc")
    assert store.get(pair.CLIENTS) == b"abc"  # a set alone is not waited for
    assert server._clients() == 0
    assert server._clients() == 0  # once what the one before has set is there
    store.add(pair.CLIENTS, 1)
    store.set(pair.step_key(1, 0), pair.DONE)
    assert server.serve_one()
    assert said == ["client 1: 0 measurements"]


@pytest.mark.long
def test_a_client_that_dies_while_it_is_measured_is_not_missed():
    with Server(*LOCAL) as server:
        client = start_measuring(server)
        doctors.kill(client)
        client.communicate()
        assert examine(server.place).status == 0
        assert server.line().startswith("client 1: ")
        assert server.line() == "client 2: 5 measurements"


@pytest.mark.long
def test_a_client_that_never_says_what_it_wants_is_not_waited_for():
    with Server(*LOCAL) as server:
        assert store_of(server).add(pair.CLIENTS, 1) == 1
        assert examine(server.place).status == 0
        assert server.line() == f"client 1: it has said nothing for {pair.SILENCE:g} s"


@pytest.mark.long
def test_a_client_that_stands_still_costs_the_server_its_turn_only():
    with Server(*LOCAL) as server:
        store = store_of(server)
        store.add(pair.CLIENTS, 1)
        store.set(pair.step_key(1, 0), pair.DEFAULT_WAY.encode())  # and never comes to the group
        assert examine(server.place).status == 0
        assert server.line() == f"client 1: no result within {pair.MEMBER_LIMIT:g} s"


@pytest.mark.long
def test_a_server_that_dies_is_found_in_time():
    with Server(*LOCAL) as server:
        client = start_measuring(server, "--json")
    found = doctors.finish(client)
    assert found.status == 1 and len(found.failed()) == 1
    assert f"nobody listens at {server.place} any more" in found[found.failed()[0]]["found"]


@pytest.mark.long
def test_a_server_that_is_stopped_is_found_in_time_and_its_remedy_helps():
    with Server(*LOCAL) as server:
        began = time.monotonic()
        with server.stopped():
            found = examine(server.place)
        assert found.status == 1 and found.failed() == ["server"]
        assert found["server"]["found"].endswith(
            "takes connections, but does not answer as a doctor: no result within 6 s"
        )
        assert "kill -CONT" in found["server"]["remedy"]
        assert time.monotonic() - began < 60  # most of it Python's and torch's start
        assert examine(server.place).status == 0


@pytest.mark.long
def test_a_server_that_is_stopped_while_it_measures_is_found_in_time():
    with Server(*LOCAL) as server:
        client = start_measuring(server, "--json")
        with server.stopped():
            found = doctors.finish(client)
    assert found.status == 1 and len(found.failed()) == 1
    assert found[found.failed()[0]]["remedy"]
