"""Runs single tests on request: the child process of run.py that may crash or hang.

    runner.py FD    FD: a multiprocessing connection to run.py

It sends one greeting (see `greet`), then answers each (suite, test) with (result, detail).
Processes of a test import this file as their main module, so it imports nothing heavy at the top.
"""

import resource
import sys
import unittest
from multiprocessing.connection import Connection

import fork_server


def greet():
    """What run.py learns before the first test."""
    import suites
    import torch

    return {
        "catalog": suites.catalog(),
        "torch": torch.__version__,
        "server_threads": fork_server.count_threads(),
    }


def run_test(suite, test):
    """Runs one test; returns its result and, unless it passed, why."""
    import suites

    outcome = unittest.TestResult()
    unittest.TestSuite([suites.SUITES[suite](test)]).run(outcome)
    broken = [text for _, text in outcome.errors + outcome.failures]
    if outcome.unexpectedSuccesses:
        broken.append("marked as an expected failure by PyTorch, but it passed")
    if broken:
        return "failed", "\n".join(broken)
    if outcome.skipped:
        return "skipped", outcome.skipped[0][1]
    return "passed", ""


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
