"""What the passes of a program (programs.py) reach: a run on values that know only what they were made from.

Between workers gradients travel by message. Where one part of a message gets a gradient, the others get zeros, though
ordinary autograd would give them none: hence two kinds of reach, `exactly` and `through messages`.
"""

from dataclasses import dataclass, field

from program_runs import Run
from programs import BodyError


@dataclass(eq=False)
class Node:
    """`parents`: what gets a gradient with it. `blocked`: what is asked for a gradient, and gets none."""

    parents: list = field(default_factory=list)
    blocked: list = field(default_factory=list)
    message: "Message | None" = None  # that brought it


@dataclass(eq=False)
class Message:
    """A message with tensors that need a gradient: what was sent, and what arrived."""

    kind: str  # "request", "response" or "fetch"
    depth: int
    sent: list
    received: list = field(default_factory=list)


@dataclass(eq=False)
class Value:
    """`node` is None where it needs no gradient."""

    node: Node | None = None
    rref_of: "Value | None" = None
    owner: int = -1


class ReachRun(Run):
    def __init__(self):
        self.leaves = {}
        self.hooks = {}
        self.messages = []
        self._depth = 0

    def parameter(self, worker, index):
        if (worker, index) not in self.leaves:
            self.leaves[worker, index] = Value(Node())
        return self.leaves[worker, index]

    def constant(self, value):
        return Value()

    def compute(self, operator, operands):
        return _made_from(operands, blocked=operator == "block")

    def change(self, value, added):
        value.node = _made_from([value] + ([added] if added else [])).node

    def hook(self, name, value, scale):
        self.hooks[name] = value.node

    def builtin(self, step, operands):
        arguments = self._sent("request", operands)
        return self._sent("response", [_made_from(arguments)])[0]

    def begin(self, worker, call, arguments):
        results = self._called(call.body, arguments)
        return self._sent("response", results)

    def finish(self, call, results):
        return results

    def remote(self, worker, body, arguments):
        results = self._called(body, arguments)
        return Value(rref_of=results[0] if results else None, owner=body.worker)

    def own(self, worker, value):
        return Value(rref_of=value, owner=worker)

    def fetch(self, worker, rref, fails):
        if fails or rref.owner == worker:
            return rref.rref_of
        return self._sent("fetch", [rref.rref_of])[0]

    def _called(self, body, arguments):
        arguments = self._sent("request", arguments)
        self._depth += 1
        try:
            return self.body(body, arguments)
        except BodyError:
            return []
        finally:
            self._depth -= 1

    def _sent(self, kind, values):
        """What arrives; one value for each that was sent, however often it was."""
        nodes = {value.node for value in values if value.node is not None}
        if not nodes:
            return [value if value.rref_of else Value() for value in values]
        message = Message(kind, self._depth, list(nodes))
        self.messages.append(message)
        arrived = {value: _arrived(value, message) for value in dict.fromkeys(values)}
        return [arrived[value] for value in values]


def _made_from(values, blocked=False):
    nodes = [value.node for value in values if value.node is not None]
    if not nodes:
        return Value()
    return Value(Node(blocked=nodes) if blocked else Node(parents=nodes))


def _arrived(value, message):
    if value.node is None:
        return value if value.rref_of else Value()
    node = Node(parents=[value.node], message=message)
    message.received.append(node)
    return Value(node)


class PassReach:
    """What one pass reaches."""

    def __init__(self, roots):
        self.exactly = _closure(roots, lambda node: node.parents)
        self.through_messages = _closure(
            roots, lambda node: node.parents + node.blocked + (node.message.sent if node.message else [])
        )
        self.messages = {node.message for node in self.through_messages if node.message}


def _closure(roots, next_of):
    found, left = set(), list(roots)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += next_of(node)
    return found


class Reach:
    """What all passes of a program reach."""

    def __init__(self, program):
        run = ReachRun()
        values = run.values_after(program.body)
        self.passes = [PassReach(_root_nodes(one, values)) for one in program.passes]
        self.messages = run.messages
        self._leaves = run.leaves
        self._hooks = run.hooks

    def may_have_zeros(self, leaf):
        """Whether this leaf may have zeros where ordinary autograd gives it no gradient."""
        node = self._leaves[leaf].node
        return any(node in one.through_messages for one in self.passes)

    def hook_may_be_called(self, name):
        """How often more than with ordinary autograd: for zeros, in passes that do not reach it exactly."""
        node = self._hooks[name]
        return sum(node in one.through_messages and node not in one.exactly for one in self.passes)

    @property
    def unused(self):
        """The messages that no pass reaches."""
        return [message for message in self.messages if not any(message in one.messages for one in self.passes)]

    @property
    def all_used(self):
        """Whether every pass reaches every message, as PyTorch's algorithm needs it."""
        return all(message in one.messages for one in self.passes for message in self.messages)

    def is_used_in_part(self, message):
        """Whether only some of what came with a message gets a gradient."""
        exactly = {node for one in self.passes for node in one.exactly}
        return 0 < len(exactly.intersection(message.received)) < len(message.received)


def _root_nodes(one, values):
    roots = [values[name] for name in one.roots]
    return [(root.rref_of or root).node for root in roots]
