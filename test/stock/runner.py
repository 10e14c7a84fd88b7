"""Runs single tests on request: the child process of run.py that may crash or hang.

    runner.py FD    FD: a multiprocessing connection to run.py

It sends one greeting (see `greet`), then answers each (suite, test) with (result, detail).
Processes of a test import this file as their main module, so it imports nothing heavy at the top.
"""

import resource
import sys
import unittest
from multiprocessing.connection import Connection

import device_needs
import fork_server


def greet():
    """What run.py learns before the first test."""
    import suites
    import torch

    return {
        "catalog": suites.catalog(),
        "cuda_suites": suites.CUDA_SUITES,
        "devices": device_needs.there(),
        "cuda_error": fork_server.cuda_error() if device_needs.there() else None,
        "torch": torch.__version__,
        "server_threads": fork_server.count_threads(),
    }


def run_test(suite, test):
    """Runs one test; returns its result and, unless it passed, why."""
    import suites

    class_ = suites.SUITES[suite]
    missing = device_needs.missing(getattr(class_, test)) if device_needs.is_early() else None
    if missing:
        return "skipped", missing  # as PyTorch would in each of four processes, a fifth of a second later
    outcome = unittest.TestResult()
    unittest.TestSuite([class_(test)]).run(outcome)
    broken = [text for _, text in outcome.errors + outcome.failures]
    if outcome.unexpectedSuccesses:
        broken.append("marked as an expected failure by PyTorch, but it passed")
    if broken:
        return "failed", "\n".join(broken)
    if outcome.skipped:
        return judge_skip(suite, outcome.skipped[0][1])
    return "passed", ""


def judge_skip(suite, reason):
    """A test of devices may be skipped for want of those only: a machine with devices where all are skipped for
    another reason would show nothing."""
    import suites

    wanted = device_needs.wanted(reason)
    if suite in suites.CUDA_SUITES and (wanted is None or wanted <= device_needs.there()):
        return "failed", f"skipped, though not for want of a device ({device_needs.there()} are there): {reason}"
    return "skipped", reason


def forbid_core_dumps():
    """Some tests abort on purpose; a core with torch in it takes seconds to write."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve(connection):
    """Answers requests until run.py closes its end."""
    connection.send(greet())
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        connection.send(run_test(*request))


def main():
    forbid_core_dumps()
    fork_server.start()  # it imports torch while this process does the same
    serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()
