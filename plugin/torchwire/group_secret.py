"""Where a worker's group secret comes from: an option, a file, or the file that the environment names."""

from __future__ import annotations

import os
import stat
import warnings

from torchwire import option_checks

ENVIRONMENT_VARIABLE = "TORCHWIRE_SECRET_FILE"

_MAX_SIZE = 4096  # bytes; whatever is longer is not the file that was meant


def of(secret: bytes | None, file: str | None) -> bytes | None:
    """The secret itself, or what the file holds; with neither, what the file named by the environment holds, if any.

    Raises ValueError when a file is named that holds no secret, or one that is too short.
    """
    if secret is not None:
        return secret
    if not is_given(secret, file):
        return None
    return _read(os.environ[ENVIRONMENT_VARIABLE] if file is None else file, source(secret, file))


def is_given(secret: bytes | None, file: str | None) -> bool:
    """Whether there is one; else the group draws one."""
    return secret is not None or file is not None or bool(os.environ.get(ENVIRONMENT_VARIABLE))


def source(secret: bytes | None, file: str | None) -> str:
    """What the secret is taken from, for messages."""
    if secret is not None:
        return "option secret"
    if file is not None:
        return f"secret_file {file!r}"
    return f"{ENVIRONMENT_VARIABLE} {os.environ[ENVIRONMENT_VARIABLE]!r}"


def _read(path: str, described: str) -> bytes:
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MAX_SIZE + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"{described} cannot be read: {reason}; name a file with the group's secret that this user may read"
        ) from error
    if len(content) > _MAX_SIZE:
        raise ValueError(f"{described} holds more than {_MAX_SIZE} bytes; is it the file with the group's secret?")
    secret = _without_newline(content)
    if not secret:
        raise ValueError(f"{described} is empty; make a secret with {option_checks.HOW_TO_MAKE_A_SECRET} > {path}")
    _warn_if_open(path, mode, described)
    checked = option_checks.secret(described, secret)
    assert checked is not None
    return checked


def _without_newline(content: bytes) -> bytes:
    for end in (b"\r\n", b"\n"):
        if content.endswith(end):
            return content[: -len(end)]
    return content


def _warn_if_open(path: str, mode: int, described: str) -> None:
    if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        warnings.warn(
            f"{described} is open to other users (mode {stat.S_IMODE(mode):03o}), who could join the group: "
            f"chmod 600 {path}",
            stacklevel=2,
        )
