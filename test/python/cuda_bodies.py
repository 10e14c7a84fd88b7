"""Runs the bodies of tests in processes that have the stand-in for CUDA (cuda_stand_in.py), each in one of its own.

Such a process is forked from one that has imported torch, since that takes longer than most bodies, and has used no
CUDA. `python cuda_bodies.py` is that process: it reads lines of JSON that say what to run, and answers each with one.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

import cuda_stand_in
import pytest
import torch

LIMIT = 60.0
_IS_LEFT = 0.05  # seconds from one look at a body's process to the next


def on_cuda(**variables: object) -> Callable:
    """A test whose body runs there, with these variables of the stand-in's (cuda_stand_in.environment)."""

    def decorate(body):
        def test(cuda_processes):
            __tracebackhide__ = True
            cuda_processes.run(body, variables)

        test.__name__, test.__doc__, test.__module__, test.body = body.__name__, body.__doc__, body.__module__, body
        return test

    return decorate


class Processes:
    """Where bodies run."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONFAULTHANDLER": "1", **cuda_stand_in.environment()},
        )

    def run(self, body: Callable, variables: dict[str, object]) -> None:
        __tracebackhide__ = True
        environment = {f"TORCHWIRE_TEST_CUDA_{name}": str(value) for name, value in variables.items()}
        print(json.dumps([body.__module__, body.__name__, environment]), file=self._process.stdin, flush=True)
        error = json.loads(self._process.stdout.readline())
        if error is not None:
            pytest.fail(error)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def peer(function: Callable, *arguments: object) -> Connection:
    """A process of a body's, which has the stand-in too; it runs function(connection, *arguments). To be called before
    the body uses CUDA."""
    here, there = multiprocessing.Pipe()
    if os.fork() == 0:
        here.close()
        os._exit(_exit_code(function, there, *arguments))
    there.close()
    return here


def is_poison(tensor: torch.Tensor) -> bool:
    return bool((tensor.cpu().view(torch.uint8) == 0xFF).all())


# ---- the process that others are forked from ----


def _main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what bodies print
    for line in sys.stdin:
        print(json.dumps(_run(*json.loads(line))), file=answers, flush=True)


def _run(module: str, name: str, environment: dict[str, str]) -> str | None:
    """What went wrong."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        os.setsid()
        os.environ.update(environment)
        os._exit(_exit_code(_run_body, module, name, writer))
    os.close(writer)
    deadline = time.monotonic() + LIMIT
    while os.waitpid(process, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
        time.sleep(_IS_LEFT)
    hung = time.monotonic() >= deadline
    try:
        os.killpg(process, signal.SIGABRT if hung else signal.SIGKILL)
    except ProcessLookupError:
        pass
    with os.fdopen(reader, errors="replace") as results:
        text = results.read()
    if hung:
        return f"{name} did not finish within {LIMIT} s"
    return None if text == "done" else text or f"the process of {name} died"


def _run_body(module: str, name: str, writer: int) -> None:
    try:
        getattr(importlib.import_module(module), name).body()
    except BaseException:
        os.write(writer, traceback.format_exc().encode())
    else:
        os.write(writer, b"done")


def _exit_code(function: Callable, *arguments: object) -> int:
    faulthandler.enable()
    try:
        function(*arguments)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    _main()
