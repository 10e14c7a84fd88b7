"""What is noted in traces beside calls: backward passes, which RRef a call is about, and what has broken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

CallKey = tuple[int, int, int]  # caller, callee, and the caller's number of the call


class Note(NamedTuple):
    """As TorchwireAgent.stop_trace() returns them; times in seconds of the worker's clock.

    kind: "pass", a backward pass, at the worker that has started it; "graph_task", a worker's part in one; "gradients",
    a request of one that this worker has served; "rref", a request about an RRef; "incident", of a link or a worker.
    peer: the caller of the request, or the worker that the incident is about. call: the request's number.
    subject: "context.root.number" of the pass; the RRef, or ""; what has happened.
    detail: why the pass has failed, or ""; the fork, or ""; why it has happened.
    """

    kind: str
    peer: int
    call: int
    begun: float
    ended: float
    subject: str
    detail: str

    def moved(self, offset: float) -> Note:
        """By a clock that is `offset` seconds behind."""
        return self._replace(begun=self.begun - offset, ended=self.ended - offset)


class CallNotes:
    """What the callees have noted of calls, for both their sides."""

    def __init__(self, notes: Mapping[int, Iterable[Note]]) -> None:
        """`notes`: by worker."""
        self._passes: dict[CallKey, str] = {}
        self._rrefs: dict[CallKey, dict[str, str]] = {}
        rref_of: dict[str, str] = {}
        for callee, of_worker in notes.items():
            for note in of_worker:
                key = note.peer, callee, note.call
                if note.kind == "gradients":
                    self._passes[key] = note.subject
                elif note.kind == "rref":
                    named = {"rref": note.subject, "fork": note.detail}
                    self._rrefs[key] = {name: text for name, text in named.items() if text}
                    if note.subject and note.detail:
                        rref_of[note.detail] = note.subject
        for named in self._rrefs.values():  # RREF_CHILD_ACCEPT names the fork alone
            if "rref" not in named and named["fork"] in rref_of:
                named["rref"] = rref_of[named["fork"]]

    def pass_of(self, call: CallKey) -> str | None:
        """The backward pass whose gradients the call brings."""
        return self._passes.get(call)

    def rref_of(self, call: CallKey) -> dict[str, str]:
        """The RRef and the fork that the call is about, as far as it says so."""
        return self._rrefs.get(call, {})


class PassSpan(NamedTuple):
    """A backward pass on one worker. `whole`: of the worker that has started it; `part`: what this worker did in it."""

    name: str
    whole: Note | None
    part: Note | None

    @property
    def begun(self) -> float:
        return min(note.begun for note in (self.whole, self.part) if note)

    @property
    def ended(self) -> float:
        return max(note.ended for note in (self.whole, self.part) if note)

    @property
    def args(self) -> dict[str, Any]:
        context, root, number = self.name.split(".")
        return {"context": int(context), "root": int(root), "pass": int(number)}


def passes_in(notes: Iterable[Note]) -> list[PassSpan]:
    """Those of one worker that began and ended while the trace was on."""
    wholes: dict[str, Note] = {}
    parts: dict[str, Note] = {}
    for note in notes:
        if note.kind == "pass":
            wholes[note.subject] = note
        elif note.kind == "graph_task":
            parts[note.subject] = note
    return [PassSpan(name, wholes.get(name), parts.get(name)) for name in {**wholes, **parts}]
