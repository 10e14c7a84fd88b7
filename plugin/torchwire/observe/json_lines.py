"""Metrics as lines of JSON in a file, one now and then."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TextIO

from torchwire import option_checks
from torchwire._C import TorchwireAgent
from torchwire.current_agent import agent_for
from torchwire.observe.metrics import metrics_of

_logger = logging.getLogger(__name__)


@contextmanager
def log_metrics(path: str | os.PathLike[str], interval: float = 10.0) -> Generator[None, None, None]:
    """While the block runs, appends `torchwire.metrics()` to the file `path` as a line of JSON, at its begin, every
    `interval` seconds (default 10) and at its end.

    Raises RuntimeError when RPC is not initialized or runs on another backend, OSError when the file cannot be opened,
    TypeError for an interval that is no number, ValueError for one that is not positive or more than a day. A disk that
    is full later on is logged once and ends it.
    """
    interval = option_checks.interval("interval", interval)
    agent = agent_for("log_metrics")
    ended = threading.Event()
    with open(path, "a", encoding="utf-8") as file:
        _write(agent, file)
        writer = threading.Thread(
            target=_write_until, args=(ended, interval, agent, file), name="torchwire-json", daemon=True
        )
        writer.start()
        try:
            yield
        finally:
            ended.set()
            writer.join()


def _write_until(ended: threading.Event, interval: float, agent: TorchwireAgent, file: TextIO) -> None:
    try:
        while not ended.wait(interval):
            _write(agent, file)
        _write(agent, file)
    except OSError as error:
        _logger.warning("metrics are no longer written to %s: %s", file.name, error)


def _write(agent: TorchwireAgent, file: TextIO) -> None:
    file.write(json.dumps(metrics_of(agent)) + "\n")
    file.flush()
