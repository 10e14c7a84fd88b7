"""The file with the group's secret."""

from __future__ import annotations

import os
import warnings

from torchwire import group_secret
from torchwire.doctor.check import Check, failed, ok, warning


def secret_file(path: str | None) -> Check:
    """That the file, or else the one that the environment names, holds a secret that nobody else may read."""
    name = "secret"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            secrets = group_secret.of(None, path)
        except ValueError as error:
            found, _, remedy = str(error).partition("; ")
            return failed(name, found, remedy)
    if caught:
        found, _, remedy = str(caught[0].message).rpartition(": ")
        return warning(name, found, remedy)
    if not secrets:
        return ok(name, "none of the workers' own: the group draws one, which whoever reads the store knows")
    source = path or os.environ[group_secret.ENVIRONMENT_VARIABLE]
    what = f"{len(secrets[0])} bytes" if len(secrets) == 1 else f"{len(secrets)} secrets"
    return ok(name, f"{what} in {source}, which others may not read")
