"""The command top: a group of eight with a worker that is dead, one that is slow and one that stands still."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import observed
import pytest
from group import Group, file_in
from processes import run_module, wait_until
from torchwire import command_line
from torchwire.top import keys, rates, screen, sources
from torchwire.top.page import Page
from torchwire.top.sources import Answer

BOUNDS = [0.001, 0.002, 0.004]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The sockets of this test's workers only; the workers inherit the variable."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def top(*arguments, **options):
    return run_module("torchwire", "top", *arguments, **options)


def top_json(*arguments):
    """The workers by name."""
    result = top("--once", "--json", *arguments)
    assert result.returncode == 0, result.stderr
    return {row["worker"]: row for row in json.loads(result.stdout)["workers"]}


@pytest.fixture
def terminal(monkeypatch):
    """Standard output of this process counts as one."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


class Naps(list):
    """The seconds that were to be slept; Ctrl-C comes in the place of the last."""

    most = 1

    def __call__(self, seconds):
        self.append(seconds)
        if len(self) == self.most:
            raise KeyboardInterrupt


@pytest.fixture
def naps(monkeypatch):
    naps = Naps()
    monkeypatch.setattr(time, "sleep", naps)
    return naps


def status_at(time, calls, pid=1, counts=(0, 0, 0, 0)):
    histogram = {"count": calls, "counts": list(counts)}
    return {
        "time": time,
        "worker": {"name": "w", "rank": 0, "pid": pid, "memory_bytes": 5},
        "functions": [
            {"kind": "python", "failures": {"timeout": calls // 10}, "errors": calls // 50, "latency": histogram,
             "run": histogram},
            {"kind": "control", "failures": {}, "errors": 10**6 + calls,
             "latency": {"count": 10**6, "counts": [10**6, 0, 0, 0]}, "run": {"count": 10**6, "counts": [0, 0, 0, 0]}},
        ],
        "counts": {"calls_in_flight": 2, "requests_active": 3},
        "peers": [
            {"bytes_sent": calls * 100, "bytes_received": 0, "transport": "wire_tcp", "state": "connected",
             "encryption": "AES-256-GCM"},
            {"bytes_sent": 0, "bytes_received": 0, "transport": "", "state": "dead"},
        ],
        "rrefs": {"owners": 1, "users": 2},
        "autograd_contexts": 4,
    }  # fmt: skip


STATUS = status_at(1.0, 1)


def rows_of(answers):
    return [rates.row_of(answer, None, BOUNDS) for answer in answers]


def call_until(ended, worker, to):
    while not ended.is_set():
        worker.run(observed.call_many, to, 50)


def test_a_group_with_a_dead_a_slow_and_a_stopped_worker(tmp_path):
    with Group(8) as group:
        group.init(f"file://{tmp_path}/store", session_timeout=60)
        for worker in group:
            worker.run(observed.call_many, group[0].name, 5)
        group[5].kill()
        group[1].run(observed.begin_nap, "worker2", 120)
        group[6].signal(signal.SIGSTOP)
        ended = threading.Event()
        caller = threading.Thread(target=call_until, args=(ended, group[0], "worker3"))
        caller.start()
        try:
            rows = top_json()
            whole = top_json("--group", str(group[4].pid))
            table = top("--once", "--filter", "worker[0-3]")
        finally:
            ended.set()
            caller.join()
        assert set(rows) == {f"worker{i}" for i in (0, 1, 2, 3, 4, 7)} | {f"process {group[6].pid}"}
        assert "does not answer within" in rows[f"process {group[6].pid}"]["problem"]
        assert rows["worker0"]["calls_out"] > 10 and rows["worker3"]["calls_in"] > 10
        assert rows["worker0"]["bytes_out"] > 1000
        assert 0 < rows["worker0"]["p50"] <= rows["worker0"]["p99"]
        assert rows["worker0"]["transports"] == "wire_shm"
        assert rows["worker1"]["in_flight"] == 1 and rows["worker2"]["active"] == 1
        assert rows["worker7"]["calls_out"] == 0
        assert rows["worker4"]["memory"] > 1 << 20 and rows["worker4"]["pid"] == group[4].pid
        assert set(whole) == {f"worker{i}" for i in range(8)}
        assert whole["worker5"]["problem"] and whole["worker6"]["problem"]
        assert whole["worker1"]["in_flight"] == 1
        assert table.returncode == 0 and "WORKER" in table.stdout and "worker4" not in table.stdout
        group[6].signal(signal.SIGCONT)
        group.kill()


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_nobody_is_there(capsys, arguments):
    assert command_line.main(["top", "--once", *arguments]) == 1
    assert "no torchwire worker of this user runs on this host and matches" in capsys.readouterr().err


def test_nobody_of_a_group_matches(tmp_path, capsys):
    with stranger(tmp_path, json.dumps({"w": STATUS}).encode()):
        assert command_line.main(["top", "--once", "--json", "--group", f"{os.getpid()}", "--filter", "x"]) == 1
    sentence = f"no worker of the group of process {os.getpid()} matches --filter 'x'"
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, status, text",
    [
        (["--interval", "0"], 2, "--interval must be more than 0 and at most 86400 seconds, got 0"),
        (["--interval", "inf"], 2, "at most 86400 seconds, got inf"),
        (["--interval", "nan"], 2, "at most 86400 seconds, got nan"),
        (["--filter", "("], 2, "is not a regular expression"),
        (["--sort", "colour"], 2, "invalid choice"),
        (["--once", "--group", "1"], 1, "process 1 has no status socket"),
    ],
)
def test_bad_usage(capsys, arguments, status, text):
    try:
        assert command_line.main(["top", *arguments]) == status
    except SystemExit as ended:
        assert ended.code == status
    assert text in capsys.readouterr().err


@contextlib.contextmanager
def stranger(folder, text):
    """Whoever asks the status socket of this process is answered `text`."""
    (folder / "torchwire").mkdir(mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        others = len(os.listdir(folder / "torchwire"))
        server.bind(str(folder / "torchwire" / f"{os.getpid()}-{others}.sock"))
        server.listen()
        thread = threading.Thread(target=serve, args=(server, text))
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)  # wakes accept()
            thread.join()


def serve(server, text):
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(text)


def test_where_no_terminal_is_there_is_a_table_for_each_look(tmp_path, capsys, naps):
    naps.most = 3
    with stranger(tmp_path, json.dumps(STATUS).encode()):
        assert command_line.main(["top", "--interval", "7"]) == 0
    assert naps == [0.5, 7, 7]
    assert capsys.readouterr().out.count("1 worker of this host") == 2


def test_standard_input_may_be_closed(monkeypatch, naps):
    monkeypatch.setattr(sys, "stdin", None)
    naps.most = 2
    with keys.pressed() as wait:
        assert wait(5.0) == []
    assert naps == [5.0]


@pytest.mark.parametrize("arguments", [[], ["--once"]])
def test_without_rich_there_is_no_table(tmp_path, capsys, terminal, monkeypatch, arguments):
    for module in ("rich.console", "rich.live"):
        monkeypatch.setitem(sys.modules, module, None)
    with stranger(tmp_path, json.dumps(STATUS).encode()):
        assert command_line.main(["top", *arguments]) == 1
    assert "the table needs rich, which is not installed: pip install rich; or use --json" in capsys.readouterr().err


OF_ANOTHER_VERSION = (
    b"hello",
    b"\xff",
    b"{}",
    b"[]",
    b"null",
    b"5",
    b'{"worker": {"name": "a", "rank": 0, "pid": 1}}',
    json.dumps({**STATUS, "time": float("inf")}).encode(),
    json.dumps({**STATUS, "functions": [{}]}).encode(),
)


@pytest.mark.parametrize("text", OF_ANOTHER_VERSION)
def test_a_worker_of_another_version_is_said_to_be_one_and_harms_no_other(tmp_path, capsys, text):
    with stranger(tmp_path, text), stranger(tmp_path, json.dumps(STATUS).encode()):
        rows = {row.worker: row for row in rows_of(sources.of_this_host())}
        assert set(rows) == {"w", f"process {os.getpid()}"} and not rows["w"].problem
        problem = rows[f"process {os.getpid()}"].problem
        assert "gives no answer that torchwire" in problem and "another version" in problem
        assert command_line.main(["dump"]) == 1
        assert f"process {os.getpid()} gives no answer that torchwire" in capsys.readouterr().err


def test_a_worker_of_another_version_in_the_group_of_a_process(tmp_path):
    with stranger(tmp_path, json.dumps({"w": STATUS, "v": {}, "u": None, "t": {"error": "is dead"}}).encode()):
        well, *others = rows_of(sources.of_group(os.getpid())())
        assert not well.problem and others[2].problem == "is dead"
        assert all("another version" in other.problem for other in others[:2])


@pytest.mark.parametrize("text", [b"[]", b"5", b"hello"])
def test_a_process_of_another_version_that_is_asked_for_its_group(tmp_path, text):
    with stranger(tmp_path, text), pytest.raises(RuntimeError, match=f"process {os.getpid()} gives .* another version"):
        sources.of_group(os.getpid())()


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
@pytest.mark.slow
def test_the_screen(tmp_path):
    session = f"torchwire-top-{os.getpid()}"

    def tmux(*arguments):
        return subprocess.run(["tmux", *arguments], check=True, capture_output=True, text=True).stdout

    with Group(3) as group:
        group.init(file_in(tmp_path))
        group[0].run(observed.call_many, "worker1", 20)
        command = f"env -u COLUMNS -u LINES XDG_RUNTIME_DIR={tmp_path} {sys.executable} -m torchwire top --interval 0.2"
        tmux("new-session", "-d", "-s", session, "-x", "160", "-y", "20", command)
        try:
            wait_until(lambda: "q quit" in tmux("capture-pane", "-p", "-t", session))
            first = tmux("capture-pane", "-p", "-t", session)
            assert "3 workers of this host, by rank" in first and "OUT/s" in first and "worker2" in first
            tmux("send-keys", "-t", session, "sr")  # both at once
            wait_until(lambda: "by calls_out, reversed" in tmux("capture-pane", "-p", "-t", session))
            tmux("resize-window", "-t", session, "-y", "5")
            wait_until(lambda: "2 more below" in tmux("capture-pane", "-p", "-t", session))
            tmux("send-keys", "-t", session, "Down", "Down")
            wait_until(lambda: "2 more above" in tmux("capture-pane", "-p", "-t", session))
            group[2].kill()
            wait_until(lambda: "worker2" not in tmux("capture-pane", "-p", "-t", session))
            tmux("send-keys", "-t", session, "q")
            wait_until(lambda: session not in subprocess.run(["tmux", "ls"], capture_output=True, text=True).stdout)
        finally:
            subprocess.run(["tmux", "kill-session", "-t", session], capture_output=True)
            group.kill()


# ---- rows ---------------------------------------------------------------------------------------


def answer(*arguments, **options):
    return Answer("key", "w", status_at(*arguments, **options))


def test_rates_are_of_the_time_between_two_looks():
    row = rates.row_of(answer(12.0, 300, counts=(0, 300, 0, 0)), answer(10.0, 100, counts=(0, 100, 0, 0)), BOUNDS)
    assert (row.calls_out, row.calls_in, row.failures, row.errors, row.bytes_out) == (100, 100, 10, 2, 10_000)
    assert 0.001 < row.p50 < row.p99 <= 0.002
    assert (row.peers, row.peers_lost, row.rrefs, row.contexts, row.transports) == (1, 1, 3, 4, "wire_tcp encrypted")
    first = rates.row_of(answer(12.0, 300), None, BOUNDS)
    assert first.calls_out == 0
    again = rates.row_of(answer(12.0, 5, pid=2), answer(10.0, 100), BOUNDS)
    assert again.calls_out == 0  # another process in its place


def test_quantiles():
    assert rates.quantile([], BOUNDS, 0.5) == 0
    assert rates.quantile([10, 0, 0, 0], BOUNDS, 0.5) == pytest.approx(0.0005)
    assert rates.quantile([50, 50, 0, 0], BOUNDS, 0.99) == pytest.approx(0.00198)
    assert rates.quantile([0, 0, 0, 7], BOUNDS, 0.5) == 0.004


@pytest.mark.parametrize("width", [30, 80, 120, 200])
def test_the_most_important_columns_fit(width):
    console = pytest.importorskip("rich.console").Console(width=width, record=True, file=open(os.devnull, "w"))
    rows = [rates.Row(worker=f"worker{i}", rank=i, pid=123456, transports="wire_shm", calls_out=1234) for i in range(3)]
    console.print(screen.table(rows, "title", width))
    text = console.export_text()
    assert "WORKER" in text and "1234" in text
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert ("123456" in text) == (width >= 120)


def lines_of(page, width=80):
    console = pytest.importorskip("rich.console").Console(width=width, record=True, file=open(os.devnull, "w"))
    console.print(page.renderable())
    return [line.strip() for line in console.export_text().splitlines()]


def workers(count, **others):
    return [rates.Row(worker=f"worker{i}", rank=i, **others) for i in range(count)]


def test_all_rows_are_shown_where_they_fit():
    lines = lines_of(Page(workers(11), "title", 80, 14, first=5))
    assert len(lines) == 14 and "more" not in " ".join(lines)
    assert [line.split()[0] for line in lines] == ["title", "WORKER", *(f"worker{i}" for i in range(11)), "q"]


@pytest.mark.parametrize(
    "first, shown, more",
    [
        (0, range(10), "20 more below"),
        (7, range(7, 17), "7 more above, 13 more below"),
        (99, range(20, 30), "20 more above"),
    ],
)
def test_rows_that_do_not_fit_are_counted_and_can_be_scrolled_to(first, shown, more):
    page = Page(workers(30), "title", 80, 14, first)
    lines = lines_of(page)
    assert page.first == shown[0]
    assert [line.split()[0] for line in lines[2:-2]] == [f"worker{i}" for i in shown]
    assert lines[-2] == more and lines[-1].startswith("q quit") and len(lines) == 14


def test_problems_come_first_and_leave_room_for_the_others():
    problems = [
        rates.Row(worker=f"gone{i}", problem="does not answer within 3 s: " + "it is stopped " * 6) for i in "ab"
    ]
    lines = lines_of(Page([*workers(1), *problems], "title", 80, 14))
    assert [line.split()[0] for line in lines] == ["title", "gonea", "is", "goneb", "is", "WORKER", "worker0", "q"]
    lines = lines_of(Page([*workers(30), *problems * 20], "title", 80, 14))
    assert len(lines) == 14 and lines[1].startswith("gonea")
    assert lines[3] == "39 more that say nothing; --filter REGEX chooses"
    assert lines[5].startswith("worker0") and lines[-2] == "23 more below"


@pytest.mark.parametrize("height", range(1, 8))
def test_a_low_screen_shows_a_row(height):
    problems = workers(5, problem="is dead")
    assert any(line.startswith("worker0") for line in lines_of(Page([*workers(3), *problems], "title", 80, height)))


def test_keys_that_are_typed_fast():
    reading, writing = os.pipe()
    wait = keys.of_terminal(reading)
    assert wait(0) == []
    for typed, expected in (
        (b"ssr", ["s", "s", "r"]),
        (b"j\x1b[B\x1bOBk\x1b[A\x1bOA", ["down"] * 3 + ["up"] * 3),
        (b"\x1b", []),
        (b"[", []),
        (b"Bq", ["down", "end"]),
    ):
        os.write(writing, typed)
        assert wait(30) == expected
    os.close(writing)
    assert wait(30) == ["end"]
    os.close(reading)


@pytest.mark.parametrize(
    "arguments, order",
    [
        ([], [0, 1, 2]),
        (["--reverse"], [2, 1, 0]),
        (["--sort", "rrefs"], [1, 2, 0]),
        (["--sort", "rrefs", "--reverse"], [0, 2, 1]),
        (["--sort", "worker"], [0, 1, 2]),
    ],
)
def test_the_busiest_worker_is_on_top(tmp_path, capsys, naps, arguments, order):
    naps.most = 2
    said = {
        f"worker{rank}": {
            **STATUS,
            "worker": {**STATUS["worker"], "rank": rank, "name": f"worker{rank}"},
            "rrefs": {"owners": rrefs},
        }
        for rank, rrefs in enumerate((1, 8, 5))
    }
    with stranger(tmp_path, json.dumps(said).encode()):
        assert command_line.main(["top", "--once", "--json", "--group", str(os.getpid()), *arguments]) == 0
    rows = json.loads(capsys.readouterr().out)["workers"]
    assert [row["rank"] for row in rows] == order


def test_cells_are_short():
    assert [screen.time_text(seconds) for seconds in (0, 12.3e-6, 0.0451, 3.21)] == ["-", "12.3us", "45.1ms", "3.21s"]
    assert [screen.size_text(size) for size in (0, 999, 2048, 5 << 20, 3 << 30)] == ["0B", "999B", "2K", "5M", "3G"]
