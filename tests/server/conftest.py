"""A tiny random model with a byte tokenizer for most tests of the server, SmolLM2 where text matters."""

import pytest
from gate import GATE_ARGS, GATE_ENV
from server_support import ENDLESS_ARGS, ENDLESS_LEN, TINY_ARGS, RunningServer, write_tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("tiny-text"))


@pytest.fixture(scope="session")
def start_server(tiny_folder):
    """start_server(*args) -> RunningServer on the tiny model; all are ended at the end of the session."""
    made: list[RunningServer] = []

    def start(*args: str, model: str | None = None, **options) -> RunningServer:
        which = [model or tiny_folder, *(() if model == "smollm2" else TINY_ARGS)]
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
def endless_folder(tmp_path_factory) -> str:
    """A context that takes minutes to fill: what asks for all of it ends when it is aborted, and not before."""
    return write_tiny_model(tmp_path_factory.mktemp("endless"), max_position_embeddings=ENDLESS_LEN)


@pytest.fixture(scope="session")
def endless(start_server, endless_folder) -> RunningServer:
    return start_server(*ENDLESS_ARGS, "--access-log", "off", model=endless_folder)


@pytest.fixture(scope="session")
def single(start_server, endless_folder) -> RunningServer:
    """One sequence at a time, by priority; requests can make the engine stand still (gate.py)."""
    args = ("--max-num-seqs", "1", "--max-num-batched-tokens", "64", "--scheduling-policy", "priority")
    return start_server(*ENDLESS_ARGS, *args, *GATE_ARGS, "--access-log", "off", model=endless_folder, env=GATE_ENV)


@pytest.fixture(scope="session")
def smollm(start_server) -> RunningServer:
    return start_server("--max-model-len", "1024", "--num-gpu-blocks-override", "200", model="smollm2")
