"""Checks of single options: each takes the argument's name and value, and returns the value in its final form."""

from __future__ import annotations

import ipaddress
import math
import numbers
import os
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from torchwire.suggestion import did_you_mean

MIN_SECRET = 16  # bytes, as GroupKey::kMinSecret
BACKWARD_MODES = ("smart", "fast")
DEVICE_STREAM_ORDERS = ("none", "default_stream")
HOW_TO_MAKE_A_SECRET = 'python -c "import secrets; print(secrets.token_hex(32))"'

HIGHEST_PORT = 65535
_LOOPBACK = "127.0.0.1"
_MIN_KEEPALIVE = 2.0
_MIN_SESSION = 1.0
_MAX_SESSION = 24 * 3600.0
_MAX_INTERVAL = 24 * 3600.0
_MAX_KEEPALIVE = 32767.0  # the most that Linux takes
_ADDRESS = re.compile(r"(?P<host>\[[^\[\]\s]+\]|[^:\[\]\s/]+)(?::(?P<port>[0-9]{1,5}))?")


def switch(argument: str, value: Any) -> bool:
    """True or False, and nothing that merely counts as one of them."""
    if not isinstance(value, bool):
        raise TypeError(f"{argument} must be True or False, got {_described(value)}")
    return value


def thread_count(argument: str, value: Any) -> int:
    """A whole number of threads, at least 1."""
    count = _count(argument, value)
    if count < 1:
        raise ValueError(f"{argument} must be at least 1, got {value}; a worker without threads could serve no request")
    return count


def spare_count(argument: str, value: Any) -> int:
    """A whole number of threads; 0 stands for none."""
    count = _count(argument, value)
    if count < 0:
        raise ValueError(f"{argument} must be 0 (none) or more, got {value}")
    return count


def _count(argument: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{argument} must be an integer, got {_described(value)}")
    return int(value)


def byte_count(argument: str, value: Any) -> int:
    """A whole number of bytes; 0 stands for none."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{argument} must be a whole number of bytes, got {_described(value)}")
    count = int(value)
    if not 0 <= count < 2**63:
        raise ValueError(f"{argument} must be from 0 to 2**63 - 1 bytes, got {value}")
    return count


def timeout(argument: str, value: Any) -> float:
    """Seconds, finite and not negative; 0 stands for no limit."""
    return _seconds(argument, value, zero="means no limit")


def slow_call_warning(argument: str, value: Any) -> float:
    """Seconds; 0 stands for no warning."""
    return _seconds(argument, value, zero="switches it off")


def interval(argument: str, value: Any) -> float:
    """Seconds from one time to the next: some, and at most a day."""
    seconds = _number_of_seconds(argument, value)
    if not 0 < seconds <= _MAX_INTERVAL:
        raise ValueError(f"{argument} must be more than 0 and at most {_MAX_INTERVAL:.0f} seconds, got {value}")
    return seconds


def metrics_port(argument: str, value: Any) -> str | None:
    """A port, or 'host:port', as 'host:port'; None stands for what the environment says."""
    if isinstance(value, bool) or not isinstance(value, (int, str, type(None))):
        raise TypeError(f"{argument} must be a port, or text such as 'host:port', got {_described(value)}")
    if isinstance(value, int):
        value = str(value)
    if value is not None and re.fullmatch("-?[0-9]+", value):
        value = f"{_LOOPBACK}:{value}"
    address = _address(argument, value, lowest_port=0)
    if address is not None and not re.search(":[0-9]+$", address):
        raise ValueError(f"{argument}: {value!r} has no port; write a port, or 'host:port'")
    return address


def keepalive(argument: str, value: Any) -> float:
    """Seconds between signs of life on a silent connection; 0 stands for none."""
    seconds = _seconds(argument, value, zero="switches it off")
    if seconds != 0 and not _MIN_KEEPALIVE <= seconds <= _MAX_KEEPALIVE:
        raise ValueError(
            f"{argument} must be between {_MIN_KEEPALIVE:.0f} and {_MAX_KEEPALIVE:.0f} seconds, since the "
            f"kernel's TCP keep-alive counts in whole ones, or 0 to switch it off; got {value} seconds"
        )
    return seconds


def session_timeout(argument: str, value: Any) -> float:
    """Seconds that a broken connection has to come back; 0 stands for none."""
    seconds = _seconds(argument, value, zero="means that calls fail with their connection")
    if seconds != 0 and not _MIN_SESSION <= seconds <= _MAX_SESSION:
        raise ValueError(
            f"{argument} must be between {_MIN_SESSION:.0f} and {_MAX_SESSION:.0f} seconds, since to connect "
            f"again takes time, or 0 to let calls fail with their connection; got {value} seconds"
        )
    return seconds


def backward_mode(argument: str, value: Any) -> str:
    """The name of the algorithm of backward passes."""
    return _choice(argument, value, BACKWARD_MODES, "an algorithm")


def device_stream_order(argument: str, value: Any) -> str:
    """The name of what requests and devices' default streams wait for."""
    return _choice(argument, value, DEVICE_STREAM_ORDERS, "an order")


def encryption(argument: str, value: Any) -> bool | str:
    """True, False or "auto"."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise TypeError(f'{argument} must be True, False or "auto", got {_described(value)}')
    if value != "auto":
        raise ValueError(f'{argument} must be True, False or "auto", got {value!r}')
    return value


def secret(argument: str, value: Any) -> bytes | None:
    """The group's secret as bytes (text is encoded as UTF-8), or None. No message shows it."""
    if value is None:
        return None
    if not isinstance(value, (str, bytes)):
        raise TypeError(f"{argument} must be text, bytes or None, got {type(value).__name__}")
    try:
        as_bytes = value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise ValueError(f"{argument} holds characters that have no UTF-8 form; pass bytes instead") from None
    if len(as_bytes) < MIN_SECRET:
        raise ValueError(
            f"{argument} has {len(as_bytes)} bytes; at least {MIN_SECRET} are needed, and random ones: "
            f"make it with {HOW_TO_MAKE_A_SECRET}"
        )
    return as_bytes


def path(argument: str, value: Any) -> str | None:
    """The path of a file, or None. Whether there is such a file is not looked at."""
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{argument} must be a path as text or os.PathLike, or None, got {_described(value)}")
    path = os.fsdecode(cast("str | os.PathLike[str]", value))
    if not path:
        raise ValueError(f"{argument} is empty; name a file, or pass None")
    return path


def init_method(argument: str, value: Any) -> str:
    """The URL of the rendezvous, such as env://, tcp://host:port or file:///path."""
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a URL as text, got {_described(value)}")
    if not value:
        raise ValueError(f"{argument} is empty; pass a URL such as 'env://' or 'tcp://10.0.0.1:29500'")
    return value


def names(argument: str, value: Any, known: Mapping[str, str]) -> list[str] | None:
    """A list of known names without repetition, or None for the default choice."""
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{argument} must be a list of names or None, got {_described(value)}")
    if not value:
        raise ValueError(f"{argument} is empty; name at least one of {_listed(known)}, or pass None for the default")
    for name in cast("Sequence[Any]", value):
        _check_name(argument, name, known)
    return list(dict.fromkeys(cast("Sequence[str]", value)))


def bind_address(argument: str, value: Any) -> str | None:
    """'host', 'host:port', '[v6]' or '[v6]:port' to listen on; None or '' lets torchwire choose, and so does port 0."""
    return _address(argument, value, lowest_port=0)


def advertise_address(argument: str, value: Any) -> str | None:
    """'host', 'host:port', '[v6]' or '[v6]:port' that peers connect to; None or '' advertises what is listened on."""
    return _address(argument, value, lowest_port=1)


def _seconds(argument: str, value: Any, zero: str) -> float:
    seconds = _number_of_seconds(argument, value)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{argument} must be finite and not negative, got {value} seconds; 0 {zero}")
    return seconds


def _number_of_seconds(argument: str, value: Any) -> float:
    if isinstance(value, timedelta):
        raise TypeError(f"{argument} is a number of seconds, got a timedelta; pass its total_seconds()")
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{argument} must be a number of seconds, got {_described(value)}")
    return float(value)


def _choice(argument: str, value: Any, choices: Sequence[str], kind: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be the name of {kind}, got {_described(value)}")
    if value not in choices:
        known = " or ".join(map(repr, choices))
        raise ValueError(f"{argument}: unknown name {value!r}{did_you_mean(value, choices)}; choose {known}")
    return value


def _check_name(argument: str, name: Any, known: Mapping[str, str]) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{argument} must hold names, got {_described(name)}")
    if name not in known:
        raise ValueError(f"{argument}: unknown name {name!r}{did_you_mean(name, known)}; known are {_listed(known)}")


def _address(argument: str, value: Any, lowest_port: int) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be text such as 'host:port', got {_described(value)}")
    if _is_ipv6(value):
        return f"[{value}]"  # without brackets its last group could be read as a port
    match = _ADDRESS.fullmatch(value)
    if match is None:
        raise ValueError(f"{argument}: {value!r} is not an address; write 'host', 'host:port' or '[v6]:port'")
    if match["host"].startswith("[") and not _is_ipv6(match["host"][1:-1]):
        raise ValueError(f"{argument}: {match['host']} in {value!r} is not an IPv6 address; brackets are for those")
    port = match["port"]
    if port is not None and not lowest_port <= int(port) <= HIGHEST_PORT:
        raise ValueError(f"{argument}: port {port} in {value!r} is not between {lowest_port} and {HIGHEST_PORT}")
    return value


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _listed(known: Mapping[str, str]) -> str:
    return ", ".join(sorted(known))


def _described(value: Any) -> str:
    return f"{value!r} ({type(value).__name__})"
