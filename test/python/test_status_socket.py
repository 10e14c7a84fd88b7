"""The status socket of a worker: who is answered, and that no observer does it harm."""

import contextlib
import json
import os
import socket
import stat
import threading

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


@pytest.fixture
def status_socket_here():
    """Of this process, which is no worker."""
    here = status_socket.StatusSocket()
    yield here
    here.close()


def test_observers_that_stall_keep_no_other_waiting(status_socket_here):
    with contextlib.ExitStack() as stalled:
        for _ in range(3):
            stalled.enter_context(socket.socket(socket.AF_UNIX)).connect(str(status_socket_here.path))
        with pytest.raises(RuntimeError, match="not initialized"):  # which is an answer
            sources.ask(status_socket_here.path, {"ask": "status"})


def test_more_observers_than_are_answered_at_a_time_have_their_turn(status_socket_here):
    with contextlib.ExitStack() as stalled:
        for _ in range(8):
            stalled.enter_context(socket.socket(socket.AF_UNIX)).connect(str(status_socket_here.path))
        stalled.close()  # whoever has gone is left at once
        for _ in range(8):
            with pytest.raises(RuntimeError, match="not initialized"):
                sources.ask(status_socket_here.path, {"ask": "status"}, patience=60)


def test_an_observer_is_answered_where_no_more_threads_are_to_be_had(status_socket_here, monkeypatch):
    def start(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="not initialized"):
        sources.ask(status_socket_here.path, {"ask": "status"}, patience=60)


@contextlib.contextmanager
def killed_worker(tmp_path):
    """The process of a worker that was killed, in a group of its own; it has left its socket."""
    (tmp_path / "killed").mkdir()
    with running(1, tmp_path / "killed") as group:
        (path,) = (path for path in status_socket.sockets() if status_socket.process_of(path) == group[0].pid)
        group[0].kill()
        group.clear()
        assert path.exists()
        yield path


def test_a_socket_of_a_worker_that_was_killed_is_removed_by_whoever_looks(tmp_path):
    with running(1, tmp_path) as group, killed_worker(tmp_path) as left:
        assert [answer.name for answer in sources.of_this_host()] == ["worker0"]
        assert not left.exists()
        assert [status_socket.process_of(path) for path in status_socket.sockets()] == [group[0].pid]


def test_a_socket_of_a_worker_that_was_killed_is_removed_by_the_next_one(tmp_path):
    with killed_worker(tmp_path) as left, running(1, tmp_path):
        assert not left.exists()


def test_a_socket_of_a_worker_that_was_killed_is_removed_by_the_last_one_that_ends(tmp_path):
    with running(1, tmp_path), killed_worker(tmp_path) as left:
        pass
    assert not left.exists()


def test_a_socket_of_a_worker_that_was_killed_is_removed_by_its_group(tmp_path, folder):
    with running(2, tmp_path) as group:
        left = [path for path in folder.iterdir() if status_socket.process_of(path) == group[1].pid]
        assert len(left) == 1
        group[0].run(observed.call_many, "worker1", 1)
        group[1].kill()
        wait_until(lambda: not left[0].exists())
        assert len(list(folder.iterdir())) == 1
        del group[1]


def test_sockets_that_others_listen_on_stay(folder):
    """As those of workers in another PID namespace, whose processes are not to be seen."""
    folder.mkdir(mode=0o700)
    nobody = 1 << 22  # above the highest process id that Linux has
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / f"{nobody}-0.sock"))
        assert status_socket.sockets() == []  # nobody listens yet
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / f"{nobody}-0.sock"))
        listening.listen()
        assert [path.name for path in status_socket.sockets()] == [f"{nobody}-0.sock"]


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
