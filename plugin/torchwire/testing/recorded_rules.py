"""Rules that do again what a log says was done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from torchwire.testing.fault import Fault
from torchwire.testing.phases import TIMED
from torchwire.testing.rule import Rule

_NO_TIME = 1e-9  # a drawn time may be 0, which a rule cannot ask for


def rules_from(log: Iterable[Fault]) -> list[Rule]:
    """A rule for each kind of fault in each stream; raises TypeError and ValueError for a log that makes none."""
    occurrences: dict[tuple[tuple[str, Any], ...], list[int]] = {}
    for (*_, occurrence), arguments in _by_message(_checked(log)).items():
        occurrences.setdefault(tuple(arguments.items()), []).append(occurrence)
    return [Rule(nth=nth, **dict(arguments)) for arguments, nth in occurrences.items()]


def _by_message(faults: list[Fault]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a rule for each message at each point, by stream and occurrence."""
    rules: dict[tuple[Any, ...], dict[str, Any]] = {}
    for fault in faults:
        held = fault.action == "partition"
        if held and not fault.message:
            continue  # a handshake, for which there is no rule
        place = (fault.from_, fault.to, fault.message, fault.phase, fault.occurrence)
        before = rules.setdefault(place, arguments := _arguments(fault))
        # What had been delayed already when a partition held it. What had met another fault is not held again.
        if before is not arguments and held and before["action"] == "delay":
            before["seconds"] += fault.seconds
    return rules


def _checked(log: Iterable[Fault]) -> list[Fault]:
    faults = list(log)
    for fault in faults:
        if not isinstance(cast("object", fault), Fault):
            raise TypeError(f"a log must hold Fault, got {fault!r} ({type(fault).__name__}); see read_logs()")
    faults.sort(key=lambda fault: fault.time)
    revisions = sorted({fault.revision for fault in faults})
    if len(revisions) > 1:
        raise ValueError(
            f"the log has faults of the revisions {', '.join(map(str, revisions))} of the plan, in each of which "
            "occurrences were counted anew; choose one: "
            f"[fault for fault in log if fault.revision == {revisions[-1]}]"
        )
    return faults


def _arguments(fault: Fault) -> dict[str, Any]:
    # What a partition held back went on when it was over, as after a delay.
    action = "delay" if fault.action == "partition" else fault.action
    arguments: dict[str, Any] = {
        "action": action,
        "name": fault.rule,
        "phase": fault.phase,
        "from_": fault.from_,
        "to": fault.to,
    }
    if fault.message:
        arguments["messages"] = fault.message
    if action in TIMED:
        arguments["seconds"] = fault.seconds or _NO_TIME
    if fault.byte is not None:
        arguments["byte"] = fault.byte
    return arguments
