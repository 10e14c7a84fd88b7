"""Makes a random program (programs.py) from a seed.

Programs are tidy or not. In a tidy one each value is used in the end, so that every pass reaches every call; in the
others some of the results, arguments and RRefs are left unused.
"""

import random
from dataclasses import dataclass

from programs import (
    WORKERS,
    Body,
    Builtin,
    Call,
    Compute,
    Constant,
    FanOut,
    Fetch,
    Hook,
    InPlace,
    Own,
    Parameter,
    Pass,
    Program,
    Remote,
)

PARAMETERS = 3  # of each worker
MAX_CALLS = 9
DEEPEST = 3
TIDY_SHARE = 0.5
FOLDED_SHARE = 0.5  # of the values that are left, in a program that is not tidy


def make(seed):
    return _Maker(seed).program()


@dataclass(eq=False)
class _Value:
    name: str
    needs_gradient: bool
    used: bool = False


@dataclass(eq=False)
class _RRef:
    name: str
    value: _Value | None  # None: its body raises
    used: bool = False


class _Maker:
    """Has what all bodies of a program share: the random numbers, the names, the calls that may still be made."""

    def __init__(self, seed):
        self._seed = seed
        self.random = random.Random(seed)
        self.tidy = self.chance(TIDY_SHARE)
        self._calls_left = self.random.randint(2, MAX_CALLS)
        self._names = 0

    def program(self):
        root = self.random.randrange(WORKERS)
        body = _BodyMaker(self, root, [], 0)
        body.fill(self.random.randint(3, 7))
        passes = _PassMaker(self, body).passes()
        return Program(self._seed, body.finished([]), passes)

    def chance(self, probability):
        return self.random.random() < probability

    def new_name(self, prefix):
        self._names += 1
        return f"{prefix}{self._names}"

    def take_call(self):
        self._calls_left -= 1
        return self._calls_left >= 0


class _BodyMaker:
    """Makes one body."""

    def __init__(self, maker, worker, inputs, depth):
        self.maker = maker
        self.worker = worker
        self.depth = depth
        self._random = maker.random
        self._inputs = [value.name for value in inputs]
        self._values = [value for value in inputs if isinstance(value, _Value)]
        self._rrefs = [value for value in inputs if isinstance(value, _RRef)]
        self.steps = []

    def fill(self, count):
        if self.depth == 0:
            for _ in range(self._random.randint(1, 2)):
                self._add_parameter()
            self._add_call()
        choices = [
            (self._add_parameter, 2),
            (self._add_constant, 1),
            (self._add_computation, 3),
            (self._add_block, 0.5),
            (self._add_hook, 2),
            (self._add_builtin, 1),
            (self._add_call, 4),
            (self._add_fan_out, 2),
            (self._add_remote, 2.5),
            (self._add_own_rref, 1),
            (self._add_fetch, 2),
            (self._add_call_without_tensor, 0.7),
            (self._add_call_that_raises, 0.7),
        ]
        for add in self._random.choices([add for add, _ in choices], [weight for _, weight in choices], k=count):
            add()

    def finished(self, returns, raises=False):
        return Body(self.worker, tuple(self._inputs), tuple(self.steps), tuple(returns), raises)

    # ---- values ----

    def _new(self, needs_gradient, prefix="v"):
        value = _Value(self.maker.new_name(prefix), needs_gradient)
        self._values.append(value)
        return value

    def _pick(self, count=1, needs_gradient=False):
        """Values, more often than not such as have not been used yet; fewer or none where there are none."""
        pool = [value for value in self._values if value.needs_gradient or not needs_gradient]
        fresh = [value for value in pool if not value.used]
        picked = []
        for _ in range(count):
            if pool:
                picked.append(self._random.choice(fresh if fresh and self.maker.chance(0.6) else pool))
        for value in picked:
            value.used = True
        return picked

    def left_over(self):
        """What gets a gradient and has not been used."""
        return [value for value in self._values if value.needs_gradient and not value.used]

    # ---- steps ----

    def _add_parameter(self):
        self.steps.append(Parameter(self._new(True).name, self._random.randrange(PARAMETERS)))

    def _add_constant(self):
        self.steps.append(Constant(self._new(False).name, round(self._random.uniform(0.5, 1.5), 2)))

    def _add_computation(self):
        self.compute(self._random.choice(["add", "sub", "mul", "sin", "tanh", "halve"]))

    def compute(self, operator, operands=None):
        """Adds the step and returns its value; None where there is nothing to compute with."""
        operands = operands or self._pick(2 if operator in ("add", "sub", "mul") else 1)
        if not operands:
            return None
        if operator in ("add", "sub", "mul") and len(operands) < 2:
            operands = operands * 2
        for operand in operands:
            operand.used = True
        value = self._new(any(one.needs_gradient for one in operands))
        self.steps.append(Compute(value.name, operator, tuple(one.name for one in operands)))
        return value

    def _add_block(self):
        self.compute("block", self._pick(needs_gradient=True))

    def _add_hook(self):
        pool = [value for value in self._values if value.needs_gradient]
        hooked = {step.name for step in self.steps if isinstance(step, Hook)}
        pool = [value for value in pool if value.name not in hooked]
        if pool:
            scale = self._random.choice([0.5, 2.0, -1.0, 3.0])
            self.steps.append(Hook(self._random.choice(pool).name, scale))

    def _add_builtin(self):
        operands = self._pick(2, needs_gradient=self.maker.tidy)
        if len(operands) == 2 and self.maker.take_call():
            value = self._new(any(one.needs_gradient for one in operands))
            names = tuple(one.name for one in operands)
            operator, scripted = self._random.choice(["add", "mul"]), self.maker.chance(0.4)
            self.steps.append(Builtin(value.name, self._target(), operator, names, scripted))
            self._perhaps_change([value])

    def _add_call(self):
        call, results = self._call(asynchronous=self.maker.chance(0.3))
        if call:
            self.steps.append(call)
            self._perhaps_change(results)

    def _add_fan_out(self):
        calls, results = [], []
        for _ in range(self._random.randint(2, 3)):
            call, values = self._call(asynchronous=True)
            if call:
                calls.append(call)
                results += values
                self._values = [value for value in self._values if value not in values]  # the next cannot have them
        if calls:
            self._values += results
            self.steps.append(FanOut(tuple(calls)))
            self._perhaps_change(results)

    def _add_remote(self):
        raises = self.maker.chance(0.1)
        made = self._callee(1, raises)
        if made is None:
            return
        body, arguments, results = made
        rref = _RRef(self.maker.new_name("r"), results[0] if results else None)
        self.steps.append(Remote(rref.name, body, arguments))
        if raises:
            self.steps.append(Fetch(self.maker.new_name("x"), rref.name, fails=True))
        else:
            self._rrefs.append(rref)

    def _add_own_rref(self):
        for value in self._pick(needs_gradient=True):
            rref = _RRef(self.maker.new_name("r"), value)
            self.steps.append(Own(rref.name, value.name))
            self._rrefs.append(rref)

    def _add_fetch(self):
        if self._rrefs:
            self._fetch(self._random.choice(self._rrefs))

    def _fetch(self, rref):
        rref.used = True
        self.steps.append(Fetch(self._new(rref.value.needs_gradient).name, rref.name))

    def _perhaps_change(self, values):
        """In place, which is right only for a tensor that nobody has used yet, and that is nobody else's."""
        for value in values:
            if value.needs_gradient and self.maker.chance(0.3):
                others = [one for one in self._values if one not in values]
                added = self._random.choice(others) if others and self.maker.chance(0.6) else None
                if added:
                    added.used = True
                self.steps.append(InPlace(value.name, added.name if added else None))

    # ---- calls ----

    def _target(self):
        if self.maker.chance(0.05):
            return self.worker
        return self._random.choice([worker for worker in range(WORKERS) if worker != self.worker])

    def _add_call_without_tensor(self):
        call, _ = self._call(asynchronous=False, returns=0)
        if call:
            self.steps.append(call)

    def _add_call_that_raises(self):
        call, _ = self._call(asynchronous=False, returns=0, raises=True)
        if call:
            self.steps.append(call)

    def _call(self, asynchronous, returns=None, raises=False):
        """A call and the values that it returns; (None, []) where there is none to be made."""
        if returns is None:
            returns = self._random.choice([1, 1, 1, 2, 3])
        made = self._callee(returns, raises)
        if made is None:
            return None, []
        body, arguments, results = made
        mine = [self._new(result.needs_gradient) for result in results]
        return Call(tuple(value.name for value in mine), body, arguments, asynchronous), mine

    def _callee(self, returns, raises):
        """(body, names of the arguments, what it returns there), or None."""
        if self.depth >= DEEPEST or not self.maker.take_call():
            return None
        # In a tidy program what is sent has to come back.
        sends_gradients = bool(returns) and not raises or not self.maker.tidy
        arguments = self._arguments(sends_gradients)
        inputs = [_counterpart(self.maker, value) for value in arguments]
        callee = _BodyMaker(self.maker, self._target(), inputs, self.depth + 1)
        if sends_gradients:
            callee.fill(self._random.randint(0, 4))
            if not callee._values and not callee._rrefs:
                callee._add_parameter()
            callee.use_left_over()
        results = callee.results(returns)
        body = callee.finished([value.name for value in results], raises)
        return body, tuple(value.name for value in arguments), [] if raises else results

    def _arguments(self, with_gradients):
        if not with_gradients:
            return [value for value in self._pick() if not value.needs_gradient]
        arguments = self._pick(self._random.choice([0, 1, 1, 2, 2, 3]))
        if self._rrefs and self.maker.chance(0.7):
            rref = self._random.choice(self._rrefs)
            rref.used = True
            arguments.append(rref)
        return arguments

    # ---- the end of a body ----

    def use_left_over(self):
        """Adds what has not been used yet, or some of it, into one value, and returns that; None if there is none."""
        for rref in [one for one in self._rrefs if not one.used]:
            if self._is_folded():
                self._fetch(rref)
        total = None
        for value in self.left_over():
            if self._is_folded():
                total = self.compute("add", [total, value]) if total else self.compute("halve", [value])
        return total

    def _is_folded(self):
        return self.maker.tidy or self.maker.chance(FOLDED_SHARE)

    def results(self, count):
        """What the body returns: among it, in a tidy program, all that is left over."""
        left = self.left_over()
        results = left[:count] if self.maker.tidy else []
        for value in results:
            value.used = True
        while len(results) < count:
            results += self._pick(needs_gradient=self.maker.chance(0.9)) or self._pick() or [self._constant()]
        self._random.shuffle(results)
        return results

    def _constant(self):
        self._add_constant()
        return self._values[-1]


def _counterpart(maker, value):
    """What an argument is called where it arrives."""
    if isinstance(value, _RRef):
        return _RRef(maker.new_name("q"), value.value)
    return _Value(maker.new_name("a"), value.needs_gradient)


class _PassMaker:
    """Makes the passes of a program, and the steps for their roots at the end of its body."""

    def __init__(self, maker, body):
        self._maker = maker
        self._random = maker.random
        self._body = body

    def passes(self):
        from_rref = self._maker.chance(0.12)
        choose = self._remote_root() if from_rref else self._choice_of_roots()
        count = self._random.choice([1, 1, 2, 3])
        return tuple(
            Pass(choose(), number < count - 1, not from_rref and self._maker.chance(0.15), from_rref)
            for number in range(count)
        )

    def _remote_root(self):
        """A function that chooses the root of a pass: an RRef to a scalar elsewhere, made from all that is left."""
        total = self._total()
        worker = self._random.choice([one for one in range(WORKERS) if one != self._body.worker])
        received = _counterpart(self._maker, total)
        callee = _BodyMaker(self._maker, worker, [received], 1)
        scalar = callee.compute("sum", [received])
        rref = self._maker.new_name("r")
        self._body.steps.append(Remote(rref, callee.finished([scalar.name]), (total.name,)))
        return lambda: (rref,)

    def _choice_of_roots(self):
        """A function that chooses roots for a pass. In a tidy program, each time among them one that needs all."""
        total = self._total()
        others = [value for value in self._body._values if value.needs_gradient and value is not total]
        all_of_it = self._root(total)
        roots = [self._root(value) for value in self._random.sample(others, min(len(others), 2))]

        def choose():
            chosen = [root for root in roots if self._maker.chance(0.4)]
            if self._maker.tidy or not chosen or self._maker.chance(0.4):
                chosen.append(all_of_it)
            self._random.shuffle(chosen)
            return tuple(chosen)

        return choose

    def _total(self):
        return self._body.use_left_over() or self._body.compute("halve", self._body._pick(needs_gradient=True))

    def _root(self, value):
        root = self._maker.new_name("root")
        self._body.steps.append(Compute(root, "sum", (value.name,)))
        return root
