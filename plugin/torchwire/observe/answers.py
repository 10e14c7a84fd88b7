"""What this worker says to an observer: to one on this host by its status socket, to another worker by a message.

A question is a JSON object with the key "ask"; an answer is one, too. The agent calls answer() on a thread of its own
that may wait for the global interpreter lock, so that a worker that holds it for long answers late, or not in time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, cast

from torchwire._C import TorchwireAgent
from torchwire.current_agent import agent_for
from torchwire.observe import dump, metrics, trace_part
from torchwire.observe.parallel import of_each
from torchwire.observe.trace_part import UNKNOWN, Owner

_PATIENCE = 2.0  # seconds that a peer has to answer
_SENDING = 0.05  # seconds, where its answer is not waited for


def answer(question: str) -> str:
    """Raises RuntimeError when this process has no agent on torchwire, ValueError for a question without sense."""
    asked = json.loads(question)
    known = _ANSWERS.get(asked.get("ask") if isinstance(cast("object", asked), dict) else None)
    if known is None:
        raise ValueError(f"a worker is asked for one of {', '.join(_ANSWERS)}, got {question[:80]!r}")
    return json.dumps(known(agent_for("observe"), asked))


def error(raised: BaseException) -> str:
    """The answer to a question that has none."""
    return json.dumps({"error": str(raised) or type(raised).__name__})


def ask(agent: TorchwireAgent, worker: int, question: Mapping[str, Any], patience: float = _PATIENCE) -> Any:
    """What another worker answers; it may be this one.

    Raises RuntimeError when it does not answer within `patience` seconds.
    """
    return json.loads(agent.ask_observer(worker, json.dumps(question), patience))


def ask_all(
    agent: TorchwireAgent,
    question: Mapping[str, Any],
    patience: float = _PATIENCE,
    answered: Callable[[str, Any], None] = lambda _name, _answer: None,
    doubtful: Collection[str] = (),
) -> dict[str, Any]:
    """The answer of each worker of the group by its name; of one that does not answer {"error": why}.

    `answered` is called with each as it comes, on some thread. A worker whose name is among the `doubtful` has
    two seconds to show that it answers at all, so that one that does not keeps nobody waiting for `patience`.
    """

    def one(worker: Any) -> Any:
        try:
            if worker.name in doubtful:
                _require_answer(agent, worker.id, question)
            reply = ask(agent, worker.id, question, patience)
        except RuntimeError as error:
            reply = {"error": str(error).splitlines()[0]}
        answered(worker.name, reply)
        return reply

    workers = sorted(agent.get_worker_infos(), key=lambda worker: worker.id)
    return dict(zip((worker.name for worker in workers), of_each(one, workers)))


def _require_answer(agent: TorchwireAgent, worker: int, question: Mapping[str, Any]) -> None:
    """Raises RuntimeError when a worker does not answer anything just now. It gets the question all the same, and does
    what that asks for when it can: nobody waits for its answer."""
    try:
        ask(agent, worker, {"ask": "clock"})
    except RuntimeError:
        with suppress(RuntimeError):
            ask(agent, worker, question, _SENDING)
        raise


def _status(agent: TorchwireAgent, _asked: Mapping[str, Any]) -> dict[str, Any]:
    return metrics.metrics_of(agent)


def _group(agent: TorchwireAgent, _asked: Mapping[str, Any]) -> dict[str, Any]:
    return ask_all(agent, {"ask": "status"})


def _dump(agent: TorchwireAgent, _asked: Mapping[str, Any]) -> dict[str, Any]:
    return {"text": dump.text_of(agent)}


def _clock(_agent: TorchwireAgent, _asked: Mapping[str, Any]) -> dict[str, Any]:
    return {"now": time.monotonic()}


def _start_trace(agent: TorchwireAgent, asked: Mapping[str, Any]) -> dict[str, Any]:
    owner = trace_part.start(agent, int(asked["capacity"]), Owner(*asked.get("owner", UNKNOWN)))
    return {"busy": owner.name} if owner else {}


def _stop_trace(agent: TorchwireAgent, asked: Mapping[str, Any]) -> dict[str, Any]:
    return trace_part.take(agent, str(asked.get("trace", UNKNOWN.key)))


_ANSWERS: dict[Any, Callable[[TorchwireAgent, Mapping[str, Any]], dict[str, Any]]] = {
    "status": _status,
    "group": _group,
    "dump": _dump,
    "clock": _clock,
    "start_trace": _start_trace,
    "stop_trace": _stop_trace,
}
