"""The options of an agent that injects faults."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch.distributed.rpc as rpc

from torchwire import option_checks, torch_parts
from torchwire.options import TorchwireRpcBackendOptions, _Checked, from_stock  # pyright: ignore[reportPrivateUsage]
from torchwire.testing import message_types
from torchwire.testing.duration import check_seconds
from torchwire.testing.plan import Plan, as_plan
from torchwire.testing.rule import Rule

PLAN_VARIABLE = "TORCHWIRE_FAULT_PLAN"
LOG_VARIABLE = "TORCHWIRE_FAULT_LOG"


def _messages_to_fail(argument: str, value: Any) -> list[str]:
    if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
        raise TypeError(
            f"{argument} must be a list of message types, got {value!r} ({type(cast('object', value)).__name__})"
        )
    names = list(cast("Iterable[Any]", value))
    for name in names:
        message_types.check_name(argument, name)
    return names


def _messages_to_delay(argument: str, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{argument} must be a dict from message types to seconds, got {type(value).__name__}")
    given = cast("Mapping[Any, Any]", value)
    for name in given:
        message_types.check_name(argument, name)
    return {name: check_seconds(f"{argument}[{name!r}]", seconds) for name, seconds in given.items()}


def _count(argument: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument} must be an integer, got {value!r} ({type(value).__name__})")
    if value < 0:
        raise ValueError(f"{argument} should be non-negative, got {value}")
    return value


def _no_sessions(argument: str, value: Any) -> float:
    if option_checks.session_timeout(argument, value) != 0:
        raise ValueError(
            f"{argument} must be 0 where faults are injected, got {value}: a plan's faults are those of single "
            "connections, which a session would make good again; leave the option out"
        )
    return 0.0


def _plan_or_path(argument: str, value: Any) -> Plan | str | None:
    return value if isinstance(value, Plan) else option_checks.path(argument, value)


class FaultyTorchwireRpcBackendOptions(TorchwireRpcBackendOptions):
    """Options of the backend `FAULTY_TORCHWIRE`: those of `TORCHWIRE`, and what goes wrong. All are keyword-only.

    messages_to_fail: types of messages, by name, whose sending fails; see Rule. Default: none.
    num_fail_sends: how often the sending of each such message fails before it succeeds. Default 0.
    messages_to_delay: for types of messages, by name, the seconds that each is held back. Default: none.
        These three are as in PyTorch's FaultyTensorPipeRpcBackendOptions, and are the first rules of the plan.
    fault_plan: a Plan, or the path of a TOML file with one, which init_rpc reads. Default: the file named by the
        environment variable TORCHWIRE_FAULT_PLAN. With none, nothing goes wrong until set_plan().
    fault_log: a folder, made if need be, in which the worker appends each fault to the file `<worker>.jsonl` before it
        happens. Default: the folder named by the environment variable TORCHWIRE_FAULT_LOG. With none,
        the log is kept in memory only, see fault_log().
    checksums: as for TORCHWIRE, but by default True: what a fault damages is to be found.
    session_timeout: always 0, which is the default, so that a call whose connection a fault breaks, or whose message it
        drops, fails.

    Checks and errors are those of TorchwireRpcBackendOptions. Not thread-safe. The agent reads the options once, in
    init_rpc.
    """

    messages_to_fail = _Checked(_messages_to_fail)
    messages_to_delay: _Checked[dict[str, float]] = _Checked(_messages_to_delay)
    num_fail_sends = _Checked(_count)
    fault_plan = _Checked(_plan_or_path)
    fault_log: _Checked[str | None] = _Checked(option_checks.path)
    session_timeout = _Checked(_no_sessions)

    def __init__(
        self,
        *,
        messages_to_fail: Iterable[str] = (),
        messages_to_delay: Mapping[str, float] | None = None,
        num_fail_sends: int = 0,
        fault_plan: Plan | str | os.PathLike[str] | None = None,
        fault_log: str | os.PathLike[str] | None = None,
        checksums: bool = True,
        session_timeout: float = 0.0,
        **others: Any,
    ) -> None:
        super().__init__(checksums=checksums, session_timeout=session_timeout, **others)
        self.messages_to_fail = messages_to_fail
        self.messages_to_delay = {} if messages_to_delay is None else messages_to_delay
        self.num_fail_sends = num_fail_sends
        self.fault_plan = fault_plan
        self.fault_log = fault_log


def from_any(options: rpc.RpcBackendOptions) -> FaultyTorchwireRpcBackendOptions:
    """Returns `options` as they are, or converted from TORCHWIRE's, TENSORPIPE's or FAULTY_TENSORPIPE's.

    Raises TypeError for options of any other class.
    """
    if isinstance(options, FaultyTorchwireRpcBackendOptions):
        return options
    if isinstance(options, TorchwireRpcBackendOptions):
        others = ("checksums", "session_timeout")  # whose defaults differ
        given = {name: getattr(options, name) for name in options._keywords() if name not in others}  # pyright: ignore[reportPrivateUsage]
        return FaultyTorchwireRpcBackendOptions(**given)
    # Not rpc.TensorPipeRpcBackendOptions, of which PyTorch's faulty options are none.
    if isinstance(options, torch_parts.TensorPipeOptions):
        names = ("messages_to_fail", "messages_to_delay", "num_fail_sends")
        faults = {name: getattr(options, name) for name in names if hasattr(options, name)}
        return from_stock(options, FaultyTorchwireRpcBackendOptions, **faults)
    raise TypeError(
        "`rpc_backend_options` must be a `FaultyTensorPipeRpcBackendOptions` or a `FaultyTorchwireRpcBackendOptions`, "
        f"got {type(options).__module__}.{type(options).__qualname__}"
    )


def plan_of(options: FaultyTorchwireRpcBackendOptions) -> Plan:
    """The plan that all the options say together; reads its file, if there is one."""
    source = options.fault_plan or os.environ.get(PLAN_VARIABLE)
    plan = Plan() if not source else as_plan("fault_plan", source)
    return Plan([*_failing(options), *_delaying(options), *plan.rules], plan.seed)


def log_folder_of(options: FaultyTorchwireRpcBackendOptions) -> str | None:
    """The folder to log into, or None."""
    return options.fault_log or os.environ.get(LOG_VARIABLE) or None


def _failing(options: FaultyTorchwireRpcBackendOptions) -> list[Rule]:
    if not options.messages_to_fail or options.num_fail_sends == 0:
        return []
    return [
        Rule(
            "fail",
            name="messages_to_fail",
            messages=options.messages_to_fail,
            at_most=options.num_fail_sends,
            each_message=True,
        )
    ]


def _delaying(options: FaultyTorchwireRpcBackendOptions) -> list[Rule]:
    return [
        Rule("delay", name="messages_to_delay", messages=name, seconds=seconds)
        for name, seconds in options.messages_to_delay.items()
        if seconds > 0
    ]
