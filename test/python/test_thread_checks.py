"""The checks that TORCHWIRE_CHECK_THREADS turns on: each planted violation ends its process, and says what it was."""

import json
import platform
import signal
import sys
from pathlib import Path

import pytest
from processes import run_script

# Ways to take the GIL, "again" on a thread that holds it already.
TAKES = ["acquire", "acquire again", "ensure", "ensure again", "restore"]
# Ends of what Python owns, for which libtorch takes it.
DROPS = [
    "drop numpy memory",
    "drop numpy memory again",
    "drop a numpy tensor",
    "drop a holder",
    "drop a holder again",
]
OTHERS = ["drop an object", "complete a future"]
PLACES = {
    "sending": "inside a send",
    "delivering": "in a link callback, on a loop or in a timer task",
    "locked": "under lock 'timer'",
}
ALL = [(what, where) for what in [*TAKES, *DROPS, *OTHERS] for where in [*PLACES, "free"]]
ALL.append(("acquire on a new thread", "free"))

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="the GIL is watched on x86-64 Linux only"
)


@pytest.fixture(scope="module")
def report():
    done = run_script(
        Path(__file__).with_name("thread_violations.py"),
        json.dumps(ALL),
        environment={"TORCHWIRE_CHECK_THREADS": "1", "PYTHONFAULTHANDLER": ""},
        limit=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def ends(report):
    return dict(zip(ALL, report["ends"], strict=True))


def stack_of(end, *words):
    """The stack of a process that aborted with a sentence that has these words in it."""
    code, said = end
    assert code == -signal.SIGABRT, said
    first, *stack = said.splitlines()
    assert first.startswith("torchwire: a rule of docs/threads.md was broken: ")
    for word in words:
        assert word in first
    return stack


def test_libtorch_python_and_the_extension_are_watched_and_libtorch_cpu_needs_no_watch(report):
    watched = report["watched"]
    extension = next(functions for name, functions in watched.items() if name.startswith("_C."))
    for functions in (watched["libtorch_python.so"], extension):
        assert {"PyEval_AcquireThread", "PyEval_RestoreThread", "PyGILState_Ensure", "_Py_Dealloc"} <= set(functions)
    assert watched["libtorch_cpu.so"] == []


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("what", TAKES)
def test_taking_the_gil_aborts(ends, what, where):
    stack = stack_of(ends[what, where], "taking the GIL", PLACES[where])
    assert any("torchwire::(anonymous namespace)::violate(" in line and " in _C." in line for line in stack), stack


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("what", DROPS)
def test_ending_what_python_owns_aborts_inside_libtorch(ends, what, where):
    stack = stack_of(ends[what, where], "taking the GIL", PLACES[where])
    assert any(" in libtorch_python.so" in line for line in stack), stack


@pytest.mark.parametrize("where", PLACES)
def test_a_python_destructor_aborts(ends, where):
    stack_of(ends["drop an object", where], "running a Python destructor (_Py_Dealloc)", PLACES[where])


@pytest.mark.parametrize("where", PLACES)
def test_completing_a_future_aborts(ends, where):
    stack_of(ends["complete a future", where], "completing a future", PLACES[where])


def test_a_thread_that_python_has_not_seen_is_watched(ends):
    stack_of(ends["acquire on a new thread", "free"], "taking the GIL", PLACES["delivering"])


@pytest.mark.parametrize("what", [*TAKES, *DROPS, *OTHERS])
def test_a_free_thread_may_do_all_that(ends, what):
    code, said = ends[what, "free"]
    assert (code, said) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("value", ["", "0"])
def test_nothing_is_checked_unless_asked_for(value):
    code = (
        "from torchwire import _C\n"
        "print(_C._thread_checks_enabled(), _C._watched_gil_functions())\n"
        "try:\n"
        "    _C._violate('acquire', 'sending')\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    done = run_script(None, python_arguments=["-c", code], environment={"TORCHWIRE_CHECK_THREADS": value})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False {}\nthe checks of threads are off: set TORCHWIRE_CHECK_THREADS=1\n"
