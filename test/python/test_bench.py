"""The command bench: what numbers come to, who is measured when, and what is written in the end."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
from torchwire import command_line
from torchwire.bench import case, contestant, plot, processes, report
from torchwire.bench.batch import Batch, percentile, ratio, summarize
from torchwire.bench.case import Case
from torchwire.bench.contestant import Contestant
from torchwire.bench.group import Group, GroupError, WorkerGroup
from torchwire.bench.record import Record
from torchwire.bench.sampling import Pace, from_threads, latency, window
from torchwire.bench.schedule import Schedule
from torchwire.bench.step import QUICK, Step
from torchwire.bench.workload import WORKLOADS

MACHINE = {"processor": "abacus", "cores": "2"}
SETTINGS = {"rounds": 3, "seconds": 0.02, "wall_seconds": 7.4}

# ---- numbers ----


@pytest.mark.parametrize(
    "samples, percent, expected", [([7], 99, 7), (range(1, 101), 99, 99), (range(1, 201), 99, 198), ([1, 2, 3], 50, 2)]
)
def test_a_percentile_is_a_sample(samples, percent, expected):
    assert percentile(list(samples), percent) == expected


def batches(*medians):
    return {number: Batch([float(median)]) for number, median in enumerate(medians)}


def test_a_ratio_is_the_median_of_the_ratios_of_each_round():
    # Not 2, that of the medians: the second round was slow for both.
    assert ratio(batches(1, 100, 3), batches(2, 100, 1)) == 1


def test_a_round_that_one_of_them_missed_does_not_count():
    mine, theirs = batches(1, 1, 9), batches(2, 2)
    assert ratio(mine, theirs) == 0.5
    assert ratio(batches(1), {5: Batch([1.0])}) is None


def test_nothing_is_divided_by_zero():
    assert ratio(batches(1, 4), batches(0, 2)) == 2
    assert ratio(batches(1), batches(0)) is None


def test_a_summary_pools_the_samples_and_takes_the_median_of_the_cpu():
    mine = {0: Batch([3.0, 1.0, 2.0], 10.0), 1: Batch([4.0, 6.0, 5.0], 30.0)}
    summary = summarize(mine, {0: Batch([4.0]), 1: Batch([5.0])})
    assert (summary.p50, summary.p99, summary.best, summary.cpu, summary.samples) == (3.5, 6, 2, 20, 6)
    assert summary.ratio == 0.75
    assert summarize(mine, None).ratio is None


@pytest.mark.parametrize(
    "unit, cost, text",
    [
        ("time", 950, "0.95 µs"),
        ("time", 123_456, "123 µs"),
        ("time", 999_700, "1.00 ms"),
        ("time", 2.5e9, "2.50 s"),
        ("rate", 20_000, "50,000/s"),
        ("bandwidth", 1000, "1.00 µs, 4.10 GB/s"),
        ("share", 0.5, "50.00 %"),
        ("count", 190, "190"),
        ("bytes", 3 << 20, "3.0 MiB"),
    ],
)
def test_costs_are_written_for_people(unit, cost, text):
    assert Case("echo", "", unit, size=4096).text(cost) == text


def test_sizes_are_written_in_whole_numbers():
    assert [case.size_text(size) for size in (64, 1 << 16, 64 << 20)] == ["64 B", "64 KiB", "64 MiB"]


# ---- samples ----


def test_each_call_after_the_warm_up_is_a_sample():
    calls = []
    batch = latency(lambda: calls.append(time.sleep(0.001)), Pace(0.02, warm_ups=2))
    assert len(batch.samples) == len(calls) - 2
    assert all(sample >= 1e6 for sample in batch.samples) and batch.cpu is None


def test_a_slow_call_is_sampled_as_often_as_it_has_to_be():
    assert len(latency(lambda: time.sleep(0.01), Pace(0, at_least=2, warm_ups=0)).samples) == 2


def test_a_window_is_full_and_empty_at_the_end():
    under_way, most = 0, 0

    def end():
        nonlocal under_way
        under_way -= 1

    def begin():
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        return end

    batch = window(begin, 8, Pace(0.005))
    assert (under_way, most) == (0, 8)
    assert len(batch.samples) == 1


def test_threads_share_the_work():
    under_way = []
    most = 0

    def call():
        nonlocal most
        under_way.append(None)
        most = max(most, len(under_way))
        time.sleep(0.005)
        under_way.pop()

    batch = from_threads(call, 4, Pace(0.05, warm_ups=1))
    assert most == 4
    assert len(batch.samples) == 1


def test_an_error_on_one_thread_ends_them_all():
    def fail():
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError):
        from_threads(fail, 3, Pace(10))


# ---- whose turn it is ----


class FakeGroup(Group):
    """Notes what happens to it. One called bad fails in its second turn, one called lame at its start."""

    events = []
    turns = 0

    def start(self):
        self.note("start")
        if self.contestant.name == "lame":
            raise GroupError("cannot walk")

    @contextlib.contextmanager
    def running(self):
        yield

    def pids(self):
        return []

    def close(self):
        self.note("close")

    def kill(self):
        self.note("kill")

    def note(self, event):
        FakeGroup.events.append((self.contestant.name, event))


def take_turn(group, _pace):
    group.turns += 1
    if group.contestant.name == "bad" and group.turns == 2:
        raise GroupError("fell over")
    group.note("turn")
    return [Batch([float(group.turns)])]


def run_schedule(*names, **changes):
    FakeGroup.events = []
    record = Record()
    contestants = [Contestant(name, "", frozenset({"calls"})) for name in names]
    step = Step((Case("latency", "no-op"),), "calls", take_turn)._replace(**changes)
    turns = []
    Schedule([step], contestants, QUICK, record, FakeGroup).run(turns.append)
    return record, FakeGroup.events, turns


def test_each_round_begins_with_another_group():
    record, events, turns = run_schedule("a", "b", "c")
    assert [name for name, event in events if event == "turn"] == list("abcbcacab")
    assert len(turns) == 9
    assert [len(rounds) for rounds in next(iter(record.batches.values())).values()] == [3, 3, 3]


@pytest.mark.parametrize("bad, error, turns", [("bad", "fell over", 1), ("lame", "cannot walk", 0)])
def test_a_group_that_fails_is_killed_and_the_others_go_on(bad, error, turns):
    record, events, _ = run_schedule("good", bad)
    assert record.errors == [(bad, error)]
    assert events.count((bad, "turn")) == turns and (bad, "kill") in events
    assert events.count(("good", "turn")) == 3 and ("good", "close") in events


def test_what_a_contestant_does_not_offer_is_not_asked_of_it():
    assert run_schedule("a", needs="rpc")[1] == []


def test_fresh_groups_come_one_at_a_time():
    record, events, _ = run_schedule("a", "b", is_fresh=True, most_rounds=2)
    assert events == [("a", "turn"), ("a", "kill"), ("b", "turn"), ("b", "kill")] * 2
    assert record.errors == []


def test_a_process_that_is_stopped_uses_no_core():
    process = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        processes.stop([process.pid])
        before = processes.cpu_time([process.pid])
        time.sleep(0.05)
        assert processes.cpu_time([process.pid]) == before
    finally:
        process.kill()
        process.communicate()


def hang(_member):
    time.sleep(60)


def die(_member):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("function, sentence", [(hang, "does not answer within 1 s .hang."), (die, "has ended .die.")])
def test_a_process_that_does_not_answer_is_an_error(monkeypatch, function, sentence):
    group = WorkerGroup(*contestant.named(["mp.Pipe"]), size=2)
    try:
        group.start()
        monkeypatch.setattr("torchwire.bench.group.PATIENCE", 1.0)
        with pytest.raises(GroupError, match=f"process 0 of mp.Pipe {sentence}"):
            group.caller.run(function)
    finally:
        group.kill()
    assert group.pids() == []


# ---- what is written ----


@pytest.fixture
def record():
    result = Record()
    stock, ours, other = contestant.named(["stock", "torchwire", "pyzmq"])
    noop, echo = Case("latency", "no-op"), Case("echo", "64 KiB", "bandwidth", 128 << 10)
    for number in range(3):
        result.add(noop, stock, number, Batch([200_000.0, 210_000.0, 220_000.0], 400_000.0))
        result.add(noop, ours, number, Batch([50_000.0, 52_500.0, 55_000.0], 100_000.0))
        result.add(echo, other, number, Batch([65_536.0]))
    result.contestants = [stock, ours]
    result.leave_out(*contestant.named(["ray"]), "not installed: pip install ray")
    result.fail(stock, "fell over")
    return result


def test_the_markdown_has_a_table_for_each_workload(record):
    text = report.as_markdown(record, MACHINE, SETTINGS)
    lines = text.splitlines()
    assert "| processor | abacus |" in lines and "| torchwire | torchwire with default options |" in lines
    assert "| no-op | stock | 210 µs | 220 µs | 1.00 | 400 µs |" in lines
    assert "| no-op | torchwire | 52.5 µs | 55.0 µs | 0.25 | 100 µs |" in lines
    assert "| 64 KiB | pyzmq | 65.5 µs, 2.00 GB/s | 65.5 µs | – |" in lines
    assert "- stock: fell over" in lines and "- ray: not installed: pip install ray" in lines
    assert "3 rounds, in which each contestant has turns of 20 ms" in text and "below 1 is better" in text


def test_the_json_has_every_figure(record):
    data = json.loads(json.dumps(report.as_json(record, MACHINE, SETTINGS)))
    assert data["format"] == report.FORMAT and data["reference"] == "stock" and data["machine"] == MACHINE
    assert data["errors"] == [{"contestant": "stock", "error": "fell over"}]
    assert list(data["contestants"]) == ["stock", "torchwire"]
    (ours,) = [result for result in data["results"] if result["contestant"] == "torchwire"]
    assert (ours["workload"], ours["name"], ours["unit"]) == ("latency", "no-op", "time")
    assert (ours["p50"], ours["p99"], ours["ratio"], ours["samples"]) == (52_500, 55_000, 0.25, 9)
    assert ours["rounds"] == {"0": 52_500, "1": 52_500, "2": 52_500}


def test_the_picture_is_a_png(record, tmp_path):
    pytest.importorskip("matplotlib")
    plot.draw(record, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.delenv(contestant.PIPE_PROGRAM, raising=False)
    (pipe,) = contestant.named(["pipe/shm"])
    assert pipe.why_absent() == "needs a checkout: tools/bench"
    absent = Contestant("carrier", "pigeons", frozenset(), "x:Y", package="carrier-pigeon", module="carrier_pigeon")
    assert absent.why_absent() == "not installed: pip install carrier-pigeon"
    assert absent.version() is None


# ---- the command ----


def bench(tmp_path, *arguments):
    status = command_line.main(["bench", "--quick", "--rounds", "1", "--output", str(tmp_path), *arguments])
    return status, json.loads((tmp_path / "results.json").read_text()), (tmp_path / "report.md").read_text()


def test_two_contestants_are_measured(tmp_path):
    status, data, text = bench(tmp_path, "--only", "latency", "--contestants", "mp.Pipe,torchwire")
    assert status == 0, data["errors"]
    results = {(result["name"], result["contestant"]): result for result in data["results"]}
    assert ("async function", "torchwire") in results and ("async function", "mp.Pipe") not in results
    for result in results.values():
        assert 0 < result["best"] <= result["p50"] * 1.001 <= result["p99"] * 1.001 and result["cpu"] > 0
        assert math.isfinite(result["p99"]) and result["ratio"] is None  # since stock is not among them
    assert "| no-op | mp.Pipe |" in text and data["machine"]["cores"]


def test_a_contestant_that_fails_is_named_and_the_others_go_on(tmp_path, monkeypatch):
    monkeypatch.setenv(contestant.PIPE_PROGRAM, "/bin/false")
    contestants = "stock/nosuch,mp.Pipe,pipe/shm"
    status, data, text = bench(tmp_path, "--only", "echo", "--contestants", contestants)
    assert status == 1
    errors = {error["contestant"]: error["error"] for error in data["errors"]}
    assert "Unknown transport: nosuch" in errors["stock/nosuch"]
    assert errors["pipe/shm"] == "pipe/shm ended in its start, with status 1"
    assert {result["contestant"] for result in data["results"]} == {"mp.Pipe"}
    assert "- pipe/shm: pipe/shm ended in its start" in text


@pytest.mark.slow
@pytest.mark.alone
def test_every_workload_measures_torchwire_beside_stock(tmp_path):
    status, data, _ = bench(tmp_path, "--contestants", "stock,torchwire")
    assert status == 0, data["errors"]
    measured = {(result["workload"], result["contestant"]) for result in data["results"]}
    assert measured == {(workload, name) for workload in WORKLOADS for name in ("stock", "torchwire")}
    assert all(result["ratio"] is not None for result in data["results"])


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--only", "latency,nosuch"], "there is no workload 'nosuch'; there are latency, rate"),
        (["--contestants", "carrier"], "there is no contestant 'carrier'; there are stock, stock/uv, torchwire"),
        (["--rounds", "0"], "--rounds is 0; it has to be at least 1"),
        (["--output", "/proc/nosuch"], "--output /proc/nosuch cannot be made"),
    ],
)
def test_bad_arguments_are_explained(capsys, arguments, sentence):
    assert command_line.main(["bench", *arguments]) == 2
    assert sentence in capsys.readouterr().err
