"""`doctor HOST:PORT`: the side of a pair that asks a server to measure calls with it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from torchwire import compatibility
from torchwire.doctor import child, measurement, pair, reachability, store_check
from torchwire.doctor.check import Check, failed, ok, warning
from torchwire.doctor.measurement import Measurement, Meeting
from torchwire.doctor.pair import Card, Way
from torchwire.doctor.reachability import Place
from torchwire.torch_parts import Store

_ANSWER_LIMIT = 6.0  # seconds
_LISTENER = "`python -m torchwire doctor serve`"

# By what torchwire's errors say, in which case another remedy is due than for a network that fails.
_REMEDIES = {
    "group secret": "copy the secret's file from one machine to the other, and name it on both, by --secret-file or "
    "TORCHWIRE_SECRET_FILE",
    "install the same torch on": "install the same torch on both machines",
    "protocol": "install the same torchwire on both machines",
}
_REMEDY = (
    "let all TCP ports through between the two machines, or set TP_SOCKET_IFNAME on both to an interface on which they "
    "reach each other"
)


def checks_of(place: Place, secret_file: str | None) -> Iterator[Check]:
    """One after the other; what needs an earlier one that failed is left out."""
    problem = reachability.problem_with(place, _LISTENER)
    if problem:
        yield failed("server", problem.found, problem.remedy)
        return
    try:
        card = child.run(read_card, place, limit=_ANSWER_LIMIT)
    except child.ChildError as error:
        yield failed(
            "server",
            f"{place} takes connections, but does not answer as a doctor: {error}",
            "look what has this port there (ss -ltnp): if it is a doctor that is stopped, let it go on (fg, or kill "
            f"-CONT and its process id); else start {_LISTENER} anew",
        )
        return
    yield ok("server", f"{card.name} at {place} answers")
    versions = _versions(card, pair.own_card())
    yield versions
    if versions.status != "failed":
        yield from _measured(place, card, secret_file)


def read_card(place: Place) -> Card:
    """Runs in a child."""
    store = store_check.client(place)
    if not pair.has(store, pair.CARD):
        raise RuntimeError("it is the store of something else")
    return pair.decode_card(store.get(pair.CARD))


def take_turn(place: Place) -> int:
    """Runs in a child: waits until the server has time, and returns the client's number."""
    store = store_check.client(place)
    number = store.add(pair.CLIENTS, 1)
    end = time.monotonic() + pair.TURN_LIMIT
    if not child.wait_until(lambda: _turn(store) >= number, end - time.monotonic()):
        raise RuntimeError(f"the server has been busy with others for {pair.TURN_LIMIT:g} s")
    return number


def say_done(place: Place, number: int, step: int) -> None:
    """Runs in a child."""
    store_check.client(place).set(pair.step_key(number, step), pair.DONE)


def _turn(store: Store) -> int:
    return int(store.get(pair.TURN)) if pair.has(store, pair.TURN) else 0


def _versions(there: Card, here: Card) -> Check:
    name = "versions"
    if compatibility.public_part(there.torch) != compatibility.public_part(here.torch):
        return failed(
            name, f"torch {there.torch} runs there, {here.torch} here", "install the same torch on both machines"
        )
    if there.torchwire != here.torchwire:
        return warning(
            name,
            f"torchwire {there.torchwire} runs there, {here.torchwire} here",
            "install the same torchwire on both machines",
        )
    return ok(name, f"torchwire {here.torchwire} on both, with torch {there.torch} there and {here.torch} here")


def _measured(place: Place, card: Card, secret_file: str | None) -> Iterator[Check]:
    try:
        number = child.run(take_turn, place, limit=pair.TURN_LIMIT + _ANSWER_LIMIT)
    except child.ChildError as error:
        yield failed("server", f"it does not get to this client: {error}", "try again when others are done")
        return
    host = pair.own_card().host
    ways = [*(pair.ON_ONE_HOST if host and host == card.host else ()), *pair.BY_NETWORK]
    for step, way in enumerate([pair.DEFAULT_WAY, *ways]):
        meeting = Meeting(place, number, step, way, secret_file)
        try:
            result = child.run(measurement.measure, meeting, limit=pair.MEMBER_LIMIT)
        except child.ChildError as error:
            # The first one fails for what keeps workers from each other at all; and the server gives up on this client.
            yield _failure(place, way, str(error))
            return
        yield _result(way, result)
    try:
        child.run(say_done, place, number, len(ways) + 1, limit=_ANSWER_LIMIT)
    except child.ChildError:
        pass  # all that was to be known is known; the server goes on to the next one by itself


def _failure(place: Place, way: Way, error: str) -> Check:
    problem = reachability.problem_with(place, _LISTENER)
    if problem:
        return failed(_name_of(way), f"{error}; and {problem.found} any more", problem.remedy)
    remedy = next((remedy for text, remedy in _REMEDIES.items() if text in error), _REMEDY)
    return failed(_name_of(way), error, remedy)


def _result(way: Way, result: Measurement) -> Check:
    found = (
        f"{result.p50 * 1e6:.0f} µs a call (p99 {result.p99 * 1e6:.0f} µs), "
        f"{result.bytes_per_second / 1e9:.2f} GB/s with tensors of {result.size >> 20} MiB"
    )
    if result.encryption:
        found = f"encrypted ({result.encryption}), {found}"
    if not way.transport:
        found = f"by {result.transport}, large tensors by {result.channel}: {found}"
    return ok(_name_of(way), found, **result._asdict())


def _name_of(way: Way) -> str:
    return f"{way.transport}, {way.channel}" if way.transport else "calls"
