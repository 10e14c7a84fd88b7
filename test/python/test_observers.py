"""top and dump over the network: who is no member of a group finds it in its store, and asks its workers."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys

import observed
import pytest
import torch.distributed as dist
import torch.distributed.rpc as rpc
from group import Group, HostedStore, free_port
from network import Hosts, why_impossible
from processes import run_module, wait_until
from repetition import Repetition, begin, stop
from sockets import open_files
from torchwire import _C
from torchwire.doctor.reachability import place_of
from torchwire.observe.remote_group import RemoteGroup
from torchwire.top import sources

SECRET = "this is sixteen bytes and more"


@pytest.fixture(autouse=True)
def no_secret_in_the_environment(monkeypatch):
    monkeypatch.delenv("TORCHWIRE_SECRET_FILE", raising=False)


@pytest.fixture
def secret_file(tmp_path):
    def write(secret=SECRET):
        path = tmp_path / "secret"
        path.write_text(secret)
        path.chmod(0o600)
        return path

    return write


@contextlib.contextmanager
def running(size, **options):
    """The group, and where its store is."""
    store = HostedStore()
    with Group(size, store.environment) as group:
        group.init(store.init_method, **options)
        yield group, store.init_method.removeprefix("tcp://")
        if all(worker.is_alive() for worker in group):
            group.shut_down()
        else:
            group.kill()


def torchwire_command(command, *arguments, **options):
    return run_module("torchwire", command, *arguments, **options)


def rows_of(result):
    assert result.returncode == 0, result.stderr
    return {row["worker"]: row for row in json.loads(result.stdout)["workers"]}


def top_json(store, *arguments):
    return rows_of(torchwire_command("top", "--once", "--json", "--store", store, *arguments))


def remote(store, *secrets):
    return RemoteGroup(place_of(store), lambda: secrets)


def connections(group):
    """How many sockets each worker has open."""
    return [sum(file.startswith("socket:") for file in open_files(worker.pid)) for worker in group]


def await_connections(group, expected):
    wait_until(lambda: all(now <= then for now, then in zip(connections(group), expected, strict=True)))


class Calls(Repetition):
    """An error of a call ends it, and the test."""

    def __init__(self, to):
        super().__init__()
        self._to = to

    def step(self):
        assert rpc.rpc_sync(self._to, observed.add, (1, 2)) == 3


class Observer:
    """A connection to a worker as far as the test takes it."""

    def __init__(self, store, worker=0, question="status", secrets=()):
        client = dist.TCPStore(*place_of(store), is_master=False, wait_for_workers=False)
        keys = {key.rpartition("/")[2]: key for key in client.list_keys()}
        access = _C.GroupAccess(client.get(keys["credentials"]), secrets)
        name = keys["roster"][keys["roster"].index("torchwire/") :]
        address = access.read_roster(name, client.get(keys["roster"]))[worker]["address"].removeprefix("wire_tcp://")
        self._handshake = _C.ObserverHandshake(access, address, question, "if wanted")
        self.socket = socket.create_connection(place_of(address), 60)

    def greet(self):
        self.socket.sendall(self._handshake.greet())

    def prove(self):
        challenge = self.socket.recv(_C.CHALLENGE_SIZE, socket.MSG_WAITALL)
        self.socket.sendall(self._handshake.answer_challenge(challenge))

    def is_let_in(self):
        self._handshake.judge(self.socket.recv(_C.AUTH_RESULT_SIZE, socket.MSG_WAITALL))
        return True

    def ask(self):
        """All but to read the answer."""
        self.greet()
        self.prove()
        return self.is_let_in()

    def close(self):
        self.socket.close()


# ---- who is shown -------------------------------------------------------------------------------


def test_all_workers_of_a_group_are_shown_by_its_store_alone():
    with running(2) as (group, store):
        assert group[0].run(observed.call_many, "worker1", 5) == 5
        rows = top_json(store)
        assert {name: (row["rank"], row["pid"], row["problem"]) for name, row in rows.items()} == {
            f"worker{rank}": (rank, group[rank].pid, "") for rank in (0, 1)
        }
        table = torchwire_command("top", "--once", "--store", f"tcp://{store}", "--filter", "1")
        assert "1 worker of the group in the store at" in table.stdout and "worker0" not in table.stdout


def test_the_secret_of_the_workers_is_asked_for(secret_file):
    with running(2, secret=SECRET) as (group, store):
        assert set(top_json(store, "--secret", str(secret_file()))) == {"worker0", "worker1"}
        for secret, text in ((None, "has a secret of its own: name the file"), ("x" * 20, "has another secret")):
            file = ["--secret-file", str(secret_file(secret))] if secret else []
            result = torchwire_command("top", "--once", "--store", store, *file)
            assert result.returncode == 1 and text in result.stderr and "--secret-file" in result.stderr
            assert "Traceback" not in result.stderr and SECRET not in result.stderr


def test_a_secret_where_the_group_has_none(secret_file):
    with running(1) as (_, store):
        result = torchwire_command("top", "--once", "--store", store, "--secret-file", str(secret_file()))
        assert result.returncode == 1 and "has no secret of its own: leave out --secret-file" in result.stderr


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.skipif(why_impossible() is not None, reason="needs network namespaces")
def test_eight_workers_with_one_that_is_dead_one_that_is_stopped_one_that_is_slow_and_one_that_is_cut_off():
    with Hosts() as hosts:
        near, far = hosts.entrances()
        store = f"{Hosts.ADDRESSES[0][0]}:29500"
        with Group(8, {"TP_SOCKET_IFNAME": "net1"}, [near] * 7 + [far]) as group:
            group.init(f"tcp://{store}", session_timeout=60)
            for worker in group:
                worker.run(observed.call_many, "worker7" if worker is group[0] else "worker0", 5)
            everybody = top_between(hosts, store)
            assert len(everybody) == 8 and not any(row["problem"] for row in everybody.values())
            group[5].kill()
            group[1].run(observed.begin_nap, "worker2", 120)
            group[6].signal(signal.SIGSTOP)
            hosts.plug(1, "down")
            wait_until(lambda: top_between(hosts, store)["worker0"]["peers_lost"] >= 2)
            rows = top_between(hosts, store)
            assert list(rows) == [f"worker{rank}" for rank in range(8)]
            well = {name for name, row in rows.items() if not row["problem"]}
            assert well == {f"worker{rank}" for rank in (0, 1, 2, 3, 4)}
            assert "has ended" in rows["worker5"]["problem"] or "is dead" in rows["worker5"]["problem"]
            assert "does not answer within 3 s: it is stopped" in rows["worker6"]["problem"]
            assert "cannot be reached" in rows["worker7"]["problem"] or "in the way" in rows["worker7"]["problem"]
            assert rows["worker1"]["in_flight"] == 1 and rows["worker2"]["active"] == 1
            group[6].signal(signal.SIGCONT)
            hosts.plug(1, "up")
            wait_until(lambda: not top_between(hosts, store)["worker6"]["problem"])
            wait_until(lambda: not top_between(hosts, store)["worker7"]["problem"])
            group.kill()


def top_between(hosts, store):
    """From the first of two hosts."""
    command = ["ip", "netns", "exec", hosts[0], sys.executable, "-m", "torchwire", "top", "--once", "--json"]
    result = subprocess.run([*command, "--store", store], capture_output=True, text=True, timeout=60)
    return rows_of(result)


def test_a_killed_worker_is_a_row_that_says_so():
    with running(3) as (group, store):
        group[2].kill()
        rows = top_json(store)
        assert not rows["worker0"]["problem"] and not rows["worker1"]["problem"]
        assert "has ended" in rows["worker2"]["problem"] or "is dead" in rows["worker2"]["problem"]
        assert rows["worker2"]["rank"] == 2
        for worker in (group[0], group[1]):
            worker.kill()
        nobody = torchwire_command("top", "--once", "--json", "--store", store)
        assert nobody.returncode == 1 and "has ended" in nobody.stdout


def test_the_last_group_of_a_store_is_shown():
    with running(2) as (group, store):
        group.shut_down()
        group.init(f"tcp://{store}")
        assert not any(row["problem"] for row in top_json(store).values())


def test_a_group_whose_store_has_gone_is_seen_by_who_has_found_it_before():
    port = free_port()
    with Group(3) as group:
        group.init(f"tcp://127.0.0.1:{port}")
        found = remote(f"127.0.0.1:{port}")
        assert len(found.workers()) == 3
        group[0].kill()  # which hosts the store
        workers = found.workers()
        assert found.store_problem and [worker.name for worker in workers] == ["worker0", "worker1", "worker2"]
        assert found.ask(workers[1], "status", 30)["worker"]["name"] == "worker1"
        with pytest.raises(RuntimeError, match="has ended|is dead"):
            found.ask(workers[0], "status", 30)
        group.kill()


def test_workers_that_cannot_be_asked_over_the_network_say_so():
    with running(1, _transports=["wire_shm"]) as (_, store):
        result = torchwire_command("top", "--once", "--json", "--store", store)
        assert result.returncode == 1
        assert "it listens on wire_shm alone; run this on its host, without --store" in result.stdout


def test_a_worker_of_another_version_is_a_row_that_says_so():
    with running(2) as (group, store):
        group[1].run(observed.speak_another_version)
        well, other = sources.of_remote(remote(store))()
        assert well.status and not other.status
        assert other.name == "worker1" and "gives no answer that torchwire" in other.error
        dumped = torchwire_command("dump", "--store", store)
        assert dumped.returncode == 1 and "worker 'worker1' (rank 1) gives no answer that torchwire" in dumped.stderr
        assert "worker 'worker0' (rank 0, process" in dumped.stdout and "Traceback" not in dumped.stderr


# ---- the other command ----


def test_dump_prints_the_calls_and_stacks_of_all_workers():
    with running(3) as (group, store):
        group[0].run(observed.begin_nap, "worker1", 60)
        wait_until(lambda: remote(store).ask(remote(store).workers()[1], "status", 30)["counts"]["requests_active"])
        group[2].kill()
        result = torchwire_command("dump", "--store", store)
        assert result.returncode == 1 and "worker 'worker2' (rank 2)" in result.stderr
        assert "worker 'worker0' (rank 0, process" in result.stdout and "nap_in_a_handler" in result.stdout
        one = torchwire_command("dump", "--store", store, "--filter", "worker1")
        assert one.returncode == 0 and "worker 'worker0' (rank 0, process" not in one.stdout
        group.kill()


def test_dump_of_this_host(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    nobody = torchwire_command("dump")
    assert nobody.returncode == 1 and "there is no such worker" in nobody.stderr
    with running(2):
        result = torchwire_command("dump", "--filter", "1$")
        assert result.returncode == 0, result.stderr
        assert "worker 'worker1' (rank 1" in result.stdout and "worker 'worker0' (rank 0, p" not in result.stdout


# ---- bad input ----


@pytest.mark.parametrize("command", ["top", "dump"])
@pytest.mark.parametrize(
    "arguments, status, text",
    [
        (["--store", "somewhere"], 2, "--store: 'somewhere' names no port"),
        (["--store", "127.0.0.1:1", "--secret-file", "/nosuch"], 2, "'/nosuch' cannot be read"),
        (["--secret-file", "/nosuch"], 2, "--secret-file goes with --store only"),
        (["--store", "127.0.0.1:1"], 1, "nobody listens at 127.0.0.1:1; start the store"),
        (["--store", "no-such-host.invalid:29500"], 1, "the name 'no-such-host.invalid' leads nowhere"),
    ],
)
def test_bad_usage(command, arguments, status, text):
    result = torchwire_command(command, *arguments)
    assert result.returncode == status
    assert text in result.stderr and "Traceback" not in result.stderr


def test_the_group_of_a_process_or_that_of_a_store():
    result = torchwire_command("top", "--once", "--store", "127.0.0.1:1", "--group", "1")
    assert result.returncode == 2 and "not allowed with argument" in result.stderr


def test_a_store_without_a_group():
    store = HostedStore()
    store.set("somebody/else", b"x")
    with pytest.raises(RuntimeError, match="holds no group of torchwire's: name the store of init_method"):
        remote(store.init_method.removeprefix("tcp://"))


def test_a_store_of_another_version():
    store = HostedStore()
    store.set("rpc_prefix_0/torchwire/roster", b"TWWR" + (999).to_bytes(4, "little"))
    store.set("rpc_prefix_0/torchwire/credentials", b"TWWT" + (999).to_bytes(4, "little"))
    with pytest.raises(RuntimeError, match="speak torchwire protocol 999, this one speaks .*: install the same"):
        remote(store.init_method.removeprefix("tcp://"))


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_port_that_is_no_store(greeting):
    stranger = (
        "import socket, sys\nserver = socket.create_server(('127.0.0.1', 0))\n"
        "print(server.getsockname()[1], flush=True)\nkept = []\n"
        "while True:\n kept.append(server.accept()[0]); kept[-1].sendall(sys.argv[1].encode())"
    )
    process = subprocess.Popen([sys.executable, "-c", stranger, greeting], stdout=subprocess.PIPE, text=True)
    try:
        port = int(process.stdout.readline())
        result = torchwire_command("top", "--once", "--store", f"127.0.0.1:{port}", limit=40)
        assert result.returncode == 1 and "does not answer as a store" in result.stderr
        assert "Traceback" not in result.stderr
    finally:
        process.kill()
        process.communicate()


def test_an_address_that_another_group_has_taken_over():
    with running(1) as (_, store), running(1) as (_, others):
        found = remote(store)
        (theirs,) = remote(others).workers()
        with pytest.raises(RuntimeError, match="does not let in observers: it belongs to another RPC group"):
            found.ask(theirs, "status", 30)


def test_a_worker_of_an_earlier_version_has_no_such_lane():
    """As a worker says it that knows nothing of observers: to a lane that nobody listens on."""
    with running(1) as (_, store):
        observer = Observer(store)
        observer.close()
        challenge = b"TWIR" + (1).to_bytes(2, "little") + bytes([5, 0]) + os.urandom(32)
        with pytest.raises(RuntimeError, match="it answers no observers: it shuts down, or runs an earlier torchwire"):
            observer._handshake.greet()
            observer._handshake.answer_challenge(challenge)


# ---- what it costs the group ----


@pytest.mark.long
def test_a_thousand_observations_under_load():
    with running(3) as (group, store):
        found = remote(store)
        for worker in group:  # one after the other, so that the links are there when connections are counted
            worker.run(observed.call_many, f"worker{(int(worker.name[-1]) + 1) % 3}", 20)
        before = connections(group)
        for worker in group:
            worker.run(begin, Calls, f"worker{(int(worker.name[-1]) + 1) % 3}")
        for _ in range(1000):
            for worker in found.workers():
                assert found.ask(worker, "status", 60)["worker"]["rank"] == worker.rank
        assert min(group.all(stop)) > 1000
        await_connections(group, before)


def test_observers_that_stall_or_die_at_any_stage_cost_the_group_nothing():
    stages = [
        lambda observer: None,
        Observer.greet,
        lambda observer: (observer.greet(), observer.prove()),
        Observer.ask,
        lambda observer: (observer.ask(), observer.socket.sendall(b"more than was asked for")),
    ]
    with running(2) as (group, store):
        group[0].run(observed.call_many, "worker1", 20)
        group[1].run(observed.call_many, "worker0", 20)
        remote(store).ask(remote(store).workers()[0], "status", 60)
        before = connections(group)
        group[1].run(begin, Calls, "worker0")
        stalled = []
        for stage in stages:
            for end in (None, Observer.close, reset):
                observer = Observer(store)
                stage(observer)
                if end:
                    end(observer)
                else:
                    stalled.append(observer)
        workers = remote(store).workers()
        assert remote(store).ask(workers[0], "status", 60)["worker"]["name"] == "worker0"
        await_connections(group, before)  # that its patience is over, with those that have stalled
        for observer in stalled:
            observer.close()
        assert group[1].run(stop) > 0


def reset(observer):
    observer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    observer.close()


def test_an_observer_that_is_killed_while_it_waits_for_an_answer(tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[2]); import test_observers\n"
        "observer = test_observers.Observer(sys.argv[1], question='dump'); observer.ask(); print('asked', flush=True)\n"
        "import time; time.sleep(600)"
    )
    with running(2) as (group, store):
        group[0].run(observed.call_many, "worker1", 20)
        remote(store).ask(remote(store).workers()[0], "dump", 60)
        before = connections(group)
        group[0].run(begin, Calls, "worker1")
        for _ in range(3):
            folder = os.path.dirname(__file__)
            process = subprocess.Popen(
                [sys.executable, "-c", program, store, folder], stdout=subprocess.PIPE, text=True
            )
            assert process.stdout.readline() == "asked\n"
            process.kill()
            process.communicate()
        assert group[0].run(stop) > 0
        await_connections(group, before)


def test_more_observers_than_a_worker_answers_at_a_time():
    with running(1) as (group, store):
        stalled = [Observer(store) for _ in range(30)]
        found = remote(store)
        (worker,) = found.workers()
        group[0].signal(signal.SIGSTOP)  # so that all of them come at once
        for observer in stalled:
            observer.greet()
        group[0].signal(signal.SIGCONT)
        for observer in stalled:
            observer.prove()
            assert observer.is_let_in()
        answers = [observer.socket.makefile("rb").read() for observer in stalled]
        assert all(answer[0] == 0 or b"answers as many observers as it may" in answer for answer in answers)
        assert any(answer[0] == 0 for answer in answers)
        assert found.ask(worker, "status", 60)["worker"]["name"] == "worker0"
