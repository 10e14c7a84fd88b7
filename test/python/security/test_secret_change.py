"""A group's secret is changed while it runs."""

import contextlib
import functools
import io
import os
import re
import shutil
import sys
import threading
import types
from unittest import mock

import connections
import pytest
import torch
import torch.distributed.rpc as rpc
import torchwire
from group import Group, HostedStore, init, results
from processes import WorkerError, wait_until
from repetition import Repetition, begin, stop
from torchwire import command_line, group_secret, secret_watch
from torchwire.doctor.reachability import place_of
from torchwire.observe.remote_group import RemoteGroup
from torchwire.observe.remote_worker import NotLetInError

SIZE = 8

# ---- what the workers run ----


def echo(value):
    return value


class Calls(Repetition):
    """Calls to all others, one after another."""

    def __init__(self, others):
        super().__init__()
        self._others = others

    def step(self):
        for other in self._others:
            assert rpc.rpc_sync(other, echo, (torch.ones(10),), timeout=60).sum() == 10


def labels():
    return torchwire.metrics()["secrets"]


# ---- the file ----


def attempt(*arguments, said=""):
    """In this process: one of its own would import torch first."""
    out, err = io.StringIO(), io.StringIO()
    told = mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(said.encode())))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), told:
        returncode = command_line.main(["secret", *map(str, arguments)])
    return types.SimpleNamespace(returncode=returncode, stdout=out.getvalue(), stderr=err.getvalue())


def command(*arguments, said=""):
    result = attempt(*arguments, said=said)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def held(path):
    return group_secret.in_file(str(path), "it")


def test_a_file_is_made_for_this_user_alone_and_changed_step_by_step(tmp_path):
    path = tmp_path / "secret"
    command(path)
    assert path.stat().st_mode & 0o777 == 0o600
    [first] = held(path)
    assert len(first) == 64
    second = command(path, "--add").encode()
    assert held(path) == [first, second]
    for _ in range(2):  # who does it twice does no harm
        command(path, "--use", second[-6:].decode())
        assert held(path) == [second, first]
    command(path, "--drop", first[-6:].decode())
    assert held(path) == [second]
    assert path.stat().st_mode & 0o777 == 0o600
    elsewhere = "a secret of the others, with blanks"
    for _ in range(2):
        command(path, "--add", "-", said=elsewhere + "\n")
        assert held(path) == [second, elsewhere.encode()]


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ([], "already: --add adds a secret to it"),
        (["--drop", "is there"], "is the one that is used"),
        (["--use", "nowhere"], "by its last characters"),
        (["--add", "a secret for all to see"], "could be read by other users"),
    ],
)
def test_what_would_do_harm_is_refused(tmp_path, arguments, complaint):
    path = tmp_path / "secret"
    path.write_text("the secret that is there\n")
    path.chmod(0o600)
    result = attempt(path, *arguments)
    assert result.returncode == 1 and complaint in result.stderr and "Traceback" not in result.stderr
    assert path.read_text() == "the secret that is there\n"
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


def test_a_secret_of_several_lines_is_one(tmp_path):
    path = tmp_path / "secret"
    path.write_text("wrapped+base64+of+someone\nwrapped+base64+of+someone\n")
    path.chmod(0o600)
    assert held(path) == [b"wrapped+base64+of+someone\nwrapped+base64+of+someone"]


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a file of another user")
def test_the_file_of_another_user_is_left_alone(tmp_path):
    path = tmp_path / "secret"
    command(path)
    os.chown(path, 54123, -1)
    before = path.read_bytes()
    result = attempt(path, "--add")
    assert result.returncode == 1 and "belongs to the user with id 54123" in result.stderr
    assert path.read_bytes() == before and path.stat().st_uid == 54123


def test_what_is_no_file_is_not_read_again(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    secret_watch.open_for(str(pipe), [b"a secret of thirty-two bytes or more"])
    try:
        assert "torchwire secret" not in [thread.name for thread in threading.enumerate()]
    finally:
        secret_watch.close()


def test_a_file_that_is_of_no_use_is_said_once_and_one_that_is_gone_is_not_taken_for_a_change(
    tmp_path, monkeypatch, caplog
):
    caplog.set_level("INFO")
    path = tmp_path / "secret"
    command(path)
    [secret] = held(path)
    monkeypatch.setattr(secret_watch, "_INTERVAL", 0.01)
    secret_watch.open_for(str(path), [secret])
    try:
        useless = tmp_path / "useless"
        useless.write_text("short\n")
        useless.chmod(0o600)
        useless.replace(path)
        wait_until(lambda: caplog.messages)
        path.unlink()
        wait_until(lambda: len(caplog.messages) > 1)
    finally:
        secret_watch.close()
    complaint, gone = caplog.messages
    assert re.search("has not followed a change of the group's secret, and tries again: .* at least 16 are", complaint)
    assert gone == f"the file {str(path)!r} is gone: the group's secrets stay as they are"
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


# ---- groups ----


def come(group, number, store, path):
    group[number].run(init, store.init_method, secret_file=str(path), _transports=["wire_tcp"], encryption=True)


def test_no_call_fails_while_the_secret_is_changed(tmp_path):
    """Each worker has a file of its own, and is at another step for a while.

    Meanwhile all connections break, and newcomers come.
    """
    paths = [tmp_path / f"secret{number}" for number in range(SIZE)]
    command(paths[0])
    [old] = held(paths[0])
    for path in [*paths[1:], tmp_path / "old"]:
        shutil.copy2(paths[0], path)
    store = HostedStore()
    with Group(SIZE + 3, store.environment) as group:
        members = [group[number] for number in range(SIZE)]
        for number, path in enumerate(paths):
            come(group, number, store, path)
        names = [f"worker{number}" for number in range(SIZE)]
        observed = RemoteGroup(place_of(store.init_method.removeprefix("tcp://")), lambda: held(paths[0]))
        for member, name in zip(members, names):
            member.run(begin, functools.partial(Calls, [other for other in names if other != name]))
        [used] = members[0].run(labels)

        def break_all_links():
            assert sum(member.run(connections.break_all, (), but_to=store.port) for member in members) > 0

        new = command(paths[0], "--add").encode()
        for path in paths[1 : SIZE // 2]:
            command(path, "--add", "-", said=new.decode() + "\n")
        break_all_links()
        for path in paths[SIZE // 2 :]:
            command(path, "--add", "-", said=new.decode() + "\n")
        wait_until(lambda: len(members[0].run(labels)) == 2)
        [_, added] = members[0].run(labels)
        watching = RemoteGroup(place_of(store.init_method.removeprefix("tcp://")), lambda: held(paths[0]))
        wait_until(lambda: all(member.run(labels) == [used, added] for member in members))
        for number, path in enumerate(paths):
            command(path, "--use", new[-6:].decode())
            if number == SIZE // 2:
                break_all_links()
                come(group, SIZE, store, path)
                assert [group[SIZE].run(rpc.rpc_sync, name, echo, (1,)) for name in names] == [1] * SIZE
        wait_until(lambda: all(member.run(labels) == [added, used] for member in members))
        for number, path in enumerate(paths):
            command(path, "--drop", old[-6:].decode())
            if number == SIZE // 2:
                break_all_links()
        wait_until(lambda: all(member.run(labels) == [added] for member in members))
        assert [worker.name for worker in observed.workers()] == [*names, f"worker{SIZE}"]
        assert all("functions" in observed.ask(worker, "status", 20) for worker in observed.workers())
        with contextlib.suppress(NotLetInError):  # the first time, with the old secret
            watching.ask(watching.workers()[0], "status", 20)
        assert all("functions" in watching.ask(worker, "status", 20) for worker in watching.workers())
        with pytest.raises(WorkerError, match="another group secret"):
            come(group, SIZE + 1, store, tmp_path / "old")
        come(group, SIZE + 2, store, paths[0])
        assert [group[SIZE + 2].run(rpc.rpc_sync, name, echo, (1,)) for name in names] == [1] * SIZE
        assert all(member.run(stop) > 0 for member in members)
        results([group[number].start(rpc.shutdown) for number in (*range(SIZE + 1), SIZE + 2)])
