"""Signals at every place in a function of Python's where their handlers may run: between two instructions."""

import dis
import signal
import sys

# After these Python looks for signals: as a function begins, when it has called another, and as a loop begins anew. As
# the names are in all versions.
_LOOKS_AFTER = ("RESUME", "CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE")


class Interrupted(KeyboardInterrupt):
    pass


class TimedOut(TimeoutError):
    """What a handler of SIGALRM raises, as a rule: an Exception."""


def interrupted_everywhere(function, step=1, handler=None):
    """Calls `function` again and again, with a signal `step` places later each time, until it returns. How many it has.

    What the handler raises, an Interrupted or a TimedOut with the text "by a signal", has to come out of it.
    """
    before = signal.getsignal(signal.SIGUSR2)
    try:
        place = 1
        while _is_interrupted_at(place, function, handler or raise_interrupted):
            place += step
        return place - 1
    finally:
        signal.signal(signal.SIGUSR2, before)


def raise_interrupted(*_):
    raise Interrupted("by a signal")


def raise_timed_out(_number, _frame):
    raise TimedOut("by a signal")


def raise_once(_number, _frame):
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    raise TimedOut("by a signal")


class Raising:
    def __call__(self, *_):
        raise Interrupted("by a signal")


def _is_interrupted_at(place, function, handler):
    tracer = _Tracer(place)
    signal.signal(signal.SIGUSR2, handler)
    sys.settrace(tracer)
    try:
        function()
    except (Interrupted, TimedOut) as error:
        assert type(error) in (Interrupted, TimedOut) and str(error) == "by a signal", tracer.where
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
