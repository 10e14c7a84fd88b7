"""Runs of a program (programs.py): over the workers of a group, and in one process, with ordinary autograd.

Both go through a body's steps in the same way; they differ in what a parameter, a hook, a call and an RRef is. A third
run, in program_reach.py, computes nothing and finds out what depends on what.
"""

import threading
import zlib
from dataclasses import dataclass, field

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from programs import (
    ERROR_TEXT,
    WORKERS,
    BodyError,
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
    Remote,
)


class Blocking(torch.autograd.Function):
    """Passes its input on, but no gradient back."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None


OPERATORS = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "sin": torch.sin,
    "tanh": torch.tanh,
    "halve": lambda tensor: tensor * 0.5,
    "block": Blocking.apply,
    "sum": torch.sum,
}


@torch.jit.script
def scripted_add(a, b):
    return a + 0.5 * b


@torch.jit.script
def scripted_mul(a, b):
    return a * b + a


SCRIPTED = {"add": scripted_add, "mul": scripted_mul}


@torch.jit.script
def scripted_backward(context_id: int, roots: list[torch.Tensor], retain_graph: bool):
    dist_autograd.backward(context_id, roots, retain_graph)


@dataclass
class Grads:
    """What a run leaves: a gradient, or None, for each (worker, index), and for each hook how often it was called."""

    gradients: dict = field(default_factory=dict)
    hooks: dict = field(default_factory=dict)


class Run:
    """Goes through the steps of bodies. Subclasses say what the parts of a program are."""

    def body(self, body, arguments):
        """Executes it; returns the list of what it returns."""
        values = self.values_after(body, arguments)
        return [values[name] for name in body.returns]

    def values_after(self, body, arguments=()):
        """Executes it; returns all its values by name."""
        values = dict(zip(body.inputs, arguments, strict=True))
        for step in body.steps:
            self._step(body.worker, values, step)
        self.settle(body, values)
        if body.raises:
            raise BodyError(ERROR_TEXT)
        return values

    def settle(self, body, values):
        """Lets all end that the body has begun."""

    def _step(self, worker, values, step):
        def of(names):
            return [values[name] for name in names]

        match step:
            case Parameter(name, index):
                values[name] = self.parameter(worker, index)
            case Constant(name, value):
                values[name] = self.constant(value)
            case Compute(name, operator, operands):
                values[name] = self.compute(operator, of(operands))
            case InPlace(name, added):
                self.change(values[name], values[added] if added else None)
            case Hook(name, scale):
                self.hook(name, values[name], scale)
            case Builtin(name, _, _, operands, _):
                values[name] = self.builtin(step, of(operands))
            case Call():
                self._bind(values, step, self.finish(step, self.begin(worker, step, of(step.arguments))))
            case FanOut(calls):
                begun = [self.begin(worker, call, of(call.arguments)) for call in calls]
                for call, one in zip(calls, begun, strict=True):
                    self._bind(values, call, self.finish(call, one))
            case Remote(name, body, arguments):
                values[name] = self.remote(worker, body, of(arguments))
            case Own(name, value):
                values[name] = self.own(worker, values[value])
            case Fetch(name, rref, fails):
                values[name] = self.fetch(worker, values[rref], fails)
            case _:
                raise TypeError(f"no step: {step!r}")

    @staticmethod
    def _bind(values, call, results):
        values.update(zip(call.names, results, strict=True))


def new_parameter(seed, worker, index):
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {worker} {index}".encode()))
    return (torch.rand(3, dtype=torch.float64, generator=generator) + 0.5).requires_grad_()


class TensorRun(Run):
    """A run on tensors, with the parts that are the same everywhere."""

    def __init__(self, seed):
        self._seed = seed
        self._lock = threading.Lock()
        self._parameters = {}
        self._hooks = {}

    def parameter(self, worker, index):
        with self._lock:
            if (worker, index) not in self._parameters:
                self._parameters[worker, index] = new_parameter(self._seed, worker, index)
            return self._parameters[worker, index]

    def constant(self, value):
        return torch.full((3,), value, dtype=torch.float64)

    def compute(self, operator, operands):
        return OPERATORS[operator](*operands)

    def change(self, tensor, added):
        if added is None:
            tensor.mul_(2)
        else:
            tensor.add_(added)

    def hook(self, name, tensor, scale):
        with self._lock:
            self._hooks[name] = 0

        def scaled(gradient):
            if gradient is None:  # where only other parts of the same message have one
                return None
            with self._lock:
                self._hooks[name] += 1
            return gradient * scale

        tensor.register_hook(scaled)


@dataclass
class LocalRRef:
    owner: int
    value: object


class LocalRun(TensorRun):
    """In this process. Tensors are cloned where they would travel."""

    def builtin(self, step, operands):
        function = SCRIPTED[step.operator] if step.scripted else OPERATORS[step.operator]
        return function(*operands)

    def begin(self, worker, call, arguments):
        try:
            return _cloned(self.body(call.body, _cloned(arguments)))
        except BodyError:
            return []

    def finish(self, call, results):
        return results

    def remote(self, worker, body, arguments):
        try:
            (value,) = self.body(body, _cloned(arguments))
        except BodyError:
            value = None
        return LocalRRef(body.worker, value)

    def own(self, worker, value):
        return LocalRRef(worker, value)

    def fetch(self, worker, rref, fails):
        if fails or rref.owner == worker:
            return rref.value
        return rref.value.clone()

    def backward(self, one, values):
        roots = [_local_root(values[name]) for name in one.roots]
        torch.autograd.backward(roots, retain_graph=one.retain_graph)

    def grads(self):
        return Grads({leaf: tensor.grad for leaf, tensor in self._parameters.items()}, self._hooks)


def _local_root(value):
    return value.value if isinstance(value, LocalRRef) else value


def _cloned(values):
    """As they arrive in one message: what was the same tensor is the same tensor there."""
    clones = {id(value): value.clone() for value in values if isinstance(value, torch.Tensor)}
    return [clones.get(id(value), value) for value in values]


def run_locally(program):
    run = LocalRun(program.seed)
    values = run.values_after(program.body)
    for one in program.passes:
        run.backward(one, values)
    return run.grads()


# ---- over the group ----


class GroupRun(TensorRun):
    """A worker's part of a run over the group."""

    def __init__(self, seed, context_id):
        super().__init__(seed)
        self._context_id = context_id

    def builtin(self, step, operands):
        function = SCRIPTED[step.operator] if step.scripted else OPERATORS[step.operator]
        return rpc.rpc_sync(f"worker{step.to}", function, tuple(operands))

    def begin(self, worker, call, arguments):
        to, arguments = f"worker{call.body.worker}", self._traveling(call.body, arguments)
        if call.asynchronous:
            return rpc.rpc_async(to, execute, arguments).wait
        return lambda: rpc.rpc_sync(to, execute, arguments)

    def finish(self, call, wait):
        if call.body.raises:
            _expect_body_error(wait)
            return []
        results = wait()
        return [] if results is None else list(results) if isinstance(results, tuple) else [results]

    def remote(self, worker, body, arguments):
        return rpc.remote(f"worker{body.worker}", execute, self._traveling(body, arguments))

    def _traveling(self, body, arguments):
        return (self._seed, self._context_id, body, *arguments)

    def own(self, worker, value):
        return rpc.RRef(value)

    def fetch(self, worker, rref, fails):
        if fails:
            _expect_body_error(rref.to_here)
            return None
        return rref.to_here()

    def settle(self, body, values):
        # What rpc.remote has begun may still run, and would open the context again after its release.
        for step in body.steps:
            if isinstance(step, Remote):
                values[step.name]._get_future().wait()  # this has no error, even if the body raises

    def backward(self, one, values):
        roots = [values[name] for name in one.roots]
        if one.from_rref:
            roots[0].backward(self._context_id, one.retain_graph)
        elif one.scripted:
            scripted_backward(self._context_id, roots, one.retain_graph)
        else:
            dist_autograd.backward(self._context_id, roots, one.retain_graph)

    def grads(self):
        """This worker's, from the context."""
        found = dist_autograd.get_gradients(self._context_id)
        gradients = {leaf: found.pop(tensor, None) for leaf, tensor in self._parameters.items()}
        if found:
            raise AssertionError(f"gradients of {len(found)} tensors that are no parameters: {list(found)}")
        return Grads(gradients, self._hooks)


def _expect_body_error(function):
    try:
        result = function()
    except Exception as error:
        if ERROR_TEXT not in str(error):
            raise
    else:
        raise AssertionError(f"the body did not raise, but returned {result}")


_runs = {}
_runs_lock = threading.Lock()


def _run_of(seed, context_id):
    with _runs_lock:
        return _runs.setdefault(context_id, GroupRun(seed, context_id))


def execute(seed, context_id, body, *arguments):
    """Runs where a body is called."""
    results = _run_of(seed, context_id).body(body, arguments)
    return None if not results else results[0] if len(results) == 1 else tuple(results)


def grads_of_worker(context_id):
    """Runs at every worker when all is over: what it has found. The worker forgets the run."""
    with _runs_lock:
        run = _runs.pop(context_id, None)
    return Grads() if run is None else run.grads()


def run_over_group(program):
    """Runs on the program's root worker."""
    with dist_autograd.context() as context_id:
        run = _run_of(program.seed, context_id)
        try:
            values = run.values_after(program.body)
            for one in program.passes:
                run.backward(one, values)
        finally:
            pending = [rpc.rpc_async(f"worker{rank}", grads_of_worker, (context_id,)) for rank in range(WORKERS)]
            all_grads = [one.wait() for one in pending]
    return merged(all_grads)


def merged(all_grads):
    together = Grads()
    for grads in all_grads:
        together.gradients.update(grads.gradients)
        together.hooks.update(grads.hooks)
    return together
