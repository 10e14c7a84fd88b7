"""What a program (programs.py) exercises, by name; so that a test can tell that each occurs often."""

from collections import Counter

from program_reach import Reach
from programs import Builtin, Call, Compute, FanOut, Fetch, Hook, InPlace, Own, Parameter, Remote, steps_of


def features(program):
    """The set of their names."""
    found = set(_of_passes(program)) | set(_of_reach(Reach(program)))
    for step, body, depth in steps_of(program.body):
        found.update(_of_step(step, body, depth))
    used = Counter(name for step, _, _ in steps_of(program.body) for name in set(_sent_by(step)))
    if any(count > 1 for count in used.values()):
        found.add("shared input")
    return found


def _sent_by(step):
    match step:
        case Call(_, _, arguments) | Remote(_, _, arguments) | Builtin(_, _, _, arguments):
            return arguments
        case FanOut(calls):
            return [name for call in calls for name in call.arguments]
    return []


def _of_step(step, body, depth):
    match step:
        case Call() | Remote():
            yield from _of_callee(step.body, body, depth)
        case FanOut(calls):
            yield "fan-out"
            for call in calls:
                yield from _of_callee(call.body, body, depth)
        case Builtin(scripted=scripted):
            yield "script function" if scripted else "builtin operator"
        case InPlace():
            yield "in-place"
        case Fetch(fails=True):
            yield "failed fetch"
        case Fetch():
            yield "fetch"
        case Own():
            yield "own RRef"
        case Hook():
            yield "hook" if depth == 0 else "hook on callee"
        case Compute(operator="block"):
            yield "blocked gradient"
        case Parameter() if depth > 0:
            yield "parameter of callee"


def _of_callee(callee, caller, depth):
    if depth > 0:
        yield "nested call"
    if callee.worker == caller.worker:
        yield "call to itself"
    if any(name.startswith("q") for name in callee.inputs):
        yield "RRef argument"
    if callee.raises:
        yield "call that raises"
    elif not callee.returns:
        yield "no tensor"
    elif len(callee.returns) > 1:
        yield "tuple"


def _of_passes(program):
    if program.body.worker != 0:
        yield "root elsewhere"
    if len(program.passes) > 1:
        yield "retain_graph"
    for one in program.passes:
        if len(one.roots) > 1:
            yield "several roots"
        if one.from_rref:
            yield "pass from RRef"
        if one.scripted:
            yield "pass from TorchScript"


def _of_reach(reach):
    yield "all used" if reach.all_used else "unused"
    for message in reach.unused:
        yield "unused argument" if message.kind == "request" else "unused result"
        if message.depth > 0:
            yield "nested unused"
        if message.kind == "response" and len(message.received) > 1:
            yield "unused tuple"
    if any(reach.is_used_in_part(message) for message in reach.messages):
        yield "tuple used in part"
    if len({frozenset(map(id, one.messages)) for one in reach.passes}) > 1:
        yield "passes that differ"
