"""Where a worker's group secrets come from: an option, a file, or the file that the environment names.

A file may hold several, each on a line of its own below the line `secrets:`: the first is used, all are accepted, while
the secret is changed.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Sequence

from torchwire import option_checks

ENVIRONMENT_VARIABLE = "TORCHWIRE_SECRET_FILE"

_MAX_SIZE = 4096  # bytes; whatever is longer is not the file that was meant
_HEAD_OF_SEVERAL = b"secrets:"
_MOST = 8  # secrets of one file: each costs whoever dials, and whoever starts


def of(secret: bytes | None, file: str | None) -> list[bytes]:
    """The secret itself, or what the file holds; with neither, what the file named by the environment holds, if any.

    Raises ValueError when a file is named that holds no secret, or one that is too short.
    """
    if secret is not None:
        return [secret]
    path = path_of(secret, file)
    return [] if path is None else in_file(path, source(secret, file))


def path_of(secret: bytes | None, file: str | None) -> str | None:
    """The file that holds it, if one does."""
    if secret is not None:
        return None
    return os.environ.get(ENVIRONMENT_VARIABLE) or None if file is None else file


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


def in_file(path: str, described: str) -> list[bytes]:
    """The secrets that the file holds. Raises ValueError, with `described` for the file."""
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
    secrets = _secrets_in(content, described)
    if not secrets[0]:
        raise ValueError(f"{described} is empty; remove it, and make one with `python -m torchwire secret {path}`")
    _warn_if_open(path, mode, described)
    for secret in secrets:
        option_checks.secret(described, secret)
    return secrets


def content_for(secrets: Sequence[bytes]) -> bytes:
    """Of a file that is to hold them, none with a newline in it."""
    head = [] if len(secrets) == 1 else [_HEAD_OF_SEVERAL]
    return b"".join(line + b"\n" for line in [*head, *secrets])


def _secrets_in(content: bytes, described: str) -> list[bytes]:
    head, *lines = content.split(b"\n")
    if head.strip() != _HEAD_OF_SEVERAL:
        return [_without_newline(content)]
    secrets = [line.strip() for line in lines if line.strip()]
    if not 0 < len(secrets) <= _MOST:
        raise ValueError(f"{described} holds {len(secrets)} secrets below 'secrets:'; from 1 to {_MOST} may be there")
    return secrets


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
