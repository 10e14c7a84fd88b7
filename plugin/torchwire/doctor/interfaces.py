"""The network interfaces of this process's network namespace."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from dataclasses import dataclass

VARIABLES = ("TP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")  # in the order in which a worker looks at them

_SIOCGIFFLAGS = 0x8913
_SIOCGIFADDR = 0x8915
_IFF_UP = 0x1
_IFF_LOOPBACK = 0x8
_IFF_RUNNING = 0x40
_NAME_SIZE = 16
_REQUEST_SIZE = 40


@dataclass(frozen=True)
class Interface:
    """Link-local addresses are left out: no worker announces one."""

    name: str
    is_up: bool
    has_carrier: bool
    is_loopback: bool
    addresses: tuple[str, ...]

    def is_usable(self) -> bool:
        return self.is_up and self.has_carrier

    def state(self) -> str:
        return "down" if not self.is_up else "up" if self.has_carrier else "without a carrier"

    def __str__(self) -> str:
        return f"{self.name} {self.state()} ({', '.join(self.addresses) or 'no address'})"


def all_interfaces() -> list[Interface]:
    v6 = _v6_addresses()
    return [_interface(name, v6.get(name, [])) for _, name in socket.if_nameindex()]


def named() -> tuple[str, str] | None:
    """The variable that tells workers which interface to listen on, and its value; None where there is none."""
    return next(((variable, os.environ[variable]) for variable in VARIABLES if os.environ.get(variable)), None)


def own_address() -> str:
    """Where others reach this machine: on the interface that the environment names, else on the first usable one."""
    name = (named() or ("", ""))[1]
    usable = [interface for interface in all_interfaces() if interface.is_usable() and interface.addresses]
    wanted = [interface for interface in usable if interface.name == name]
    others = [interface for interface in usable if not interface.is_loopback]
    return next((interface.addresses[0] for interface in wanted or others), "127.0.0.1")


def owner_of(address: str) -> Interface | None:
    """The interface with this address."""
    return next((interface for interface in all_interfaces() if address in interface.addresses), None)


def _interface(name: str, v6: list[str]) -> Interface:
    flags = _flags(name)
    v4 = _v4_address(name)
    return Interface(
        name,
        is_up=bool(flags & _IFF_UP),
        has_carrier=bool(flags & _IFF_RUNNING),
        is_loopback=bool(flags & _IFF_LOOPBACK),
        addresses=(*([v4] if v4 else []), *v6),
    )


def _flags(name: str) -> int:
    answer = _ask(name, _SIOCGIFFLAGS)
    return struct.unpack_from("H", answer, _NAME_SIZE)[0] if answer else 0


def _v4_address(name: str) -> str:
    answer = _ask(name, _SIOCGIFADDR)
    return socket.inet_ntoa(answer[_NAME_SIZE + 4 : _NAME_SIZE + 8]) if answer else ""


def _ask(name: str, request: int) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            return fcntl.ioctl(any_socket, request, name.encode()[: _NAME_SIZE - 1].ljust(_REQUEST_SIZE, b"\0"))
        except OSError:
            return b""  # it has no address, or has just gone


def _v6_addresses() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    try:
        with open("/proc/self/net/if_inet6") as file:
            lines = [line.split() for line in file]
    except OSError:  # a kernel without IPv6
        return {}
    for digits, _, _, _, _, name in lines:
        address = ipaddress.IPv6Address(bytes.fromhex(digits))
        if not address.is_link_local:
            found.setdefault(name, []).append(str(address))
    return found
