"""Text of workers and strangers reaches a terminal without its control characters."""

import io
import sys

import pytest
from torchwire.doctor import command as doctor_command
from torchwire.doctor.check import failed
from torchwire.top import arguments, dump_command, screen
from torchwire.top.rates import Row

EVIL = "w\x1b[2J\x1b]0;title\x07"


def expect_escaped(text):
    assert r"w\x1b[2J" in text
    assert not [character for character in text if ord(character) < 32 and character != "\n"]


def test_the_doctor(capsys):
    doctor_command._say(f"client 1: {EVIL}")
    doctor_command._report([failed("server", EVIL, EVIL)], as_json=False)
    shown = capsys.readouterr().out
    assert shown.count(r"w\x1b[2J") == 3
    expect_escaped(shown)


def test_a_dump(capsys):
    def fails():
        raise RuntimeError(EVIL)

    dump_command._print([("one", lambda: {"text": EVIL}), (EVIL, fails)])
    shown = capsys.readouterr()
    expect_escaped(shown.out)
    expect_escaped(shown.err)


@pytest.mark.parametrize("kind", [ValueError, RuntimeError])
def test_an_error_of_a_command(kind, capsys):
    def run():
        raise kind(EVIL)

    assert arguments.exit_status("torchwire", run) != 0
    expect_escaped(capsys.readouterr().err)


def test_the_table_of_top(monkeypatch):
    pytest.importorskip("rich")
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    screen.print_table([Row(worker=EVIL, rank=1, problem=EVIL), Row(worker=EVIL, rank=2)], "title")
    assert out.getvalue().count(r"w\x1b[2J") == 3
    expect_escaped(out.getvalue())
