"""Programs over several workers, as data: what program_maker.py makes from a seed and program_runs.py runs.

A program is a body, which its root worker executes, and the backward passes that come after it. A body is a list of
steps on named values; a call in it has a body of its own, for the worker that is called. All values are tensors of
float64 with three elements, but for the roots of passes, which have none, and for RRefs.

    print(program)  # one step a line
"""

import textwrap
from dataclasses import dataclass

WORKERS = 4
ERROR_TEXT = "this body was made to fail"


class BodyError(Exception):
    """What a body raises that is meant to; the program catches it at the call."""


@dataclass(frozen=True)
class Parameter:
    """Gets this worker's leaf number `index`."""

    name: str
    index: int

    def __str__(self):
        return f"{self.name} = parameter({self.index})"


@dataclass(frozen=True)
class Constant:
    """Gets a tensor that needs no gradient."""

    name: str
    value: float

    def __str__(self):
        return f"{self.name} = constant({self.value})"


@dataclass(frozen=True)
class Compute:
    """Computes one value from others, here; OPERATORS in program_runs.py has the operators."""

    name: str
    operator: str
    operands: tuple[str, ...]

    def __str__(self):
        return f"{self.name} = {self.operator}({', '.join(self.operands)})"


@dataclass(frozen=True)
class InPlace:
    """Adds a value to another in place, or doubles it where none is given."""

    name: str
    added: str | None

    def __str__(self):
        return f"{self.name} += {self.added}" if self.added else f"{self.name} *= 2"


@dataclass(frozen=True)
class Hook:
    """Has the gradient of a value scaled by a hook that counts how often it is called."""

    name: str
    scale: float

    def __str__(self):
        return f"hook on {self.name}: gradient * {self.scale}"


@dataclass(frozen=True)
class Builtin:
    """Calls an operator, or a TorchScript function, on another worker."""

    name: str
    to: int
    operator: str
    operands: tuple[str, ...]
    scripted: bool

    def __str__(self):
        kind = "script" if self.scripted else "builtin"
        return f"{self.name} = rpc to worker{self.to}, {kind} {self.operator}({', '.join(self.operands)})"


@dataclass(frozen=True)
class Call:
    """Calls another body. `names` has one name for each tensor that it returns."""

    names: tuple[str, ...]
    body: "Body"
    arguments: tuple[str, ...]
    asynchronous: bool = False

    def __str__(self):
        how = "rpc_async" if self.asynchronous else "rpc_sync"
        return f"{', '.join(self.names) or '_'} = {how}({', '.join(self.arguments)}) {self.body}"


@dataclass(frozen=True)
class FanOut:
    """Makes several calls at once, and waits for all."""

    calls: tuple[Call, ...]

    def __str__(self):
        return "at once:\n" + _indented(self.calls)


@dataclass(frozen=True)
class Remote:
    """Gets an RRef to what a body returns on another worker, by rpc.remote."""

    name: str
    body: "Body"
    arguments: tuple[str, ...]

    def __str__(self):
        return f"{self.name} = rpc.remote({', '.join(self.arguments)}) {self.body}"


@dataclass(frozen=True)
class Own:
    """Gets an RRef to a value of this worker."""

    name: str
    value: str

    def __str__(self):
        return f"{self.name} = RRef({self.value})"


@dataclass(frozen=True)
class Fetch:
    """Gets the value of an RRef, by to_here. `fails`: its body was meant to raise, and there is no value."""

    name: str
    rref: str
    fails: bool = False

    def __str__(self):
        return f"{self.name} = {self.rref}.to_here()" + (", which fails" if self.fails else "")


Step = Parameter | Constant | Compute | InPlace | Hook | Builtin | Call | FanOut | Remote | Own | Fetch


@dataclass(frozen=True)
class Body:
    worker: int
    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    returns: tuple[str, ...]  # values; none of them, one, or a tuple
    raises: bool = False

    def __str__(self):
        end = "raise" if self.raises else f"return {', '.join(self.returns) or 'no tensor'}"
        return f"on worker{self.worker}, as ({', '.join(self.inputs)}):\n" + _indented([*self.steps, end])


@dataclass(frozen=True)
class Pass:
    """A backward pass from values of the root body, or from one RRef of it.

    `scripted`: begun by TorchScript. A pass from an RRef has its root where that lives.
    """

    roots: tuple[str, ...]
    retain_graph: bool
    scripted: bool = False
    from_rref: bool = False

    def __str__(self):
        kind = "from RRef " if self.from_rref else "from TorchScript " if self.scripted else ""
        return f"backward {kind}({', '.join(self.roots)})" + (", retain_graph" if self.retain_graph else "")


@dataclass(frozen=True)
class Program:
    seed: int
    body: Body
    passes: tuple[Pass, ...]

    def __str__(self):
        return f"program {self.seed} {self.body}\n" + "\n".join(map(str, self.passes))


def _indented(lines):
    return textwrap.indent("\n".join(map(str, lines)), "    ")


def steps_of(body, depth=0):
    """Every step of a body and of those that it calls, with the body and how many calls deep it is."""
    for step in body.steps:
        yield step, body, depth
        for called in bodies_called_by(step):
            yield from steps_of(called, depth + 1)


def bodies_called_by(step):
    match step:
        case Call() | Remote():
            return [step.body]
        case FanOut(calls):
            return [call.body for call in calls]
    return []
