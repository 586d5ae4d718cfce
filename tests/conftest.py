"""Fixtures of all tests."""

import pytest


@pytest.fixture(scope="session")
def golden() -> list[dict]:
    """See read_goldens()."""
    from smollm2_support import read_goldens

    return read_goldens()
