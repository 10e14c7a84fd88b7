"""A program that breaks rules of threads, each in a child process of its own, and prints how the children ended.

Its argument is a JSON list of [what, where], as _C._violate() takes them; its output is a JSON list of
[return code, standard error] in the same order. Forks rather than starts, since to import torch takes longer than all
else.
"""

import json
import os
import signal
import sys

from torchwire import _C


def attempt(what, where):
    """How a child process ended that tried this."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that hangs must not stay
        os.dup2(writing, 2)
        os.close(reading)
        _C._violate(what, where)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def main():
    ends = [attempt(what, where) for what, where in json.loads(sys.argv[1])]
    print(json.dumps({"ends": ends, "watched": _C._watched_gil_functions()}))


if __name__ == "__main__":
    main()
