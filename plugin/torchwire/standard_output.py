"""Standard output of the commands, which may be a pipe that nobody reads any more, or a file on a full disk."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from typing import Any, TextIO, cast

_FAILED = 1


@contextlib.contextmanager
def written(program: str) -> Generator[None, None, None]:
    """What the block prints has been written at its end.

    Otherwise it ends the process: with status 0 when the reader has gone, as `| head` does once it has seen enough, or
    with a sentence and status 1.
    """
    output = sys.stdout
    if output is None:  # it was closed before Python started, and print() writes nothing
        yield
        return
    try:
        with contextlib.redirect_stdout(cast("TextIO", _Output(output))):
            try:
                yield
            finally:
                sys.stdout.flush()
    except _Unwritten as unwritten:
        _discard_what_is_left(output)
        if isinstance(unwritten.error, BrokenPipeError):
            sys.exit(0)
        reason = unwritten.error.strerror or unwritten.error
        print(f"{program}: standard output cannot be written: {reason}", file=sys.stderr)
        sys.exit(_FAILED)


class _Unwritten(Exception):  # no OSError, which could as well be of a socket or another file
    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class _Output:
    """Standard output whose errors can be told from all others."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            raise _Unwritten(error) from None

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise _Unwritten(error) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _discard_what_is_left(output: TextIO) -> None:
    """Python would write it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, output.fileno())
    os.close(nowhere)
