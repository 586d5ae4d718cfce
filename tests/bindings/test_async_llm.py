"""AsyncLLM: streams, cancelling, many readers, several loops."""

import asyncio
import contextlib
import itertools
import threading

import pytest
import uvloop

from fastllm_core import AsyncLLM, InternalError, InvalidArgumentError, RequestOutputKind, SamplingParams

FRANCE = {"prompt": "The capital of France is"}
PARIS = [7042, 30, 198, 198, 504]


def greedy(n: int, **more) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True, **more)


@pytest.fixture(scope="module")
def llm():
    llm = AsyncLLM(model="smollm2", max_model_len=512, num_gpu_blocks_override=100, cpu_precision="float32")
    yield llm
    llm.shutdown()


@pytest.fixture(scope="module")
def tiny(tiny_options):
    llm = AsyncLLM(**tiny_options)
    yield llm
    llm.shutdown()


async def ids_of(llm, prompt, n, **options) -> list[int]:
    last = None
    async for out in llm.generate({"prompt_token_ids": prompt}, greedy(n, detokenize=False), **options):
        last = out
    assert last.finished
    return last.outputs[0].token_ids


async def idle(llm) -> None:
    """Returns when nothing runs: a request that comes after the aborted ones has ended, so they have too."""
    await ids_of(llm, [7], 1)
    while llm.stats().running:
        await ids_of(llm, [7], 1)
    assert llm.stats().used_blocks == 0


def test_kinds_of_outputs(llm):
    async def run(kind):
        return [o async for o in llm.generate(FRANCE, greedy(5), output_kind=kind)]

    growing = asyncio.run(run(RequestOutputKind.CUMULATIVE))
    assert growing[-1].outputs[0].token_ids == PARIS
    assert [o.finished for o in growing] == [False] * (len(growing) - 1) + [True]
    for a, b in itertools.pairwise(growing):
        assert b.outputs[0].text.startswith(a.outputs[0].text)
        assert b.outputs[0].token_ids[: len(a.outputs[0].token_ids)] == a.outputs[0].token_ids

    deltas = asyncio.run(run(RequestOutputKind.DELTA))
    assert [i for o in deltas for i in o.outputs[0].token_ids] == PARIS
    assert "".join(o.outputs[0].text for o in deltas) == " Paris.\n\nThe"
    assert all(o.outputs[0].token_ids or o.finished for o in deltas)

    (only,) = asyncio.run(run(RequestOutputKind.FINAL_ONLY))
    differing = ("request_id", "num_cached_tokens", "metrics")  # of the run, not of the output kind
    assert only == growing[-1].__class__(**{**vars(growing[-1]), **{name: getattr(only, name) for name in differing}})
    assert only.metrics is not None


def test_many_at_once(tiny):
    async def run():
        return await asyncio.gather(*(ids_of(tiny, [5 + i, 6], 10 + i % 7) for i in range(64)))

    together = asyncio.run(run())
    for i in (0, 13, 63):
        assert asyncio.run(ids_of(tiny, [5 + i, 6], 10 + i % 7)) == together[i]


def test_closing_the_generator_aborts(tiny):
    async def run():
        stream = tiny.generate({"prompt_token_ids": [5, 6]}, greedy(3000, detokenize=False), "mine")
        async for _ in stream:
            assert tiny.stats().running == 1
            break
        await stream.aclose()
        await idle(tiny)
        assert await ids_of(tiny, [5, 6], 3, request_id="mine")  # the id is free again

    asyncio.run(run())


def test_cancelling_the_task_aborts(tiny):
    async def run():
        started = asyncio.Event()

        async def read():
            async for _ in tiny.generate({"prompt_token_ids": [5, 6]}, greedy(3000, detokenize=False)):
                started.set()

        task = asyncio.create_task(read())
        await started.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        await idle(tiny)

    asyncio.run(run())


def test_abort_by_id(tiny):
    async def run():
        last = None
        async for out in tiny.generate({"prompt_token_ids": [5, 6]}, greedy(3000, detokenize=False), "x"):
            last = out
            await tiny.abort("x")
        assert (last.finished, last.outputs[0].finish_reason) == (True, "abort")
        assert len(last.outputs[0].token_ids) < 3000
        await tiny.abort("x")  # unknown by now
        await idle(tiny)

    asyncio.run(run())


def test_a_request_id_in_use(tiny):
    async def run():
        stream = tiny.generate({"prompt_token_ids": [5, 6]}, greedy(3000, detokenize=False), "x")
        await anext(stream)
        with pytest.raises(InvalidArgumentError, match="'x'"):
            await anext(tiny.generate({"prompt_token_ids": [5]}, greedy(1, detokenize=False), "x"))
        await stream.aclose()

    asyncio.run(run())


def test_bad_requests_leave_nothing_behind(tiny):
    async def run():
        for prompt in ([], [320], [-1]):
            with pytest.raises(InvalidArgumentError):
                await anext(tiny.generate({"prompt_token_ids": prompt}, greedy(1, detokenize=False), "bad"))
        assert len(await ids_of(tiny, [5, 6], 3, request_id="bad")) == 3

    asyncio.run(run())


def test_slow_reader_gets_steps_together(tiny):
    """News that come while the reader is busy are one output, and nothing is lost."""

    async def run():
        got, outputs = [], 0
        stream = tiny.generate(
            {"prompt_token_ids": [5, 6]}, greedy(200, detokenize=False), output_kind=RequestOutputKind.DELTA
        )
        async for out in stream:
            got += out.outputs[0].token_ids
            outputs += 1
            if outputs == 1:
                await ids_of(tiny, [9], 150)  # the engine makes tokens for both meanwhile
        assert outputs < 150
        return got

    slow = asyncio.run(run())
    assert slow == asyncio.run(ids_of(tiny, [5, 6], 200))


def test_two_loops_in_two_threads(tiny):
    alone = [asyncio.run(ids_of(tiny, [5 + i, 6], 50)) for i in range(8)]
    results = {}

    def work(n):
        async def run():
            return await asyncio.gather(*(ids_of(tiny, [5 + i, 6], 50) for i in range(8)))

        results[n] = asyncio.run(run())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {0: alone, 1: alone}


def test_shutdown_ends_the_streams(tiny_options):
    async def run():
        llm = AsyncLLM(**tiny_options)
        last = None
        async for out in llm.generate({"prompt_token_ids": [5, 6]}, greedy(3000, detokenize=False)):
            last = out
            if not out.finished:
                llm.shutdown()
        assert last.outputs[0].finish_reason == "abort"

    asyncio.run(run())


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_loop_that_is_closed_ends_its_requests(tiny, new_loop, keep):
    """Closed without shutdown_asyncgens, with the generators still in somebody's hands or not. The engine is paused, so
    that none of them can come to its own end before."""
    loop = new_loop()
    asyncio.run(tiny.pause_generation(mode="keep"))
    streams = [tiny.generate({"prompt_token_ids": [5, n]}, greedy(3000, detokenize=False)) for n in range(50)]
    tasks = [loop.create_task(anext(stream)) for stream in streams]
    while tiny.stats().waiting_paused < 50:
        loop.run_until_complete(asyncio.sleep(0))
    before = tiny.stats().scheduled_tokens
    if not keep:
        streams.clear()
        tasks.clear()
    loop.close()
    asyncio.run(tiny.resume_generation())
    asyncio.run(idle(tiny))
    assert tiny.stats().scheduled_tokens - before < 50  # of idle() alone
    assert len(streams) == len(tasks) == 50 * keep


def test_tokenizing_leaves_the_loop_free(llm):
    """A long prompt is tokenized while the loop goes on; one that cannot fit is refused by its length."""

    async def run():
        turns, done = 0, asyncio.Event()

        async def count():
            nonlocal turns
            while not done.is_set():
                turns += 1
                await asyncio.sleep(0)

        counter = asyncio.create_task(count())
        with pytest.raises(InvalidArgumentError, match="tokens"):
            await anext(llm.generate("a b" * 10_000, greedy(1)))
        done.set()
        await counter
        return turns

    assert asyncio.run(run()) > 20
    with pytest.raises(InvalidArgumentError, match="30000000 characters"):
        asyncio.run(anext(llm.generate("a b" * 10_000_000, greedy(1))))


def test_failing_all_open_requests(tiny):
    """What a server does when the engine stands still."""

    async def run():
        stream = tiny.generate({"prompt_token_ids": [5, 6]}, greedy(3000, detokenize=False))
        await anext(stream)
        tiny.fail_open_requests("stalled")
        with pytest.raises(InternalError, match="stalled"):
            async for _ in stream:
                pass
        await idle(tiny)

    asyncio.run(run())
