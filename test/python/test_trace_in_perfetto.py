"""Perfetto's own trace processor reads a trace as it was written: the same slices, nested, and the same arrows."""

import collections
import json

import observed
import perfetto_engine
import pytest
from group import running
from perfetto.common.exceptions import PerfettoException

ALL = """
select slice.id, slice.name, slice.ts, slice.dur, slice.parent_id as parent, process.pid as rank, process.name as worker
from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
"""
ARROWS = """
select source.id as source, source.name as left, target.id as target
from flow join slice source on flow.slice_out = source.id join slice target on flow.slice_in = target.id
"""
LOST = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"


def written(path, phase):
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == phase]


def test_a_backward_pass_of_four_workers(tmp_path):
    path = tmp_path / "trace.json"
    with running(4, tmp_path) as group:
        group[0].run(observed.backward_of_four, path)
    with perfetto_engine.opened(path) as engine:
        lost = [(row.name, row.value) for row in engine.query(LOST)]
        slices = {row.id: row for row in engine.query(ALL)}
        arrows = list(engine.query(ARROWS))

    assert not lost
    assert {row.rank: row.worker for row in slices.values()} == {r: f"worker{r} (rank {r})" for r in range(4)}
    found = collections.Counter((row.rank, row.name) for row in slices.values())
    assert found == collections.Counter((event["pid"], event["name"]) for event in written(path, "X"))
    check_made(found)
    for row in slices.values():
        if row.parent is not None:
            outer = slices[row.parent]
            assert outer.ts <= row.ts and row.ts + row.dur <= outer.ts + outer.dur
    assert len(arrows) == len(written(path, "s")) + sum("flow_out" in event for event in written(path, "X"))
    check_arrows(arrows, slices)


def check_made(found):
    """What the program called: forward once from worker0 to each other, and back in one pass."""
    assert found[0, "forward"] == 3 and all(found[rank, "forward"] == 1 for rank in (1, 2, 3))
    assert found[0, "backward pass"] == 1 and all(found[rank, "graph task"] == 1 for rank in range(4))
    # Gradients go from worker0 to each other, and from each back: a call and a request for each.
    assert sum(count for (_, name), count in found.items() if name == "backward") >= 12


def check_arrows(arrows, slices):
    """Each call has one to the request that served it, on another worker, which is over before the call is."""
    between = [(slices[arrow.source], slices[arrow.target]) for arrow in arrows if arrow.left == "wire"]
    assert collections.Counter(request.name for _, request in between)["forward"] == 3
    for wire, request in between:
        call = slices[wire.parent]
        assert call.name == request.name and call.rank != request.rank
        assert wire.ts + wire.dur <= request.ts + 10 and request.ts + request.dur <= call.ts + call.dur + 10  # rounding


def test_what_is_no_trace_is_refused(tmp_path):
    """So that the test above can fail."""
    path = tmp_path / "trace.json"
    path.write_text("nothing\n")
    with pytest.raises(PerfettoException, match="Unknown trace type"), perfetto_engine.opened(path):
        pass
