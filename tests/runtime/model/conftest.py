"""Shared pieces of the tests on tiny models."""

import pathlib

import make_tiny_llama as maker
import pytest


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """made(case) -> the folder that make_tiny_llama.py makes for it, at first use."""
    out = tmp_path_factory.mktemp("tiny")

    def make(case: str) -> pathlib.Path:
        if not (out / case).exists():
            maker.make(case, out)
        return out / case

    return make
