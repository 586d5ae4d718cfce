"""The benchmarks' rounds: a peer that crashes is left out and named, our own engine never is."""

import pathlib
import signal
import sys

import pytest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
from e2e import peers  # noqa: E402

ANSWER = 'print(json.dumps({"seconds": 0.5, "rss_mb": 7}), flush=True)'
CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


@pytest.fixture
def make(monkeypatch, tmp_path):
    """make(label, body): a contender whose worker runs `body` for each order."""
    script = "import json, sys\nfor turn, line in enumerate(sys.stdin):\n    {}\n"
    (tmp_path / "worker.py").write_text("import sys; exec(sys.argv[2])")
    monkeypatch.setattr(peers, "HERE", tmp_path)
    return lambda label, body: peers.Contender("fastllm", script.format(body), label)


def rounds(contenders) -> dict[str, float]:
    return peers.medians(contenders, 2, 3, lambda worker: 1 / worker.seconds(1, 2, 3))


def test_all_answer(make):
    assert rounds([make("ours", ANSWER), make("peer", ANSWER)]) == {"ours": 2.0, "peer": 2.0}


def test_a_peer_that_crashes_is_left_out_and_named(make, capfd):
    late = f"exec('{CRASH}') if turn == 2 else {ANSWER}"
    got = rounds([make("ours", ANSWER), make("at once", CRASH), make("late", late), make("peer", ANSWER)])
    assert got == {"ours": 2.0, "peer": 2.0}
    notes = capfd.readouterr().err
    assert "left out: the worker of at once was ended by signal SIGSEGV" in notes
    assert "left out: the worker of late was ended by signal SIGSEGV" in notes


def test_our_own_crash_is_an_error(make):
    with pytest.raises(peers.WorkerEnded, match="the worker of ours ended with status 3"):
        rounds([make("ours", "sys.exit(3)"), make("peer", ANSWER)])


def test_the_shells_openmp_settings_do_not_reach_a_worker(make, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("BENCH_MARK", "7")
    count = 'sum(n == "BENCH_MARK" or n.startswith("OMP_") for n in os.environ)'
    body = f'import os; print(json.dumps({{"seconds": {count}, "rss_mb": 7}}), flush=True)'
    assert rounds([make("ours", body)]) == {"ours": 1.0}


def test_words_for_an_ending():
    assert peers.ending(1) == "ended with status 1"
    assert peers.ending(-signal.SIGABRT) == "was ended by signal SIGABRT"


def test_peers_have_environments_of_their_own(monkeypatch, tmp_path):
    """vLLM brings a torch of its own; an engine whose environment is not there is not asked for its package."""
    assert str(peers.python_of("fastllm")) == str(peers.python_of("transformers")) == sys.executable
    assert len({peers.python_of("vllm"), peers.python_of("llamacpp"), peers.python_of("fastllm")}) == 3
    monkeypatch.setattr(peers, "VLLM_PYTHON", tmp_path / "none")
    peers.has.cache_clear()
    assert not peers.has("vllm")
