"""What torchwire.testing says in a build that has no faults."""

import pytest
from torchwire import _build


@pytest.mark.skipif(_build.FAULT_INJECTION, reason="this build has faults")
def test_a_release_says_how_to_get_faults():
    with pytest.raises(ImportError, match=r"pip install --no-build-isolation -Csetup-args=-Dfault_injection=true \."):
        import torchwire.testing  # noqa: F401
