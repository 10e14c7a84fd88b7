"""Children of the command doctor: what becomes of those that hang or crash, and of an interrupt."""

import os
import signal
import socket
import tempfile
import threading

import doctors
import pytest
from torchwire import command_line
from torchwire.doctor import child, command


def test_a_function_that_hangs_or_crashes_is_a_sentence():
    child.prepare()
    assert child.run(os.getpid, limit=60) != os.getpid()
    with pytest.raises(child.ChildError, match="no result within 0.1 s"):
        child.run(_hang, limit=0.1)
    with pytest.raises(child.ChildError, match="its process was ended by signal SIGABRT: the last words"):
        child.run(_crash, limit=60)
    with pytest.raises(child.ChildError, match="^one line$"):
        child.run(_raise, limit=60)


def test_an_interrupt_ends_the_command_without_a_word(monkeypatch, capsys):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(command.machine_checks, "ALL", (interrupt,))
    assert command_line.main(["doctor"]) == 130
    assert capsys.readouterr() == ("", "")


def test_an_interrupt_while_a_child_is_started_ends_the_command_without_a_word(monkeypatch):
    monkeypatch.delenv("TORCHWIRE_SECRET_FILE", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        place = f"127.0.0.1:{listening.getsockname()[1]}"
        listening.settimeout(doctors.LIMIT)
        doctor = doctors.start(place, fault=let_interrupt)
        with listening.accept()[0]:  # what comes next is a child
            os.killpg(doctor.pid, signal.SIGINT)  # as a terminal does
            result = doctors.finish(doctor)
    assert (result.status, result.output, result.errors) == (130, "", "")


def let_interrupt():
    """Tests that run in the background of a shell are started with SIGINT ignored, and hand that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_child_whose_caller_has_given_up_ends_without_a_word(tmp_path, monkeypatch):
    child.prepare()
    output = (tmp_path / "output").open("w+")
    os.unlink(output.name)
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", lambda **_: output)
    with pytest.raises(child.ChildError, match="^its process ended with status 0$"):
        child.run(os.getpid, limit=60)


def _hang():
    threading.Event().wait()


def _crash():
    print("the last words", flush=True)
    os.abort()


def _raise():
    raise RuntimeError("one line\nand a trace")
