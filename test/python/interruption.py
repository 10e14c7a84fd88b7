"""Signals at every place in a function of Python's where their handlers may run: between two instructions."""

import dis
import signal
import sys

# After these Python looks for signals: as a function begins, when it has called another, and as a loop begins anew. As
# the names are in all versions.
_LOOKS_AFTER = ("RESUME", "CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE")


class Interrupted(KeyboardInterrupt):
    pass


def interrupted_everywhere(function, step=1):
    """Calls `function` again and again, with a signal `step` places later each time, until it returns. How many it has.

    What the handler raises has to come out of it.
    """
    before = signal.signal(signal.SIGUSR2, _raise)
    try:
        place = 1
        while _is_interrupted_at(place, function):
            place += step
        return place - 1
    finally:
        signal.signal(signal.SIGUSR2, before)


def _raise(*_):
    raise Interrupted


def _is_interrupted_at(place, function):
    tracer = _Tracer(place)
    sys.settrace(tracer)
    try:
        function()
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    assert tracer.where is None, f"what a handler has raised at {tracer.where} is lost"
    return False


class _Tracer:
    """Sends the signal at the place with that number, of all in the functions of Python's that this thread runs."""

    def __init__(self, place):
        self.left = place
        self.where = None

    def __call__(self, frame, _event, _argument):
        frame.f_trace_opcodes = True
        code, latest = frame.f_code.co_code, None

        def trace(frame, event, _argument):
            nonlocal latest
            if event == "opcode":
                before, latest = latest, frame.f_lasti
                if before is None or dis.opname[code[before]].startswith(_LOOKS_AFTER):
                    self._pass(frame)
            return trace

        return trace

    def _pass(self, frame):
        self.left -= 1
        if self.left == 0:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
            sys.settrace(None)
            signal.raise_signal(signal.SIGUSR2)
