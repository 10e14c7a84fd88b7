"""Standard output of the commands: a reader that goes, and a disk that is full."""

import contextlib
import os
import subprocess
import sys

import pytest
from torchwire import command_line, standard_output


@pytest.fixture
def output(monkeypatch):
    """Makes a file descriptor standard output, as buffered as a pipe's."""
    with contextlib.ExitStack() as opened:
        yield lambda descriptor: monkeypatch.setattr(sys, "stdout", opened.enter_context(os.fdopen(descriptor, "w")))
        monkeypatch.undo()


def without_reader():
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def status_of(*arguments):
    with pytest.raises(SystemExit) as ended:
        command_line.main(arguments)
    return ended.value.code


@pytest.mark.parametrize("arguments", [["info"], ["--help"], ["top", "--once", "--json"]])
def test_a_reader_that_goes_is_no_error(tmp_path, monkeypatch, capsys, output, arguments):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    output(without_reader())
    assert status_of(*arguments) == 0
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["info"], ["--help"], ["top", "--once", "--json"]])
def test_a_full_disk_is_a_sentence(tmp_path, monkeypatch, capsys, output, arguments):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    output(os.open("/dev/full", os.O_WRONLY))
    assert status_of(*arguments) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == "python -m torchwire: standard output cannot be written: No space left on device"


def test_bad_usage_keeps_its_status(output):
    output(os.open("/dev/full", os.O_WRONLY))
    assert status_of("top", "--sort", "colour") == 2


def test_errors_of_other_files_pass_through():
    with pytest.raises(BrokenPipeError), standard_output.written("program"):
        raise BrokenPipeError


def test_nothing_is_left_to_write_when_the_process_ends():
    command = '{ "$0" -m torchwire info; echo "status $?" >&2; } | true'
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(["sh", "-c", command, sys.executable], env=environment, stderr=subprocess.PIPE, text=True)
    assert done.stderr == "status 0\n"
