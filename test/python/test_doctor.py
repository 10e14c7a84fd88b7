"""The command doctor on one machine: it finds each fault that is made on purpose, and its remedy works."""

import contextlib
import functools
import os
import re
import socket
import subprocess
import sys
import threading

import doctors
import machine_faults
import pytest
import torch.distributed as dist
from doctors import examine, run
from group import HostedStore, free_port
from torchwire import command_line
from torchwire.doctor import check, interfaces, reachability, report, secret_check, store_check
from torchwire.doctor.reachability import Place

SECRET = "this is sixteen bytes and more\n"
VARIABLE = "TORCHWIRE_SECRET_FILE"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in (VARIABLE, *interfaces.VARIABLES, "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
needs_numbers = pytest.mark.skipif(machine_faults.NUMBERS is None, reason="the system calls' numbers are not known")


def entering(hosts, *others):
    """Makes a fault of being on the first host, and others."""

    def fault():
        hosts.entrances()[0]()
        for other in others:
            other()

    return fault


# ---- what is printed ----


def test_each_check_is_a_line_that_ends_in_its_remedy():
    checks = [
        check.ok("a", "fine"),
        check.warning("long name", "slow", "mend it"),
        check.failed("c", "gone", "find it"),
    ]
    assert report.as_table(checks).splitlines() == [
        "ok       a          fine",
        "warning  long name  slow; remedy: mend it",
        "failed   c          gone; remedy: find it",
        "1 ok, 1 warning, 1 failed",
    ]


def test_the_whole_machine_is_checked(tmp_path):
    result = run("--init-method", f"file://{tmp_path}/store")
    lines = result.output.splitlines()
    assert result.status == 0, result.output + result.errors
    assert lines[-1].endswith(" 0 failed") and not result.errors
    found = {line[9:].partition("  ")[0] for line in lines[:-1]}
    assert found == {
        *("torch", "memfd", "Unix sockets", "process_vm_readv", "threads", "interfaces", "loopback", "IPv6", "secret"),
        *("workers", "address", "open files", "store"),
    }
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["nowhere"], "HOST:PORT: 'nowhere' names no port"),
        (["host:99999"], "HOST:PORT: port 99999 in 'host:99999' is not between"),
        (["host:1", "--workers", "2"], "--workers does not go with host:1"),
        (["host:1", "--once"], "--once does not go with host:1"),
        (["--port", "1"], "--port does not go with checks of this machine"),
        (["serve", "--init-method", "env://"], "--init-method does not go with serve"),
        (["serve", "--json"], "--json does not go with serve"),
        (["--workers", "0"], "--workers is 0"),
        (["--init-method", "http://a"], "'http://a' does not begin with tcp://"),
        (["a..b:1"], "HOST:PORT: 'a..b' cannot be the name of a host"),
        (["serve", "--host", "a..b"], "--host: 'a..b' cannot be the name of a host"),
        (["serve", "--port", "65536"], "--port is 65536; it has to be from 0"),
        (["serve", "--port", "-1"], "--port is -1; it has to be from 0"),
    ],
)
def test_bad_usage_is_a_sentence_and_status_2(arguments, sentence, capsys):
    assert command_line.main(["doctor", *arguments]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    "url, sentence",
    [
        ("tcp://a", "'tcp://a' does not name a store"),
        ("tcp://a:b", "'tcp://a:b' does not name a store"),
        ("tcp://[::1", "'tcp://[::1' is not a URL"),
        ("tcp://a..b:1", "'a..b' cannot be the name of a host"),
    ],
)
def test_a_url_that_names_no_store_is_a_sentence(url, sentence):
    with pytest.raises(ValueError, match=f"^--init-method: {re.escape(sentence)}"):
        store_check.checks_of(url)


@pytest.mark.parametrize("text, place", [("host:1", Place("host", 1)), ("[::1]:29500", Place("::1", 29500))])
def test_a_place_is_written_as_it_is_read(text, place):
    assert reachability.place_of(text) == place
    assert str(place) == text


# ---- the machine ----


def test_too_few_open_files_are_found_and_raising_the_limit_helps():
    found = examine("--workers", "50", fault=functools.partial(machine_faults.limit_files, 128))
    assert found.status == 1 and found.failed() == ["open files"]
    assert "the limit is 128; a worker in a group of 50 needs" in found["open files"]["found"]
    needed = int(found["open files"]["remedy"].removeprefix("raise it before starting workers: ulimit -n "))
    mended = examine("--workers", "50", fault=functools.partial(machine_faults.limit_files, needed))
    assert mended.status == 0 and mended["open files"]["status"] == "ok"


def test_a_hard_limit_of_open_files_is_the_administrators():
    found = examine("--workers", "50", fault=functools.partial(machine_faults.limit_files, 128, 128))
    assert found.status == 1 and found.failed() == ["open files"]
    assert "have the administrator raise it" in found["open files"]["remedy"]


@needs_root
@pytest.mark.long
def test_a_ptrace_scope_that_is_too_strict_is_found_and_its_remedy_helps():
    found = examine(fault=functools.partial(machine_faults.restrict_tracing, 2))
    assert found["process_vm_readv"]["status"] == "warning"
    assert "Yama's ptrace_scope is 2" in found["process_vm_readv"]["found"]
    assert found["workers"]["status"] == "warning"  # torchwire itself sees it so
    assert "large tensors go by basic" in found["workers"]["found"]
    assert found["process_vm_readv"]["remedy"].startswith("set it to 1 or less: sysctl kernel.yama.ptrace_scope=1")
    mended = examine(fault=functools.partial(machine_faults.restrict_tracing, 0))
    assert "ptrace_scope is 0" in mended["process_vm_readv"]["found"]
    assert mended["process_vm_readv"]["status"] == mended["workers"]["status"] == "ok"


@needs_numbers
def test_a_denied_process_vm_readv_is_found():
    found = examine(fault=functools.partial(machine_faults.deny, "process_vm_readv"))
    assert found.status == 0
    assert "not permitted even for one's own memory" in found["process_vm_readv"]["found"]
    assert "seccomp" in found["process_vm_readv"]["remedy"]
    assert "large tensors go by basic" in found["workers"]["found"]


@needs_numbers
def test_a_denied_memfd_is_found():
    found = examine(fault=functools.partial(machine_faults.deny, "memfd_create"))
    assert found.status == 0 and found["memfd"]["status"] == "warning"
    assert "seccomp" in found["memfd"]["remedy"]
    assert "call each other by wire_tcp" in found["workers"]["found"]


@needs_numbers
def test_denied_unix_sockets_are_found():
    found = examine(fault=machine_faults.deny_unix_sockets)
    assert found.status == 0 and found["Unix sockets"]["status"] == "warning"
    assert "Operation not permitted, so workers on this host use wire_tcp" in found["Unix sockets"]["found"]
    assert "seccomp profile" in found["Unix sockets"]["remedy"]
    assert found["threads"]["status"] == "ok"  # tried in a child, though the fork server needs such a socket
    assert "call each other by wire_tcp" in found["workers"]["found"]


ULIMIT = re.compile(r"raise the limit of the user's processes, which is (\d+): ulimit -u (\d+)")


# ---- torch ----


@pytest.fixture
def other_torch(tmp_path):
    """Environment of processes in which another torch is installed, or which do what `text` says first."""

    def environment(text="import torch\ntorch.__version__ = '1.0.0'\n"):
        (tmp_path / "sitecustomize.py").write_text(text)
        return {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}

    return environment


WITHOUT_TORCHWIRE = {
    *("torch", "memfd", "Unix sockets", "process_vm_readv", "threads", "interfaces", "loopback", "IPv6", "secret"),
}


def test_a_torch_for_which_torchwire_was_not_built_is_a_line_and_the_rest_is_checked(other_torch):
    found = examine(environment=other_torch())
    assert found.status == 1 and not found.errors
    assert found.failed() == ["torch"] and set(found.checks) == WITHOUT_TORCHWIRE
    assert re.fullmatch(r"torchwire \S+ was built for torch \S+, but torch 1.0.0 is installed", found["torch"]["found"])
    assert found["torch"]["remedy"].endswith(": pip install --no-build-isolation .")
    assert found["process_vm_readv"]["found"].startswith("one process reads another")
    assert found["threads"]["found"] == "64 started in one process"


def test_a_torch_that_is_missing_is_a_line(without_torch):
    found = examine(environment=without_torch)
    assert found.status == 1 and not found.errors and found.failed() == ["torch"]
    assert found["torch"]["found"] == "torch is not installed for this Python"
    assert set(found.checks) == WITHOUT_TORCHWIRE


def test_an_extension_that_does_not_load_is_a_line(other_torch):
    found = run(environment=other_torch("import sys\nsys.modules['torchwire._C'] = None\n"))
    assert found.status == 1 and not found.errors
    line = found.output.splitlines()[0]
    assert re.fullmatch(r"failed +torch +torchwire's extension does not load: .*; remedy: reinstall it from .*", line)


@pytest.mark.parametrize("target", ["serve", "127.0.0.1:1"])
def test_a_pair_is_not_tried_without_torchwire(other_torch, target):
    found = run(target, environment=other_torch())
    assert found.status == 1 and not found.errors
    assert [line.split()[:2] for line in found.output.splitlines()[:-1]] == [["failed", "torch"], ["ok", "secret"]]


def test_other_commands_fail_as_they_did_without_torchwire(other_torch):
    result = subprocess.run(
        [sys.executable, "-m", "torchwire", "info"],
        env={**os.environ, **other_torch()},
        capture_output=True,
        text=True,
        timeout=doctors.LIMIT,
    )
    assert result.returncode == 1
    assert "but torch 1.0.0 is installed. Reinstall it" in result.stderr.splitlines()[-1]


# ---- threads: checked without torch, whose import takes longest, and whose own threads would count, too ----


@pytest.fixture
def without_torch(other_torch):
    return other_torch("import sys\nsys.modules['torch'] = None\n")


ULIMIT = re.compile(r"raise the limit of the user's processes, which is 40: ulimit -u (\d+)")
PIDS_MAX = re.compile(r"raise pids.max of the cgroup, which is 40, to (\d+) or more: TasksMax of the service, or .*")


@needs_root
def test_a_limit_of_the_users_threads_is_found_and_its_remedy_helps(without_torch):
    user = 64_000 + os.getpid() % 1000  # who has no other processes

    def threads_with(*limits):
        return examine(fault=functools.partial(machine_faults.limit_user, user, *limits), environment=without_torch)[
            "threads"
        ]

    found = threads_with(40, 10_000)
    assert found["status"] == "failed"
    assert re.fullmatch(r"only \d+ of 64 threads could be started in one process", found["found"])
    assert threads_with(int(ULIMIT.fullmatch(found["remedy"])[1]), 10_000)["status"] == "ok"
    assert threads_with(40)["remedy"].startswith("have the administrator raise the limit of the user's processes")


@pytest.mark.skipif(not machine_faults.may_make_cgroups(), reason="needs the right to make cgroups")
def test_a_cgroups_limit_of_threads_is_found_and_its_remedy_helps(without_torch):
    with machine_faults.Cgroup(40) as cgroup:
        found = examine(fault=cgroup.enter, environment=without_torch)["threads"]
        assert found["status"] == "failed"
        cgroup.raise_to(int(PIDS_MAX.fullmatch(found["remedy"])[1]))
        assert examine(fault=cgroup.enter, environment=without_torch)["threads"]["status"] == "ok"


@pytest.mark.skipif(not machine_faults.may_make_cgroups(), reason="needs the right to make cgroups")
def test_no_processes_at_all_are_a_line_with_a_remedy(without_torch):
    with machine_faults.Cgroup(1) as cgroup:
        found = examine(fault=cgroup.enter, environment=without_torch)["threads"]
    assert found["status"] == "failed" and "it could not be tried: no process could be started" in found["found"]
    assert "raise pids.max of the cgroup, which is 1, to" in found["remedy"]


# ---- the network ----


@pytest.mark.long
def test_an_interface_that_is_down_is_found_and_its_remedy_helps(hosts):
    at_first = entering(hosts)
    environment = {"TP_SOCKET_IFNAME": "net1"}
    hosts.ip(0, "link", "set", "net1", "down")
    found = examine(fault=at_first, environment=environment)
    assert found.status == 1 and "interfaces" in found.failed()
    assert "TP_SOCKET_IFNAME names net1 down (10.78.0.1" in found["interfaces"]["found"]
    unnamed = examine(fault=at_first)
    assert (unnamed.status, unnamed["interfaces"]["status"]) == (0, "warning")
    remedy = found["interfaces"]["remedy"]
    assert remedy == unnamed["interfaces"]["remedy"] == "bring it up: ip link set net1 up"
    hosts.ip(0, *remedy.removeprefix("bring it up: ip ").split())
    mended = examine(fault=at_first, environment=environment)
    assert mended.status == 0 and mended["interfaces"]["status"] == mended["address"]["status"] == "ok"


def test_a_cable_that_leads_nowhere_is_found(hosts):
    hosts.plug(1, "down")
    try:
        found = examine(fault=entering(hosts), environment={"TP_SOCKET_IFNAME": "net1"})
    finally:
        hosts.plug(1, "up")
    assert "net1 without a carrier" in found["interfaces"]["found"]
    assert "bring up the other end of net1" in found["interfaces"]["remedy"]


def test_an_interface_that_is_not_there_is_found(hosts):
    found = examine(fault=entering(hosts), environment={"GLOO_SOCKET_IFNAME": "net9"})
    assert found.status == 1
    assert "GLOO_SOCKET_IFNAME names 'net9', which is not here" in found["interfaces"]["found"]
    assert "no network interface 'net9'" in found["workers"]["found"]


@pytest.mark.long
def test_a_loopback_that_is_down_is_found_and_its_remedy_helps(hosts):
    hosts.ip(0, "link", "set", "lo", "down")
    try:
        found = examine(fault=entering(hosts))
        assert found.status == 1 and "loopback" in found.failed()
        assert found["IPv6"]["status"] == "warning"
        assert found["loopback"]["remedy"] == "bring it up: ip link set lo up"
    finally:
        hosts.ip(0, "link", "set", "lo", "up")
    assert examine(fault=entering(hosts))["loopback"]["status"] == "ok"


# ---- the secret ----


def test_a_secret_that_is_missing_short_or_open_is_found_and_its_remedy_helps(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    missing = secret_check.secret_file(str(path))
    assert (missing.status, missing.remedy) == ("failed", "name a file with the group's secret that this user may read")
    path.write_text("short")
    assert secret_check.secret_file(str(path)).remedy.startswith("at least 16 are needed")
    path.write_text(SECRET)
    path.chmod(0o644)
    open_to_all = secret_check.secret_file(str(path))
    assert (open_to_all.status, open_to_all.remedy) == ("warning", f"chmod 600 {path}")
    assert os.system(open_to_all.remedy) == 0
    assert secret_check.secret_file(str(path)).status == "ok"
    monkeypatch.setenv(VARIABLE, str(path))
    assert f"30 bytes in {path}" in secret_check.secret_file(None).found


# ---- the store ----


def checks_of_store(url):
    return {one.name: one for one in store_check.checks_of(url)}


def test_a_store_that_answers_is_left_as_it_was():
    store = HostedStore()
    client = dist.TCPStore("127.0.0.1", int(store.init_method.rpartition(":")[2]), is_master=False)
    before = client.num_keys()
    found = checks_of_store(store.init_method)
    assert [one.status for one in found.values()] == ["ok", "ok"]
    assert "announce 127.0.0.1, of lo" in found["route"].found
    assert client.num_keys() == before


def test_a_store_that_is_not_there_is_found_and_starting_it_helps(monkeypatch):
    port = free_port()
    found = checks_of_store(f"tcp://127.0.0.1:{port}")["store"]
    assert (found.status, found.found) == ("failed", f"nobody listens at 127.0.0.1:{port}")
    assert found.remedy.startswith("start the store (as a rule the worker with rank 0) there")
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    assert checks_of_store("env://")["store"].status == "ok"


def test_an_environment_that_names_no_store_is_found(monkeypatch):
    assert "MASTER_ADDR and MASTER_PORT not set" in checks_of_store("env://")["store"].found
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "many")
    assert "MASTER_PORT is 'many'" in checks_of_store("env://")["store"].found
    monkeypatch.setenv("MASTER_ADDR", "a..b")
    monkeypatch.setenv("MASTER_PORT", "1")
    assert "'a..b' cannot be the name of a host" in checks_of_store("env://")["store"].found


@contextlib.contextmanager
def something_else(answer):
    """Takes connections; says `answer` to each, or nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken = []

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    taken.append(listening.accept()[0])
                    if answer:
                        taken[-1].recv(1)
                        taken[-1].sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(doctors.LIMIT)
        for one in taken:
            one.close()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.0 400 Bad Request\r\n\r\n"], ids=["silent", "talkative"])
def test_what_is_no_store_is_found_in_time(answer):
    with something_else(answer) as port:
        found = checks_of_store(f"tcp://127.0.0.1:{port}")["store"]
    assert found.status == "failed"
    assert f"127.0.0.1:{port} takes connections, but does not answer as a store" in found.found


def test_a_store_that_dies_is_found_by_the_command():
    result = examine("--init-method", f"tcp://127.0.0.1:{free_port()}")
    assert result.status == 1 and result.failed() == ["store"]


def test_a_file_for_a_store_is_checked(tmp_path):
    path = tmp_path / "store"
    assert store_check.checks_of(f"file://{path}")[0].status == "ok"
    path.write_bytes(b"old")
    old = store_check.checks_of(f"file://{path}")[0]
    assert old.status == "warning" and "remove it if no group runs on it" in old.remedy
    assert path.read_bytes() == b"old"
    path.unlink()
    assert store_check.checks_of(f"file://{path}")[0].status == "ok"
    assert "No such file" in store_check.checks_of(f"file://{tmp_path}/missing/store")[0].found
