"""The status socket of a worker: who is answered, and that no observer does it harm."""

import json
import os
import socket
import stat

import observed
import pytest
from group import running
from processes import wait_until
from torchwire.observe import status_socket
from torchwire.top import sources


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The sockets of this test's workers only; the workers inherit the variable."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "torchwire"


def test_a_worker_answers_and_takes_its_socket_along(tmp_path, folder):
    with running(1, tmp_path) as group:
        (path,) = status_socket.sockets()
        assert status_socket.process_of(path) == group[0].pid
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert sources.ask(path, {"ask": "status"})["worker"]["name"] == "worker0"
        assert "calls of this worker are under way" in sources.ask(path, {"ask": "dump"})["text"]
    assert status_socket.sockets() == []


def test_a_worker_may_have_none(tmp_path):
    with running(1, tmp_path, status_socket=False):
        assert status_socket.sockets() == []


@pytest.mark.parametrize("question", [b"\n", b"{}\n", b'{"ask": "nonsense"}\n', b"not json\n", b"\xff\xfe\n", b"[]\n"])
def test_a_question_that_makes_no_sense_gets_an_error(tmp_path, question):
    with running(1, tmp_path):
        (path,) = status_socket.sockets()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(question)
            assert set(json.loads(connection.makefile().read())) == {"error"}
        assert sources.ask(path, {"ask": "status"})


def test_an_observer_that_stalls_or_goes_costs_the_worker_nothing(tmp_path):
    with running(1, tmp_path) as group:
        (path,) = status_socket.sockets()
        with socket.socket(socket.AF_UNIX) as stalled, socket.socket(socket.AF_UNIX) as gone:
            stalled.connect(str(path))
            gone.connect(str(path))
            gone.sendall(b'{"ask": "status"}\n')
            gone.close()
            assert group[0].run(observed.call_many, "worker0", 20) == 20
            assert sources.ask(path, {"ask": "status"}, patience=20)


def test_a_worker_that_is_killed_leaves_a_socket_that_the_next_one_removes(tmp_path):
    with running(1, tmp_path) as group:
        with running(1, tmp_path / "other" if not (tmp_path / "other").mkdir() else None) as doomed:
            assert len(status_socket.sockets()) == 2
            pid = doomed[0].pid
            doomed[0].kill()
            assert [answer.name for answer in sources.of_this_host()] == ["worker0"]
            doomed.clear()
        assert [status_socket.process_of(path) for path in status_socket.sockets()] == sorted([group[0].pid, pid])
        third = tmp_path / "third"
        third.mkdir()
        with running(1, third):
            assert pid not in [status_socket.process_of(path) for path in status_socket.sockets()]


def test_a_folder_that_others_may_enter_is_not_trusted(tmp_path, folder):
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(RuntimeError, match="must be a folder that belongs to this user and that nobody else may enter"):
        status_socket.sockets()
    with running(1, tmp_path) as group:  # it runs all the same
        assert "has no status socket" in group[0].output()
        assert group[0].run(observed.call_many, "worker0", 3) == 3


def fork_and_ask(path):
    child = os.fork()
    if child == 0:
        os._exit(0 if sources.ask(path, {"ask": "status"})["worker"]["pid"] == os.getppid() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_is_not_taken_for_its_parent(tmp_path):
    with running(1, tmp_path) as group:
        (path,) = status_socket.sockets()
        assert group[0].run(fork_and_ask, path) == 0
        wait_until(lambda: sources.ask(path, {"ask": "status"})["worker"]["pid"] == group[0].pid)
