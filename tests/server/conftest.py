"""A tiny random model with a byte tokenizer for most tests of the server, SmolLM2 where text matters."""

import pytest
from server_support import TINY_ARGS, RunningServer, write_tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("tiny-text"))


@pytest.fixture(scope="session")
def start_server(tiny_folder):
    """start_server(*args) -> RunningServer on the tiny model; all are ended at the end of the session."""
    made: list[RunningServer] = []

    def start(*args: str, model: str | None = None, **options) -> RunningServer:
        which = [model] if model else [tiny_folder, *TINY_ARGS]
        made.append(RunningServer(*which, *args, **options))
        return made[-1]

    yield start
    for server in made:
        server.kill()


@pytest.fixture(scope="session")
def tiny(start_server) -> RunningServer:
    """One server for all tests that leave it as they found it."""
    return start_server("--num-gpu-blocks-override", "1200", "--enable-prompt-tokens-details", "--access-log", "off")


@pytest.fixture(scope="session")
def smollm(start_server) -> RunningServer:
    return start_server("--max-model-len", "1024", "--num-gpu-blocks-override", "200", model="smollm2")
