"""Frameworks of actors, which start processes of their own: Ray and Monarch."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch

from torchwire.bench import functions
from torchwire.bench.member import Member
from torchwire.bench.sampling import Call


class ActorMember(Member):
    """Calls functions on one actor."""

    def ask(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Call:
        """Begins a call on the actor; the result waits for the response."""
        raise NotImplementedError

    def begin(self, name: str, peer: int = 1) -> Callable[[], Call]:
        function, arguments = functions.call_of(name)
        return lambda: self.ask(function, arguments)

    def call(self, name: str) -> Call:
        function, arguments = functions.call_of(name)
        return lambda: self.ask(function, arguments)()

    def echo(self, size: int) -> Call:
        arguments = (torch.zeros(size, dtype=torch.uint8),)
        return lambda: self.ask(functions.echo, arguments)()


class RayMember(ActorMember):
    """Ray's head and one actor, on this host."""

    def join(self) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # it would report to its makers
        ray: Any = importlib.import_module("ray")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
        self._get: Any = ray.get
        self._end: Any = ray.shutdown
        self._actor: Any = ray.remote(_RayActor).remote()
        ray.get(self._actor.run.remote(functions.noop, ()))

    def leave(self) -> None:
        self._end()

    def ask(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Call:
        reference = self._actor.run.remote(function, arguments)
        return lambda: self._get(reference)


class _RayActor:
    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return function(*arguments)


class MonarchMember(ActorMember):
    """One actor of Monarch's in a process on this host."""

    def join(self) -> None:
        monarch: Any = importlib.import_module("monarch.actor")

        class Callee(monarch.Actor):
            @monarch.endpoint
            def run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
                return function(*arguments)

        self._processes: Any = monarch.this_host().spawn_procs(per_host={"gpus": 1})
        self._actor: Any = self._processes.spawn("callee", Callee)
        self.ask(functions.noop, ())()

    def leave(self) -> None:
        self._processes.stop().get()

    def ask(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Call:
        return self._actor.run.call_one(function, arguments).get
