"""A plan: the cases of a run, chosen from the catalog."""

from fnmatch import fnmatchcase

import backend_name
import backward_mode
import fault_plan
import profiler_mode
import table
from case import Case


class PlanError(Exception):
    """Nothing to run, or a table that names a test which does not exist."""


def _deviations():
    """Reasons by (suite, test). They are about torchwire; another backend has none."""
    if not backend_name.IS_OURS:
        return {}
    return {
        (row["suite"], row["test"]): row["reason"]
        for row in table.read("deviations.csv")
        if row["backward_mode"] in ("", backward_mode.NAME)
    }


def _pairs(name):
    return [(row["suite"], row["test"]) for row in table.read(name)]


def _refuse_unknown(name, pairs, catalog):
    unknown = sorted(set(pairs) - set(catalog))
    if unknown:
        listed = ", ".join(f"{suite}.{test}" for suite, test in unknown)
        raise PlanError(f"{name} lists what PyTorch's suites do not have: {listed}")


def _matches(pattern, text):
    """As a shell pattern, or anywhere in the name where it has no wildcard."""
    if any(sign in pattern for sign in "*?["):
        return fnmatchcase(text, pattern)
    return pattern in text


def _excluded(catalog):
    """The tests that are not run in the modes that are on."""
    tables = {"fault_plan_exclusions.csv": fault_plan.FILE, "profiler_exclusions.csv": profiler_mode.IS_ON}
    excluded = set()
    for name in (name for name, is_on in tables.items() if is_on):
        _refuse_unknown(name, _pairs(name), catalog)
        excluded.update(_pairs(name))
    return excluded


def _chosen(catalog, options):
    excluded = _excluded(catalog)
    pairs = _pairs("quick.csv") if options.mode == "quick" else catalog
    _refuse_unknown("quick.csv", pairs, catalog)
    for suite, test in pairs:
        if (options.suite and suite not in options.suite) or (suite, test) in excluded:
            continue
        if profiler_mode.IS_ON and profiler_mode.has_own(test):
            continue
        if options.test and not _matches(options.test, test):
            continue
        yield suite, test


def make(catalog, options):
    """The cases, in the order of the catalog."""
    deviations = _deviations()
    _refuse_unknown("deviations.csv", deviations, catalog)
    if backend_name.NAME == backend_name.DEFAULT:
        _refuse_unknown("tripwire_excuses.csv", _pairs("tripwire_excuses.csv"), catalog)
    pairs = list(_chosen(catalog, options))
    if not pairs:
        raise PlanError("no test matches")
    return [Case(suite, test, deviations.get((suite, test))) for _ in range(options.repeat) for suite, test in pairs]
