"""The file of a trace, in Chrome's JSON format of trace events.

Each worker is a process. Its calls are slices in lanes: a thread may have many calls under way at once, but slices of
one track must nest, so each call is put into the first lane that is free when it begins. In a call's slice lie those of
its stages. An arrow leads from a call to the slice of its request at the callee.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

_CALLS, _SERVED = 1, 100_000  # the first lanes


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

    def label(self, event: Event) -> str:
        """What the event's call is of."""
        kind, function = self.answer["functions"].get(str(event.function), ("call", ""))
        return function or kind


def write(path: str | os.PathLike[str], workers: list[WorkerTrace]) -> int:
    """Writes the file and returns how many events of workers are in it. Raises OSError."""
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        separator = ""
        events = {worker.rank: worker.events() for worker in workers}
        requests = {
            (event.peer, rank, event.call): event
            for rank, of_worker in events.items()
            for event in of_worker
            if event.kind == "callee"
        }
        for worker in workers:
            for slice_ in _of_worker(worker, events[worker.rank], requests):
                file.write(separator + json.dumps(slice_))
                separator = ",\n"
            count += len(events[worker.rank])
        lost = {worker.name: worker.answer["lost"] for worker in workers if worker.answer["lost"]}
        file.write('\n], "otherData": ' + json.dumps({"lost events": lost}) + "}\n")
    return count


def _of_worker(
    worker: WorkerTrace, events: list[Event], requests: dict[tuple[int, int, int], Event]
) -> Iterator[dict[str, Any]]:
    yield {
        "ph": "M", "pid": worker.rank, "name": "process_name", "args": {"name": f"{worker.name} (rank {worker.rank})"},
    }  # fmt: skip
    reading = {(event.peer, event.call): event for event in events if event.kind == "reading"}
    made = [event for event in events if event.kind == "caller"]
    ends = {event: max(event.ended, _read(reading, event).ended) for event in made}
    for lane, event in _lanes(made, ends):
        tid = _CALLS + lane
        yield _lane_name(worker, tid, f"calls {lane + 1}")
        yield from _call(worker, tid, event, _read(reading, event), requests.get((worker.rank, event.peer, event.call)))
    served = [event for event in events if event.kind == "callee"]
    for lane, event in _lanes(served, {event: event.ended for event in served}):
        tid = _SERVED + lane
        yield _lane_name(worker, tid, f"requests {lane + 1}")
        yield from _request(worker, tid, event)


def _read(reading: dict[tuple[int, int], Event], call: Event) -> Event:
    nothing = call._replace(begun=call.ended, middle=call.ended)
    return reading.get((call.peer, call.call), nothing)


def _lanes(events: Iterable[Event], ends: dict[Event, float]) -> Iterator[tuple[int, Event]]:
    """Each event with the lowest lane that is free."""
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


def _call(
    worker: WorkerTrace, tid: int, event: Event, reading: Event, request: Event | None
) -> Iterator[dict[str, Any]]:
    args: dict[str, Any] = {"call": event.call, "to": event.peer, "thread": event.thread}
    if event.error:
        args["failed"] = event.error
    end = max(event.ended, reading.ended)
    yield _slice(worker, tid, worker.label(event), event.begun, end, args)
    yield _slice(worker, tid, "pickle", event.begun, event.middle)
    if request is not None:
        # Clocks of two hosts agree only so far: a stage must not begin before the last one has ended.
        arrived = min(max(request.begun, event.middle), event.ended)
        answered = min(max(request.ended, arrived), event.ended)
        yield _slice(worker, tid, "wire", event.middle, arrived)
        yield _slice(worker, tid, "callee", arrived, answered)
        yield _slice(worker, tid, "reply", answered, event.ended)
        yield {"ph": "s", **_arrow_end(worker, tid, event.middle, f"{worker.rank}.{event.peer}.{event.call}")}
    if reading.ended > event.ended:
        yield _slice(worker, tid, "unpickle", max(reading.begun, event.ended), reading.ended)


def _request(worker: WorkerTrace, tid: int, event: Event) -> Iterator[dict[str, Any]]:
    args = {"call": event.call, "from": event.peer, "thread": event.thread}
    yield _slice(worker, tid, worker.label(event), event.begun, event.ended, args)
    yield {"ph": "f", "bp": "e", **_arrow_end(worker, tid, event.begun, f"{event.peer}.{worker.rank}.{event.call}")}
    yield _slice(worker, tid, "queue", event.begun, event.middle)
    yield _slice(worker, tid, "run", event.middle, event.ended)


def _arrow_end(worker: WorkerTrace, tid: int, when: float, call: str) -> dict[str, Any]:
    """`call`: caller, callee and number, alike at both ends."""
    return {"cat": "rpc", "name": "call", "id": call, "pid": worker.rank, "tid": tid, "ts": when * 1e6}


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


def _lane_name(worker: WorkerTrace, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": worker.rank, "tid": tid, "name": "thread_name", "args": {"name": name}}
