"""The status sockets of a user's workers, and another user of the same host who asks there."""

import contextlib
import importlib
import io
import os
import re
import tempfile

import pytest
from group import Group, running
from torchwire import command_line
from torchwire.observe import status_socket
from torchwire.top import sources

NOBODY = 65534
QUESTIONS = [{"ask": "status"}, {"ask": "dump"}, {"ask": "group"}]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")

# ---- what the processes run ----


def become(user):
    for module in ("torchwire.top.command", "torchwire.top.dump_command"):
        importlib.import_module(module)  # while this process may still read them
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def command(*arguments):
    """Its exit status, and what it prints."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = command_line.main(arguments)
    return status, out.getvalue(), err.getvalue()


def outcome(path, question):
    """Of asking there: that it is answered, or why not."""
    try:
        sources.ask(path, question)
        return "answered"
    except RuntimeError as error:
        return str(error)


# ---- tests ----


@pytest.fixture
def folder(monkeypatch):
    """The sockets of this test's workers, in a place to which all users have a way."""
    with tempfile.TemporaryDirectory(prefix="torchwire-test-") as runtime:
        os.chmod(runtime, 0o755)
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        yield status_socket.folder()


@pytest.fixture
def watched(folder, tmp_path):
    """A worker's socket, and two processes: of another user, and of the worker's."""
    with running(1, tmp_path), Group(2) as observers:
        [path] = status_socket.sockets()
        stranger, own = observers
        stranger.run(become, NOBODY)
        yield path, stranger, own
        assert own.run(outcome, path, QUESTIONS[0]) == "answered"  # the worker is well


@pytest.mark.parametrize("name", ["top", "dump"])
def test_the_commands_are_refused_in_the_folder_of_another_user(watched, name):
    path, stranger, own = watched
    arguments = [name, "--once"] if name == "top" else [name]
    status, out, err = stranger.run(command, *arguments)
    assert status == 1 and not out, (out, err)
    assert f"{path.parent} must be a folder that belongs to this user and that nobody else may enter" in err
    status, out, err = own.run(command, *arguments)
    assert status == 0 and "worker0" in out, err


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["ask"])
def test_another_user_cannot_connect(watched, question):
    path, stranger, _ = watched
    assert stranger.run(outcome, path, question) == "cannot be asked: Permission denied"


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["ask"])
def test_another_user_is_told_nothing_where_the_folder_has_been_opened(watched, question):
    path, stranger, own = watched
    path.parent.chmod(0o755)
    path.chmod(0o777)
    assert own.run(outcome, path, question) == "answered"
    # It has connected, and the worker has hung up: on what it was asked, or was about to be.
    hung_up = "cannot be asked: (Connection reset by peer|Broken pipe)|gives no answer"
    assert re.match(hung_up, stranger.run(outcome, path, question))
