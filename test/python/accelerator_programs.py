"""Random programs on the streams of two devices, and what they compute on the CPU.

Each step reads and writes some variables on some stream; the program waits for whoever used them before, with events,
and tells the allocator. Without that (`careful=False`) it is wrong whenever a stream is late.
"""

from __future__ import annotations

import random

import accelerator
import torch

_STEPS = 25
_SIZE = 8
_NEW = 0.3  # the share of the steps that make a variable of nothing


class _Variable:
    def __init__(self, value: torch.Tensor, expected: torch.Tensor):
        self.value = value
        self.expected = expected
        self.uses: list[torch.Event] = []

    @property
    def device(self) -> int:
        return self.value.device.index


class Program:
    """Not thread-safe."""

    def __init__(self, seed: int, careful: bool = True):
        self._random = random.Random(seed)
        self._numbers = torch.Generator().manual_seed(seed)
        self._careful = careful
        self._streams = [torch.Stream(f"{accelerator.NAME}:{device}") for device in (0, 1) for _ in range(2)]
        self._variables: list[_Variable] = []

    def run(self) -> None:
        for _ in range(_STEPS):
            self._step()

    def errors(self) -> list[str]:
        """A line for each variable whose value is not the CPU's."""
        return [error for variable in self._variables if (error := self._error_of(variable))]

    def _step(self) -> None:
        stream = self._random.choice(self._streams)
        here = [variable for variable in self._variables if variable.device == stream.device_index]
        if not here or self._random.random() < _NEW:
            self._make(stream)
            return
        operation = self._random.choice([self._combine, self._change, self._move, self._drop])
        operation(stream, here)

    # ---- what a step does ----

    def _make(self, stream: torch.Stream) -> None:
        expected = torch.rand(_SIZE, _SIZE, generator=self._numbers)
        with torch.standin.stream(stream):
            made = _Variable(expected.to(f"{accelerator.NAME}:{stream.device_index}", non_blocking=True), expected)
        self._variables.append(made)
        self._after(stream, made)

    def _combine(self, stream: torch.Stream, here: list[_Variable]) -> None:
        one, other = self._random.choice(here), self._random.choice(here)
        operator = self._random.choice([torch.add, torch.mul, torch.matmul, torch.minimum])
        self._before(stream, one, other)
        with torch.standin.stream(stream):
            made = _Variable(
                operator(one.value, other.value).sigmoid(), operator(one.expected, other.expected).sigmoid()
            )
        self._variables.append(made)
        self._after(stream, one, other, made)

    def _change(self, stream: torch.Stream, here: list[_Variable]) -> None:
        changed, other = self._random.choice(here), self._random.choice(here)
        self._before(stream, changed, other)
        with torch.standin.stream(stream):
            changed.value.add_(other.value).clamp_(0, 1)
        changed.expected = (changed.expected + other.expected).clamp(0, 1)
        self._after(stream, changed, other)

    def _move(self, stream: torch.Stream, here: list[_Variable]) -> None:
        """To the other device: on the current streams of both, which wait for each other by themselves."""
        moved = self._random.choice(here)
        there = self._random.choice([other for other in self._streams if other.device_index != stream.device_index])
        self._before(stream, moved)
        with torch.standin.stream(there), torch.standin.stream(stream):
            copy = moved.value.to(f"{accelerator.NAME}:{there.device_index}", non_blocking=True)
        made = _Variable(copy, moved.expected.clone())
        self._variables.append(made)
        self._after(stream, moved)
        self._after(there, made)

    def _drop(self, stream: torch.Stream, here: list[_Variable]) -> None:
        self._variables.remove(self._random.choice(here))

    # ---- who waits for whom ----

    def _before(self, stream: torch.Stream, *variables: _Variable) -> None:
        if self._careful:
            for event in [event for variable in variables for event in variable.uses]:
                stream.wait_event(event)

    def _after(self, stream: torch.Stream, *variables: _Variable) -> None:
        if self._careful:
            used = stream.record_event()
            for variable in variables:
                variable.uses.append(used)
                variable.value.record_stream(stream)

    def _error_of(self, variable: _Variable) -> str:
        self._before(torch.standin.current_stream(variable.device), variable)
        try:
            torch.testing.assert_close(variable.value.cpu(), variable.expected)
        except AssertionError as error:
            return str(error)
        return ""
