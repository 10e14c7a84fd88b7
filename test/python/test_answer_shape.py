"""What workers answer to those who show it, damaged at random: it becomes a row of the table, or a sentence."""

import copy
import json
import random

import pytest
from torchwire.observe import answer_shape
from torchwire.top import rates, screen
from torchwire.top.sources import Answer

BOUNDS = [0.001, 0.002]
HISTOGRAM = {"count": 3, "counts": [1, 2, 0]}
STATUS = {
    "time": 2.0,
    "worker": {"name": "w", "rank": 0, "pid": 1, "memory_bytes": 5},
    "functions": [{"kind": "python", "failures": {"timeout": 1}, "errors": 2, "latency": HISTOGRAM, "run": HISTOGRAM}],
    "counts": {"calls_in_flight": 2, "requests_active": 3},
    "peers": [{"bytes_sent": 1, "bytes_received": 2, "transport": "wire_tcp", "state": "connected", "encryption": ""}],
    "rrefs": {"owners": 1},
    "autograd_contexts": 4,
}
VALUES = [None, True, -1, 2**63, 2**200, 1e300, float("nan"), float("-inf"), "", "x\x1b[2J", [], [None], {}, {"": 0}]


def damaged_values(chance):
    """The status with one value, or one key, replaced or left out."""
    status = copy.deepcopy(STATUS)
    place = status
    while True:
        key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not (isinstance(place[key], (dict, list)) and place[key] and chance.random() < 0.8):
            break
        place = place[key]
    if chance.random() < 0.2:
        del place[key]
    else:
        place[key] = chance.choice(VALUES)
    return json.dumps(status).encode()


def damaged_bytes(chance):
    text = bytearray(json.dumps(STATUS).encode())
    for _ in range(chance.randrange(1, 3)):
        text[chance.randrange(len(text))] = chance.choice(b'0123456789-.eE"{}[],: x\xff')
    return bytes(text[: len(text) if chance.random() < 0.9 else chance.randrange(len(text))])


pytest.importorskip("rich")


@pytest.mark.parametrize("damaged", [damaged_values, damaged_bytes])
def test_what_is_said_of_a_status_is_a_row_or_a_sentence(damaged):
    rows = sentences = 0
    for seed in range(5000):
        text = damaged(random.Random(seed))
        try:
            status = answer_shape.read("status", text)
        except RuntimeError as error:
            assert "another version" in str(error) or b"error" in text
            sentences += 1
            continue
        row = rates.row_of(Answer("key", "w", status), Answer("key", "w", STATUS), BOUNDS)
        json.dumps(row.as_dict())
        assert screen.table([row], "title", 80).row_count == 1
        rows += 1
    assert rows > 200 and sentences > 200


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000], ids=["lists", "dicts"])
def test_what_lies_too_deep_is_no_answer(text):
    with pytest.raises(RuntimeError, match="another version"):
        answer_shape.read("status", text)
