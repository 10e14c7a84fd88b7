"""The file of a trace, in Chrome's JSON format of trace events.

Each worker is a process. Its calls are slices in lanes: a thread may have many calls under way at once, but slices of
one track must nest, so each call is put into the first lane that is free when it begins. In a call's slice lie those of
its stages. An arrow leads from its stage `wire` to the slice of its request at the callee.

Backward passes have lanes of their own: in a pass's slice, at the worker that started it, lies that of the worker's own
part, its graph task. Arrows lead from there to the calls that bring gradients elsewhere, and from requests that bring
some to the graph task that takes them.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from torchwire.observe.trace_notes import CallNotes, Note, PassSpan, passes_in

# The first lanes. A thread with its process's number, which is the rank, would be shown as the main thread.
_CALLS, _SERVED, _PASSES = 100_000, 200_000, 300_000

# Far from the numbers that Perfetto gives to arrows that are events of their own: with slices' it takes what is there.
_BOUND = 1 << 40

_Span = TypeVar("_Span", "Event", PassSpan)
_CallKey = tuple[int, int, int]  # caller, callee, and the call's number


class Event(NamedTuple):
    """As TorchwireAgent.stop_trace() returns them; times in seconds of the worker's clock."""

    kind: str
    peer: int
    call: int
    function: int
    begun: float
    middle: float
    ended: float
    served: float
    error: str
    thread: int


@dataclass
class WorkerTrace:
    """What one worker has noted. `offset`: how far its clock is ahead, in seconds."""

    name: str
    rank: int
    answer: dict[str, Any]
    offset: float

    def events(self) -> list[Event]:
        """In the time of the worker that writes; but for torchwire's own messages."""
        moved: list[Event] = []
        for fields in self.answer["events"]:
            event = Event(*fields)
            if event.kind != "reading" and self.label(event) == "control":
                continue
            moved.append(
                event._replace(
                    begun=event.begun - self.offset, middle=event.middle - self.offset, ended=event.ended - self.offset
                )
            )
        return moved

    def notes(self) -> list[Note]:
        """In the time of the worker that writes."""
        return [Note(*fields).moved(self.offset) for fields in self.answer.get("notes", ())]

    def label(self, event: Event) -> str:
        """What the event's call is of."""
        kind, function = self.answer["functions"].get(str(event.function), ("call", ""))
        return function or kind


def write(
    path: str | os.PathLike[str],
    workers: list[WorkerTrace],
    wrote: Callable[[int, int], None] = lambda _done, _all: None,
) -> int:
    """Writes the file and returns how many events of workers are in it. Raises OSError.

    `wrote` is told how many of how many are written.
    """
    group = _Group(workers)
    total = sum(len(events) for events in group.events.values())
    count = 0
    wrote(count, total)
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        separator = ""
        for worker in workers:
            for slice_ in _of_worker(worker, group):
                file.write(separator + json.dumps(slice_))
                separator = ",\n"
            count += len(group.events[worker.rank])
            wrote(count, total)
        lost = {worker.name: worker.answer["lost"] for worker in workers if worker.answer["lost"]}
        file.write('\n], "otherData": ' + json.dumps({"lost events": lost}) + "}\n")
    return count


class _GraphTask(NamedTuple):
    """Where one is in the file."""

    tid: int
    note: Note


class _Group:
    """What is known of all workers, by which the slices of one refer to those of others."""

    def __init__(self, workers: list[WorkerTrace]) -> None:
        self.names = {worker.rank: worker.name for worker in workers}
        self.events = {worker.rank: worker.events() for worker in workers}
        self.notes = {worker.rank: worker.notes() for worker in workers}
        self.of_calls = CallNotes(self.notes)
        self.requests = {
            (event.peer, rank, event.call): event
            for rank, of_worker in self.events.items()
            for event in of_worker
            if event.kind == "callee"
        }
        self._made = {
            (rank, event.peer, event.call)
            for rank, of_worker in self.events.items()
            for event in of_worker
            if event.kind == "caller"
        }
        self._arrows: dict[tuple[int | str, ...], int] = {}

    def arrow(self, *key: int | str) -> int:
        """The number of an arrow, alike at both ends; a name will not do: Perfetto takes no other ids."""
        return self._arrows.setdefault(key, len(self._arrows) + 1)

    def arrow_between(self, call: _CallKey, end: str) -> dict[str, Any]:
        """What makes a slice the end "flow_out" or "flow_in" of the arrow from a call to its request."""
        there = call in self._made and call in self.requests
        return {"bind_id": _BOUND + self.arrow(*call), end: True} if there else {}


def _of_worker(worker: WorkerTrace, group: _Group) -> Iterator[dict[str, Any]]:
    yield {
        "ph": "M", "pid": worker.rank, "name": "process_name", "args": {"name": f"{worker.name} (rank {worker.rank})"},
    }  # fmt: skip
    events = group.events[worker.rank]
    tasks: dict[str, _GraphTask] = {}
    passes = passes_in(group.notes[worker.rank])
    for lane, span in _lanes(passes, {span: span.ended for span in passes}):
        tid = _PASSES + lane
        yield _lane_name(worker, tid, f"backward passes {lane + 1}")
        yield from _pass(worker, tid, span)
        if span.part:
            tasks[span.name] = _GraphTask(tid, span.part)
    reading = {(event.peer, event.call): event for event in events if event.kind == "reading"}
    made = [event for event in events if event.kind == "caller"]
    ends = {event: max(event.ended, _read(reading, event).ended) for event in made}
    for lane, event in _lanes(made, ends):
        tid = _CALLS + lane
        yield _lane_name(worker, tid, f"calls {lane + 1}")
        yield from _call(worker, tid, event, _read(reading, event), group)
        yield from _gradients_sent(worker, tid, event, group, tasks)
    served = [event for event in events if event.kind == "callee"]
    for lane, event in _lanes(served, {event: event.ended for event in served}):
        tid = _SERVED + lane
        yield _lane_name(worker, tid, f"requests {lane + 1}")
        yield from _request(worker, tid, event, group)
        yield from _gradients_taken(worker, tid, event, group, tasks)
    yield from _incidents(worker, group)


def _pass(worker: WorkerTrace, tid: int, span: PassSpan) -> Iterator[dict[str, Any]]:
    for name, note in ("backward pass", span.whole), ("graph task", span.part):
        if note:
            args = {**span.args, "failed": note.detail} if note.detail else span.args
            yield _slice(worker, tid, name, note.begun, note.ended, args)


def _gradients_sent(
    worker: WorkerTrace, tid: int, event: Event, group: _Group, tasks: Mapping[str, _GraphTask]
) -> Iterator[dict[str, Any]]:
    """The arrow from the graph task to the call."""
    key = worker.rank, event.peer, event.call
    task = tasks.get(group.of_calls.pass_of(key) or "")
    if task and task.note.begun <= event.begun <= task.note.ended:
        yield from _gradients(worker, task.tid, tid, event.begun, "gradients sent", group.arrow(*key, "sent"))


def _gradients_taken(
    worker: WorkerTrace, tid: int, event: Event, group: _Group, tasks: Mapping[str, _GraphTask]
) -> Iterator[dict[str, Any]]:
    """The arrow from the request to the graph task, which may have begun by it."""
    key = event.peer, worker.rank, event.call
    task = tasks.get(group.of_calls.pass_of(key) or "")
    if task:
        when = max(event.middle, task.note.begun)
        if when <= min(event.ended, task.note.ended):
            yield from _gradients(worker, tid, task.tid, when, "gradients taken", group.arrow(*key, "taken"))


def _gradients(
    worker: WorkerTrace, from_: int, to: int, when: float, name: str, arrow: int
) -> Iterator[dict[str, Any]]:
    ends = {"cat": "backward", "name": name, "id": arrow, "pid": worker.rank, "ts": when * 1e6}
    yield {"ph": "s", "tid": from_, **ends}
    yield {"ph": "f", "bp": "e", "tid": to, **ends}


def _incidents(worker: WorkerTrace, group: _Group) -> Iterator[dict[str, Any]]:
    """Moments, on the worker's own track."""
    for note in group.notes[worker.rank]:
        if note.kind == "incident":
            args = {"peer": group.names.get(note.peer, f"rank {note.peer}")}
            yield _moment(worker, note.subject, note.begun, {**args, "reason": note.detail} if note.detail else args)
    for when, action, sentence in worker.answer.get("faults", ()):
        yield _moment(worker, f"injected {action}", when - worker.offset, {"reason": sentence})


def _read(reading: dict[tuple[int, int], Event], call: Event) -> Event:
    nothing = call._replace(begun=call.ended, middle=call.ended)
    return reading.get((call.peer, call.call), nothing)


def _lanes(events: Iterable[_Span], ends: Mapping[_Span, float]) -> Iterator[tuple[int, _Span]]:
    """Each event, or pass, with the lowest lane that is free."""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    count = 0
    for event in sorted(events, key=lambda event: event.begun):
        while busy and busy[0][0] <= event.begun:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, count = count, count + 1
        heapq.heappush(busy, (ends[event], lane))
        yield lane, event


def _call(worker: WorkerTrace, tid: int, event: Event, reading: Event, group: _Group) -> Iterator[dict[str, Any]]:
    key = worker.rank, event.peer, event.call
    request = group.requests.get(key)
    args: dict[str, Any] = {"call": event.call, "to": event.peer, "thread": event.thread}
    args |= group.of_calls.rref_of(key)
    if event.error:
        args["failed"] = event.error
    end = max(event.ended, reading.ended)
    yield _slice(worker, tid, worker.label(event), event.begun, end, args)
    yield from _stage(worker, tid, "pickle", event.begun, event.middle)
    if request is not None:
        # Clocks of two hosts agree only so far: a stage must not begin before the last one has ended.
        arrived = min(max(request.begun, event.middle), event.ended)
        answered = min(max(request.ended, arrived), event.ended)
        # Whatever it took: the arrow leaves where it ends, while one from the call would leave at the call's end.
        yield _slice(worker, tid, "wire", event.middle, arrived) | group.arrow_between(key, "flow_out")
        yield from _stage(worker, tid, "callee", arrived, answered)
        yield from _stage(worker, tid, "reply", answered, event.ended)
    if reading.ended > event.ended:
        yield from _stage(worker, tid, "unpickle", max(reading.begun, event.ended), reading.ended)


def _request(worker: WorkerTrace, tid: int, event: Event, group: _Group) -> Iterator[dict[str, Any]]:
    key = event.peer, worker.rank, event.call
    args: dict[str, Any] = {"call": event.call, "from": event.peer, "thread": event.thread}
    args |= group.of_calls.rref_of(key)
    yield _slice(worker, tid, worker.label(event), event.begun, event.ended, args) | group.arrow_between(key, "flow_in")
    yield from _stage(worker, tid, "queue", event.begun, event.middle)
    yield from _stage(worker, tid, "run", event.middle, event.ended)


def _stage(worker: WorkerTrace, tid: int, name: str, begun: float, ended: float) -> Iterator[dict[str, Any]]:
    """Of a call or a request; not if it took no time, as a message's that is not pickled: that is drawn as a moment."""
    if ended > begun:
        yield _slice(worker, tid, name, begun, ended)


def _slice(
    worker: WorkerTrace, tid: int, name: str, begun: float, ended: float, args: dict[str, Any] | None = None
) -> dict[str, Any]:
    slice_: dict[str, Any] = {
        "ph": "X", "cat": "rpc", "name": name, "pid": worker.rank, "tid": tid, "ts": begun * 1e6,
        "dur": max(0.0, ended - begun) * 1e6,
    }  # fmt: skip
    if args:
        slice_["args"] = args
    return slice_


def _moment(worker: WorkerTrace, name: str, when: float, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "i", "s": "p", "cat": "incident", "name": name, "pid": worker.rank, "tid": 0, "ts": when * 1e6,
        "args": args,
    }  # fmt: skip


def _lane_name(worker: WorkerTrace, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": worker.rank, "tid": tid, "name": "thread_name", "args": {"name": name}}
