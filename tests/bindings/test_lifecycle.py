"""Pause, sleep, drain, metrics and recordings from Python."""

import asyncio
import subprocess
import sys
import threading

import pytest

from fastllm_core import LLM, AsyncLLM, EngineDeadError, InvalidArgumentError, InvalidStateError, SamplingParams
from fastllm_core.errors import CorruptFileError, ModelNotFoundError, UnsupportedError


def greedy(n: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True, detokenize=False)


def ask(llm, ids, n=4):
    return llm.generate({"prompt_token_ids": ids}, greedy(n), use_tqdm=False)[0]


@pytest.fixture(scope="module")
def llm(tiny_options):
    with LLM(**tiny_options) as llm:
        yield llm


def test_metrics_of_a_finished_request(llm):
    out = ask(llm, [5, 6, 7, 8], 6)
    m = out.metrics
    assert m.num_generation_tokens == 6
    assert m.num_preemptions == 0
    assert m.queued_ts <= m.scheduled_ts < m.first_token_ts < m.last_token_ts
    assert m.prefill_time == pytest.approx(m.first_token_ts - m.scheduled_ts, abs=1e-6)
    assert m.decode_time == pytest.approx(m.last_token_ts - m.first_token_ts, abs=1e-6)
    assert m.mean_time_per_output_token == pytest.approx(m.decode_time / 5)
    assert 0 < m.min_inter_token_latency <= m.mean_time_per_output_token * 1.001
    assert m.mean_time_per_output_token <= m.max_inter_token_latency * 1.001
    assert m.e2e_latency >= m.first_token_latency + m.decode_time - 1e-6


def test_stats_of_a_step(llm):
    before = llm.stats()
    ask(llm, [9] * 10, 5)
    after = llm.stats()
    assert after.steps - before.steps == 5
    assert after.scheduled_tokens - before.scheduled_tokens == 10 + 4
    assert (after.last_step_requests, after.last_step_tokens) == (1, 1)
    assert after.total_blocks == 399
    assert after.kv_cache_usage == 0.0
    assert after.execute_ns > before.execute_ns
    assert after.heartbeat > before.heartbeat
    assert not after.paused


def test_totals_over_requests(llm):
    before = llm.stats()
    params = [SamplingParams(max_tokens=n, ignore_eos=True, detokenize=False) for n in (3, 5)]
    llm.generate([[5, 6, 7], [8, 9]], params, use_tqdm=False)
    after = llm.stats()
    assert after.prompt_tokens - before.prompt_tokens == 5
    assert after.generation_tokens - before.generation_tokens == 8
    assert after.finished_length - before.finished_length == 2
    ends = ("finished_stop", "finished_length", "finished_abort", "finished_error")
    assert sum(getattr(after, e) for e in ends) == after.finished_requests


EXHAUST = """
import os, resource
from fastllm_core import LLM, FastLLMError
from fastllm_core._C import Engine
LLM(**{options}).shutdown()  # whatever is loaded once is loaded
limit = len(os.listdir("/proc/self/fd")) + 40
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
made = refused = 0
while made == 0:
    try:
        LLM(**{options}).shutdown()
        made += 1
    except FastLLMError as e:
        refused += 1
        print(type(e).__name__, e, flush=True)
        os.close(taken.pop())
print("made", made, refused > 0)
"""


def test_an_engine_that_gets_no_descriptor_is_refused_and_can_be_made_later(tiny_options):
    out = subprocess.run(
        [sys.executable, "-c", EXHAUST.format(options=tiny_options)], capture_output=True, text=True, timeout=120
    )
    assert out.stdout.endswith("made 1 True\n"), out.stdout + out.stderr


def test_pause_and_resume(llm):
    ask(llm, [3] * 40, 1)
    assert ask(llm, [3] * 40, 1).num_cached_tokens == 32
    llm.pause_generation("wait")
    assert llm.is_paused()
    got = []
    thread = threading.Thread(target=lambda: got.append(ask(llm, [3] * 40, 2)))
    thread.start()
    while llm.stats().waiting_paused == 0:
        assert thread.is_alive()
    assert not got
    llm.resume_generation()
    thread.join()
    assert not llm.is_paused()
    assert len(got[0].outputs[0].token_ids) == 2
    assert got[0].num_cached_tokens == 0  # the pause has cleared the cache
    with pytest.raises(InvalidArgumentError, match=r"mode.*'later'"):
        llm.pause_generation("later")


def test_an_executor_that_cannot_sleep_says_so_and_serves_on(llm):
    with pytest.raises(UnsupportedError, match="cannot sleep"):
        llm.sleep()
    assert not llm.is_sleeping()
    assert len(ask(llm, [4, 5], 3).outputs[0].token_ids) == 3
    with pytest.raises(InvalidStateError, match="not asleep"):
        llm.wake_up()


def test_async_pause_keeps_a_request(tiny_options):
    async def run():
        llm = AsyncLLM(**tiny_options)
        try:
            stream = llm.generate({"prompt_token_ids": [1, 2, 3]}, greedy(200))
            first = await anext(stream)
            assert first.metrics is None
            await llm.pause_generation(mode="keep")
            steps = llm.stats().steps
            running = llm.stats().running
            await llm.check_health()
            assert llm.stats().steps == steps
            await llm.resume_generation()
            last = first
            async for out in stream:
                last = out
            assert len(last.outputs[0].token_ids) == 200
            assert last.metrics.num_generation_tokens == 200
            assert running in (0, 1)
            assert await llm.drain(60)
            with pytest.raises(EngineDeadError):
                await llm.check_health()
        finally:
            llm.shutdown()

    asyncio.run(run())


def test_drain_lets_what_runs_finish(tiny_options):
    llm = LLM(**tiny_options)
    got = []
    thread = threading.Thread(target=lambda: got.append(ask(llm, [7, 8], 300)))
    thread.start()
    while llm.stats().running == 0:
        assert thread.is_alive()
    assert llm.drain(60)
    thread.join()
    assert len(got[0].outputs[0].token_ids) == 300
    with pytest.raises(EngineDeadError, match="shut down"):
        ask(llm, [1], 1)


def cli(*args) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "fastllm_core", *args], capture_output=True, text=True, timeout=120)


def test_record_and_replay(tiny_options, tmp_path):
    path = tmp_path / "run.rec"
    with LLM(record_path=str(path), **tiny_options) as llm:
        llm.generate([{"prompt_token_ids": [i + 1] * (3 * i + 1)} for i in range(12)], greedy(9), use_tqdm=False)
        steps = llm.stats().steps
    done = cli("debug", "replay", str(path))
    assert done.returncode == 0, done.stderr
    assert f"{steps} steps of 12 requests" in done.stdout

    path.write_bytes(b"something else")
    done = cli("debug", "replay", str(path))
    assert done.returncode == 1
    assert "no recording" in done.stderr
    from fastllm_core._C import replay_recording

    with pytest.raises(CorruptFileError):
        replay_recording(str(path))
    with pytest.raises(ModelNotFoundError):
        replay_recording(str(tmp_path / "absent"))
    assert cli("debug", "rewind", str(path)).returncode == 2


def test_a_recording_that_cannot_be_written_is_an_error(tiny_options):
    with pytest.raises(InvalidArgumentError, match=r"/nowhere/x\.rec"):
        LLM(record_path="/nowhere/x.rec", **tiny_options)


@pytest.mark.parametrize("timeout", [float("nan"), -1.0, float("-inf")])
def test_a_timeout_that_is_none_is_refused_by_its_value(llm, timeout):
    for wait in (llm.await_serving, llm.drain):
        with pytest.raises(InvalidArgumentError, match=rf"timeout must be at least 0, got -?{abs(timeout)}"):
            wait(timeout)
    llm.await_serving(float("inf"))
