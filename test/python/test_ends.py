"""How workers end, in every kind of group: what others see, by when, what is left, and the exit status.

A cell of the table is a way to end in a kind of group. All cells of a kind run at once, as end_programs.py has them:
what others see of a worker does not depend on how the next one ends, but for their shutdown. So in groups whose workers
all shut down together those that leave and those that die are not in the same one.
"""

import json
import pathlib
import re
from dataclasses import dataclass

import pytest
from processes import run_script

PROGRAM = pathlib.Path(__file__).with_name("end_programs.py")
KINDS = ("static", "elastic", "dynamic")

# s. Others know at once, but the machine may be busy; a worker that waits for a time-out waits for four minutes.
PROMPT = 5.0
SHUTDOWN = 5.0

ON_ITS_OWN = "its main program ended without rpc.shutdown()"
ENDED = r"its process \d+ has ended"


@dataclass(frozen=True)
class Way:
    """How a worker ends that says goodbye, or dies; what others are told; its exit status."""

    status: int
    left: str = ""
    died: str = ""

    @property
    def error(self):
        """Type and text of the error that calls end with, the latter as a pattern."""
        if self.left:
            return "WorkerUnreachable", f"has left the RPC group: {re.escape(self.left)}"
        return "WorkerDied", f"has died: {self.died}"


LEAVE = {
    "main_returns": Way(0, left=ON_ITS_OWN),
    "error_in_thread": Way(0, left=ON_ITS_OWN),
    "atexit_before_init": Way(0, left=ON_ITS_OWN),
    "atexit_after_init": Way(0, left=ON_ITS_OWN),
    "daemon_thread:sync": Way(0, left=ON_ITS_OWN),
    "daemon_thread:async": Way(0, left=ON_ITS_OWN),
    "daemon_thread:fetch": Way(0, left=ON_ITS_OWN),
    "daemon_thread:backward": Way(0, left=ON_ITS_OWN),
    "sys_exit": Way(3, left="it ended with sys.exit(3)"),
    "sigterm_handler": Way(5, left="it ended with sys.exit(5)"),
    "error": Way(1, left="it ended by ValueError: on purpose"),
    "leave": Way(0, left="it called rpc.shutdown(graceful=False)"),
}
DIE = {
    "os_exit": Way(4, died=ENDED),
    "sigterm": Way(-15, died=ENDED),
    "sigkill": Way(-9, died=ENDED),
    "abort": Way(-6, died=ENDED),
    "execv": Way(6, died=r"its process \d+ runs another program now \(exec\)"),
    "in_shutdown:sigkill": Way(-9, died=ENDED),
    "in_shutdown:sigterm": Way(-15, died=ENDED),
}
# Each ends the shutdown of the others.
BREAK_OFF = {
    "in_shutdown:main_returns": Way(0, left=ON_ITS_OWN),
    "in_shutdown:sigterm_handler": Way(5, left="its rpc.shutdown() failed: SystemExit: 5"),
}
WAYS = LEAVE | DIE | BREAK_OFF
NO_END = "error_in_handler"
LATE = "in_init_rpc"

TOGETHER = [[*LEAVE], [*DIE, NO_END], *([way] for way in BREAK_OFF)]
GROUPS = {
    "static": TOGETHER,
    "elastic": [TOGETHER[0], [*TOGETHER[1], LATE], *TOGETHER[2:]],
    "dynamic": [[*WAYS, NO_END, LATE]],
}


def of_kind(kind, *values):
    """An elastic group ends as a static one does, with more processes."""
    return pytest.param(kind, *values, marks=[pytest.mark.long] if kind == "elastic" else [])


CELLS = pytest.mark.parametrize("kind, way", [of_kind(kind, way) for kind in KINDS for way in WAYS])


class Outcome:
    """What has come of one group."""

    def __init__(self, kind, ways, ends, notes):
        self.kind, self.ways, self.ends, self.notes = kind, ways, ends, notes

    def note(self, name, what, to=None):
        found = [note for note in self.notes[name] if note["what"] == what and note.get("to") == to]
        assert len(found) == 1, f"{name} has not noted {what!r} of {to} once: {self.notes[name]}; {self.ends}"
        return found[0]

    def end_of(self, way):
        """When it was over: for a process that runs another program, when it began to."""
        return self.note(way, "end")["at"] if way == "execv" else self.ends[way]["at"]

    def rank_of(self, way):
        return 2 + self.ways.index(way)

    def has_left(self):
        return [way for way in self.ways if way in LEAVE | BREAK_OFF]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    made = {}

    def of(kind, way, transport):
        if (kind, transport) not in made:
            groups = GROUPS[kind]
            folder = tmp_path_factory.mktemp("groups")
            process = run_script(PROGRAM, kind, transport, folder, *map(",".join, groups), limit=270)
            assert process.returncode == 0, process.stderr
            made[kind, transport] = [
                Outcome(kind, ways, **outcome) for ways, outcome in zip(groups, json.loads(process.stdout), strict=True)
            ]
        return next(outcome for outcome in made[kind, transport] if way in outcome.ways)

    return of


@pytest.fixture(params=["a transport", pytest.param("the other transport", marks=pytest.mark.long)])
def outcome_of(request, outcomes):
    def of(kind, way):
        transports = ["wire_shm", "wire_tcp"] if kind != "dynamic" else ["wire_tcp", "wire_shm"]
        return outcomes(kind, way, transports[request.param != "a transport"])

    return of


@CELLS
def test_calls_to_a_worker_that_ends_fail_at_once_and_say_how_it_ended(outcome_of, kind, way):
    outcome = outcome_of(kind, way)
    expected, how = WAYS[way].error
    who = f"worker '{way}' (rank {outcome.rank_of(way)}) "
    running = outcome.note("owner", "running call", way)
    assert running["kind"] == expected
    assert re.fullmatch(re.escape(who) + how, running["text"]), running["text"]
    assert running["at"] < outcome.end_of(way) + PROMPT
    for what in ("call", "fetch"):
        later = outcome.note("owner", what, way)
        assert who in later["text"] and re.search(how, later["text"]), later["text"]
        assert later["seconds"] < PROMPT


@CELLS
def test_who_has_no_link_to_a_worker_that_ends_hears_of_it_all_the_same(outcome_of, kind, way):
    outcome = outcome_of(kind, way)
    call = outcome.note("other", "call", way)
    assert call["kind"] in ("WorkerUnreachable", "WorkerDied", "RuntimeError")
    assert f"worker '{way}' (rank {outcome.rank_of(way)}) " in call["text"]
    assert re.search("has left the RPC group|has died: ", call["text"]), call["text"]
    assert call["seconds"] < PROMPT


@CELLS
def test_nothing_is_left_of_a_worker_that_ends(outcome_of, kind, way):
    outcome = outcome_of(kind, way)
    left = outcome.note("owner", "left")
    rank = str(outcome.rank_of(way))
    assert rank not in left["rrefs"]
    assert way not in left["owners"]
    assert not {way, rank} & set(left["contexts"])


@CELLS
def test_the_exit_status_is_the_programs(outcome_of, kind, way):
    outcome = outcome_of(kind, way)
    assert outcome.ends[way]["status"] == WAYS[way].status
    if way.startswith("atexit"):
        assert outcome.note(way, "call at exit")["kind"] == ""


@CELLS
def test_the_others_shut_down_at_once(outcome_of, kind, way):
    outcome = outcome_of(kind, way)
    for name in ("owner", "other"):
        shutdown = outcome.note(name, "shutdown")
        assert shutdown["seconds"] < SHUTDOWN
        assert outcome.ends[name]["status"] == 0
        if kind == "dynamic" or way in DIE:
            assert shutdown["kind"] == "", shutdown["text"]
        else:  # one that has not waited for the others ends the shutdown of all
            who = "|".join(f"worker '{left}' \\(rank {outcome.rank_of(left)}\\)" for left in outcome.has_left())
            expected = f"the RPC group cannot shut down gracefully: ({who}) (has left|was interrupted)"
            assert re.match(expected, shutdown["text"]), shutdown["text"]


@pytest.mark.parametrize("kind", [of_kind(kind) for kind in KINDS])
def test_an_exception_in_a_handler_is_no_end(outcome_of, kind):
    outcome = outcome_of(kind, NO_END)
    assert outcome.note("owner", "running call", NO_END)["kind"] == "ValueError"
    for note in (outcome.note("owner", "call", NO_END), outcome.note("other", "call", NO_END)):
        assert note["kind"] == "", note["text"]
    assert outcome.note(NO_END, "shutdown")["kind"] == ""
    assert outcome.ends[NO_END]["status"] == 0


@pytest.mark.parametrize("kind", [of_kind("elastic"), "dynamic"])
def test_a_worker_that_dies_in_init_rpc_does_not_harm_the_others(outcome_of, kind):
    outcome = outcome_of(kind, LATE)
    assert outcome.ends[LATE]["status"] == -9
    for name in ("owner", "other"):
        call = outcome.note(name, "call", LATE)
        assert call["kind"] and LATE in call["text"]
        assert call["seconds"] < PROMPT
        assert outcome.note(name, "shutdown")["kind"] == ""
