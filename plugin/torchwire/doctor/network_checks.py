"""What torchwire needs of the network of this machine."""

from __future__ import annotations

import socket

from torchwire.doctor import interfaces
from torchwire.doctor.check import Check, failed, ok, warning
from torchwire.doctor.interfaces import Interface

_LIMIT = 3.0  # seconds for a connection of this machine with itself


def network_interfaces() -> Check:
    """That the interface that workers listen on, or at least one beside loopback, is up and has an address."""
    found = interfaces.all_interfaces()
    named = interfaces.named()
    if named:
        return _named_interface(*named, found)
    name = "interfaces"
    others = [interface for interface in found if not interface.is_loopback and interface.addresses]
    listed = ", ".join(map(str, others)) or "none beside loopback has an address"
    unusable = [interface for interface in others if not interface.is_usable()]
    if unusable:
        return warning(name, listed, _how_to_raise(unusable[0]))
    if not others:
        return warning(
            name,
            f"{listed}, so no other machine reaches workers here",
            "give an interface an address and bring it up, unless all workers are on this machine",
        )
    return ok(name, listed)


def _named_interface(variable: str, value: str, found: list[Interface]) -> Check:
    name = "interfaces"
    interface = next((each for each in found if each.name == value), None)
    if interface is None:
        known = ", ".join(each.name for each in found)
        return failed(name, f"{variable} names {value!r}, which is not here", f"set {variable} to one of {known}")
    if not interface.is_usable():
        return failed(name, f"{variable} names {interface}", _how_to_raise(interface))
    if not interface.addresses:
        return failed(
            name, f"{variable} names {interface}", f"give it one: ip address add ADDRESS/BITS dev {interface.name}"
        )
    return ok(name, f"{variable} names {interface}")


def _how_to_raise(interface: Interface) -> str:
    if not interface.is_up:
        return f"bring it up: ip link set {interface.name} up"
    return f"bring up the other end of {interface.name}: its cable, switch port or peer"


def loopback() -> Check:
    """That workers on this machine can connect by TCP, as those do that find no other address."""
    problem = _connect(socket.AF_INET, "127.0.0.1")
    if problem:
        return failed("loopback", f"no connection to 127.0.0.1: {problem}", "bring it up: ip link set lo up")
    return ok("loopback", "127.0.0.1 connects to itself")


def ipv6() -> Check:
    """That a worker could listen on an IPv6 address."""
    problem = _connect(socket.AF_INET6, "::1")
    if not problem:
        return ok("IPv6", "::1 connects to itself")
    return warning(
        "IPv6",
        f"no connection to ::1: {problem}",
        "name stores and workers by IPv4 addresses, or turn it on: sysctl net.ipv6.conf.all.disable_ipv6=0",
    )


def _connect(family: socket.AddressFamily, host: str) -> str:
    """Why a connection cannot be made, or nothing."""
    try:
        with socket.create_server((host, 0), family=family) as listening:
            with socket.create_connection(listening.getsockname()[:2], _LIMIT):
                return ""
    except OSError as error:
        return error.strerror or str(error)


ALL = (network_interfaces, loopback, ipv6)
