"""No message about RRefs reaches libtorch's own handlers.

Those that are virtual are overridden by ours, so that a call of one fails its request. The others can only be called by
name, and would be among the symbols that the extension takes from libtorch. What calls them inside libtorch is reached
through processMessage, which is overridden, or by name again.
"""

import subprocess

import torchwire._C

NOT_OURS = [
    "processMessage",
    "processRpc",
    "processRpcWithErrors",
    "processForwardAutogradReq",
    "processRunWithProfilingReq",
    "assignOwnerRRef",
    "retrieveOwnerRRef",
    "processScriptRemoteCall",
    "processPythonRemoteCall",
    "processScriptRRefFetchCall",
    "processPythonRRefFetchCall",
    "processRRefUserDelete",
    "processRRefChildAccept",
    "processRRefForkRequest",
    "handleRRefDelete",
]


def undefined_symbols():
    """Demangled, of the extension."""
    listing = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", "--demangle", torchwire._C.__file__],
        check=True,
        capture_output=True,
        text=True,
    )
    return listing.stdout.splitlines()


def test_the_extension_does_not_call_libtorchs_rref_handlers():
    symbols = [line for line in undefined_symbols() if "RequestCallback" in line]
    assert symbols, "nothing of libtorch's request callback: is nm's output as expected?"
    for name in NOT_OURS:
        assert not [line for line in symbols if f"::{name}(" in line]
