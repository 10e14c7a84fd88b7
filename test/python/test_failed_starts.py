"""Workers that cannot start: the others raise at once and say why, whoever hosts the store, whatever the text."""

import datetime
import os
import signal
import sys
import time

import pytest
import torch.distributed as dist
import torch.distributed.rpc as rpc
import torchwire
from group import Group, HostedStore, errors, file_in, free_port, init
from processes import LIMIT, WorkerError, wait_until
from torchwire import registration

DECISION = "startup_decision"
ARRIVED = "arrived/0"
FORBIDDEN = "init_rpc: name 'a.b' contains '.'; use only ASCII letters and digits, '_', ':' and '-'"

# How long the host of a store waits for the others, in seconds.
FAREWELL = 5.0

# ---- what the workers run ----


class Unshown(str):
    """Text that cannot be shown."""

    def __str__(self):
        raise ValueError("it has no text")

    __repr__ = __str__


def init_named(name, init_method, rank):
    options = torchwire.TorchwireRpcBackendOptions(init_method=init_method)
    rpc.init_rpc(name, rpc.BackendType.TORCHWIRE, rank, 2, options)


def init_raising(text, init_method, rank):
    def raise_there(*_, **__):
        raise ValueError(text)

    registration.start_agent = raise_there
    init_named(f"worker{rank}", init_method, rank)


def init_later(path, *args, **kwargs):
    """Has a connection to the store, but does not read it until the file is there."""
    original = registration.start_agent

    def start_agent(*args, **kwargs):
        wait_until(path.exists)
        return original(*args, **kwargs)

    registration.start_agent = start_agent
    init(*args, **kwargs)


def init_or_end(*args, **kwargs):
    """As a main program does that catches nothing, but sooner."""
    try:
        init(*args, **kwargs)
    except Exception:
        os._exit(1)


def leave_handling(text):
    try:
        raise ValueError(text)
    except ValueError:
        rpc.shutdown(graceful=False)


def exits_with(status):
    try:
        sys.exit(status)
    except SystemExit as error:
        return error.code is status


# ---- the host of the store ----


class Hosted:
    """A group whose store goes with the process of rank 0."""

    def __init__(self, group):
        self.group = group
        self.port = free_port()
        self.init_method = f"tcp://127.0.0.1:{self.port}"

    def start(self, rank, function, *before, **options):
        options = {"rank": rank, "world_size": len(self.group), **options}
        return self.group[rank].start(function, *before, self.init_method, **options)

    def await_key(self, end):
        timeout = datetime.timedelta(seconds=LIMIT)
        client = dist.TCPStore("127.0.0.1", self.port, is_master=False, wait_for_workers=False, timeout=timeout)
        wait_until(lambda: any(key.endswith(end) for key in client.list_keys()))


@pytest.fixture
def hosted():
    with Group(3) as group:
        yield Hosted(group)


def sentences(pending):
    return [error.message.partition("\n")[0] for error in errors(pending)]


@pytest.mark.parametrize("wrong, why", [({"name": "a.b"}, FORBIDDEN), ({"bind_address": "203.0.113.1"}, "203.0.113.1")])
def test_a_host_that_cannot_start_ends_when_all_have_read_why(hosted, tmp_path, wrong, why):
    others = [hosted.start(rank, init_later, tmp_path / "go") for rank in (1, 2)]
    host = hosted.start(0, init_or_end, **wrong)
    hosted.await_key(DECISION)
    assert not host.is_there(0.5)
    (tmp_path / "go").touch()
    told = sentences(others)
    assert told[0] == told[1] and why in told[0]
    assert told[0].startswith(f"worker '{wrong.get('name', 'worker0')}' (rank 0) could not start: ")
    (ended,) = errors([host])
    assert ended.type_name == "ProcessEnded"


def test_a_host_that_is_told_of_another_ends_when_all_have_read_why(hosted, tmp_path):
    host = hosted.start(0, init_or_end)
    wrong = hosted.start(1, init, name="a.b")
    late = hosted.start(2, init_later, tmp_path / "go")
    assert sentences([wrong]) == [FORBIDDEN]
    assert not host.is_there(0.5)
    (tmp_path / "go").touch()
    assert sentences([late]) == [f"worker 'a.b' (rank 1) could not start: {FORBIDDEN}"]
    (ended,) = errors([host])
    assert ended.type_name == "ProcessEnded"


def test_a_host_waits_for_one_that_has_died_only_so_long(hosted, tmp_path):
    others = [hosted.start(rank, init_later, tmp_path / "go") for rank in (1, 2)]
    host = hosted.start(0, init, name="a.b")
    hosted.await_key(DECISION)
    begin = time.monotonic()
    hosted.group[2].kill()
    (tmp_path / "go").touch()
    assert sentences(others[:1]) == [f"worker 'a.b' (rank 0) could not start: {FORBIDDEN}"]
    assert sentences([host]) == [FORBIDDEN]
    assert time.monotonic() - begin < 3 * FAREWELL


@pytest.mark.parametrize("name, key", [("a.b", DECISION), ("worker0", ARRIVED)], ids=["after an error", "at first"])
def test_a_host_that_is_interrupted_does_not_wait(hosted, tmp_path, name, key):
    others = [hosted.start(rank, init_later, tmp_path / "go") for rank in (1, 2)]
    host = hosted.start(0, init, name=name)
    hosted.await_key(key)
    begin = time.monotonic()
    hosted.group[0].signal(signal.SIGINT)
    (ended,) = errors([host])
    assert ended.type_name == "KeyboardInterrupt"
    assert time.monotonic() - begin < FAREWELL
    (tmp_path / "go").touch()
    errors(others)


# ---- texts that the extension does not take as they are ----


@pytest.mark.parametrize(
    "name, shown, why",
    [
        ("\ud800", r"\ud800", r"init_rpc: name '\ud800' contains '\ud800'; use only ASCII letters and digits"),
        (None, "None", "Argument None must be of type <class 'str'>"),
        (b"x", "b'x'", "Argument b'x' must be of type <class 'str'>"),
        (5, "5", "Argument 5 must be of type <class 'str'>"),
        ([], "[]", "unhashable type: 'list'"),
        (Unshown("a.b"), "a.b", "it has no text"),
    ],
)
def test_a_name_of_any_kind_ends_the_start_of_all(name, shown, why):
    expect_failed_start(init_named, name, f"worker '{shown}' (rank 1) could not start: {why}")


@pytest.mark.parametrize("text, shown", [("lost \ud800", r"lost \ud800"), (Unshown("x"), "ValueError")])
def test_an_error_of_any_text_ends_the_start_of_all(text, shown):
    expect_failed_start(init_raising, text, f"worker 'worker1' (rank 1) could not start: {shown}")


def expect_failed_start(function, argument, sentence):
    """On rank 1, where rank 0 waits for it."""
    store = HostedStore()
    with Group(2, store.environment) as group:
        waiting = group[0].start(init, store.init_method, world_size=2)
        wait_until(lambda: store.has("rpc_prefix_0/torchwire/roster"))
        begin = time.monotonic()
        failing = group[1].start(function, argument, store.init_method, 1)
        (told,) = sentences([waiting])
        assert time.monotonic() - begin < 20  # it would wait for a minute
        assert told.startswith(sentence), told
        errors([failing])


def test_a_name_may_be_of_a_class_of_its_own(tmp_path):
    with Group(2) as group:
        other = group[0].start(init_named, "worker0", file_in(tmp_path), 0)
        group[1].run(init_named, Unshown("worker1"), file_in(tmp_path), 1)
        other.result()
        assert group[0].run(rpc.rpc_sync, "worker1", os.getpid) == group[1].pid
        group.shut_down()


def test_a_worker_leaves_with_an_error_of_any_text(tmp_path):
    with Group(2) as group:
        group.init(file_in(tmp_path))
        group[0].run(rpc.rpc_sync, "worker1", os.getpid)
        group[1].run(leave_handling, "lost \ud800")
        with pytest.raises(WorkerError) as caught:
            group[0].run(rpc.rpc_sync, "worker1", os.getpid)
        assert caught.value.message.endswith(r"rpc.shutdown(graceful=False) while handling ValueError: lost \ud800")
        group[0].run(rpc.shutdown, graceful=False)


def test_a_status_of_exit_need_not_be_shown(tmp_path):
    with Group(1) as group:
        group.init(file_in(tmp_path))
        assert group[0].run(exits_with, Unshown("x"))
        group.shut_down()
