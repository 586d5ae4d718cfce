"""Logits processors in Python: what they are called with, what they change, and what their failures end."""

from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest
from fastllm_core._C import Engine, EngineConfig, GenerationRequest

from fastllm_core import (
    LLM,
    AdapterLogitsProcessor,
    FastLLMError,
    InvalidArgumentError,
    LogitsProcessor,
    SamplingParams,
)


class Force(LogitsProcessor):
    """extra_args {"force": id}: nothing but that token. vLLM's own example, with the id of its argument checked."""

    arg_names = ("force",)

    @classmethod
    def validate_params(cls, sampling_params):
        token = sampling_params.extra_args["force"]
        if not isinstance(token, int):
            raise ValueError(f"force must be a token id, got {token!r}")

    def __init__(self, engine_config, device, is_pin_memory):
        self.wanted = {}

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        if batch_update is None:
            return
        for place, params, _, _ in batch_update.added:
            self.wanted[place] = params.extra_args["force"]
        for place in batch_update.removed:
            self.wanted.pop(place, None)
        for source, target, _ in batch_update.moved:
            self.wanted[target] = self.wanted.pop(source)

    def apply(self, logits):
        assert logits.dtype == np.float32 and logits.shape[0] == len(self.wanted)
        for place, token in self.wanted.items():
            kept = logits[place, token]
            logits[place] = -np.inf
            logits[place, token] = kept
        return logits


class Recorder(LogitsProcessor):
    """Without names it sees every request. Checks the batch as it goes."""

    made: ClassVar[list] = []

    def __init__(self, engine_config, device, is_pin_memory):
        self.batch, self.calls, self.seen = {}, 0, []
        self.device = device
        Recorder.made.append(self)

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        if batch_update is None:
            return
        for place, params, prompt, output in batch_update.added:
            self.batch[place] = (params, prompt, output)
        for place in batch_update.removed:
            del self.batch[place]
        for source, target, _ in batch_update.moved:
            self.batch[target] = self.batch.pop(source)
        self.seen.append((batch_update.batch_size, sorted(self.batch)))
        assert sorted(self.batch) == list(range(batch_update.batch_size))

    def apply(self, logits):
        assert logits.shape == (len(self.batch), 320)
        self.calls += 1
        for place, (params, prompt, output) in self.batch.items():
            # What the request draws next is recognisable: the token that says how far it is, plus its prompt's.
            logits[place] = -np.inf
            logits[place, prompt[0] + len(output)] = 0
            assert list(output) == [prompt[0] + i for i in range(len(output))]
            assert params.max_tokens >= len(output)
        return


class Fail(LogitsProcessor):
    arg_names = ("fail",)

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        pass

    def apply(self, logits):
        raise RuntimeError("no such luck")


class Shape(LogitsProcessor):
    arg_names = ("shape",)

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        pass

    def apply(self, logits):
        return logits[:, :5]


class Invariant(LogitsProcessor):
    """Leaves the two likeliest tokens; sees the logits behind the temperature."""

    arg_names = ("two",)
    calls: ClassVar[list] = []

    def is_argmax_invariant(self):
        return True

    def update_state(self, batch_update):
        pass

    def apply(self, logits):
        Invariant.calls.append(logits.copy())
        second = np.sort(logits, axis=1)[:, -2:-1]
        return np.where(logits >= second, logits, -np.inf).astype(np.float64)


class PerRequest(AdapterLogitsProcessor):
    arg_names = ("count_up", "broken", "refused")

    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params):
        args = params.extra_args
        if "refused" in args:
            raise KeyError("not this one")
        if "broken" in args:
            return lambda output_ids, logits: logits[10**6]

        def count_up(prompt_ids, output_ids, logits):
            logits[:] = -np.inf
            logits[(prompt_ids + output_ids)[-1] + args["count_up"]] = 1.0
            return logits

        return count_up


def ids(outputs):
    return [list(o.outputs[0].token_ids) for o in outputs]


def ask(llm, *requests, max_tokens=4, **more):
    """requests: (prompt ids, extra_args)."""
    params = [
        SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, extra_args=args, **more)
        for _, args in requests
    ]
    return llm.generate([{"prompt_token_ids": p} for p, _ in requests], params, use_tqdm=False)


@pytest.fixture(scope="module")
def llm(tiny_options):
    with LLM(**tiny_options, logits_processors=[Force, Fail, Shape, Invariant, PerRequest]) as made:
        yield made


def test_only_requests_that_name_an_argument_are_changed(llm):
    plain = ids(ask(llm, ([5, 6], None)))[0]
    assert ids(ask(llm, ([5, 6], {"force": 44}), ([5, 6], None), ([7], {"force": 3}))) == [[44] * 4, plain, [3] * 4]


def test_a_batch_that_shrinks_and_grows_keeps_its_places(tiny_options):
    Recorder.made.clear()
    with LLM(**tiny_options, logits_processors=[f"{__name__}:Recorder"]) as llm:
        params = [SamplingParams(max_tokens=n, temperature=t) for n, t in [(3, 0.0), (9, 1.0), (1, 0.0), (6, 0.7)]]
        prompts = [{"prompt_token_ids": [first]} for first in (10, 50, 90, 130)]
        llm.pause_generation("wait")  # so that all begin in one step
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(llm.generate, prompts, params, use_tqdm=False)
            while llm.stats().waiting_paused < 4:
                assert not answer.done()
            llm.resume_generation()
        assert ids(answer.result()) == [
            list(range(10, 13)),
            list(range(50, 59)),
            [90],
            list(range(130, 136)),
        ]
        assert ids(llm.generate(prompts[:2], params[:2], use_tqdm=False)) == [[10, 11, 12], list(range(50, 59))]
    (recorder,) = Recorder.made
    assert recorder.device == "cpu"
    assert max(size for size, _ in recorder.seen) == 4


def test_an_exception_ends_the_requests_that_use_it_and_no_others(tiny_options):
    with LLM(**tiny_options, logits_processors=[Force, Fail]) as llm:
        engine = llm._engine
        params = {
            "fail": SamplingParams(max_tokens=20, extra_args={"fail": 1}),
            "force": SamplingParams(max_tokens=20, ignore_eos=True, extra_args={"force": 8}),
            "plain": SamplingParams(max_tokens=20, ignore_eos=True),
        }
        names = {engine.submit(GenerationRequest([4, 5], p)): name for name, p in params.items()}
        tokens, ended = {name: [] for name in params}, {}
        while len(ended) < 3:
            for delta in engine.drain(60000):
                name = names[delta.request_id]
                tokens[name] += delta.token_ids
                if delta.finish_reason is not None:
                    ended[name] = (delta.finish_reason, delta.error)
        assert ended["fail"] == ("error", "Fail failed: RuntimeError: no such luck")
        assert ended["force"] == ended["plain"] == ("length", "")
        assert tokens["fail"] == []
        assert tokens["force"] == [8] * 20
        assert len(tokens["plain"]) == 20
        with pytest.raises(FastLLMError, match="Fail failed: RuntimeError: no such luck"):
            ask(llm, ([4], {"fail": True}))
        assert ids(ask(llm, ([4], {"force": 9}))) == [[9] * 4]  # the engine lives


def test_a_result_of_another_shape_is_an_error(llm):
    with pytest.raises(FastLLMError, match=r"Shape failed: .* \[1, 320\]"):
        ask(llm, ([4], {"shape": 1}))


def test_an_invariant_processor_comes_behind_the_temperature_and_not_for_greedy(llm):
    Invariant.calls.clear()
    ask(llm, ([5, 6], {"two": 1}))
    assert Invariant.calls == []
    params = SamplingParams(temperature=1e-2, max_tokens=1, extra_args={"two": 1})
    llm.generate([{"prompt_token_ids": [5, 6]}], params, use_tqdm=False)
    params.temperature = 2e-2
    llm.generate([{"prompt_token_ids": [5, 6]}], params, use_tqdm=False)
    first, second = Invariant.calls
    np.testing.assert_allclose(first, 2 * second, rtol=1e-5)
    # Only the two likeliest are drawn, at a temperature where all 320 are about as likely.
    params = SamplingParams(temperature=1e3, n=64, seed=0, max_tokens=1, extra_args={"two": 1}, ignore_eos=True)
    (output,) = llm.generate([{"prompt_token_ids": [5, 6]}], params, use_tqdm=False)
    likeliest = set(np.argsort(first[0])[-2:].tolist())
    assert {o.token_ids[0] for o in output.outputs} == likeliest


def test_one_callable_for_each_request(llm):
    assert ids(ask(llm, ([20], {"count_up": 1}), ([20], {"count_up": 3}))) == [[21, 22, 23, 24], [23, 26, 29, 32]]
    requests = [([20], {"count_up": 1}), ([20], {"broken": 1})]
    with pytest.raises(FastLLMError, match="PerRequest failed: IndexError"):
        ask(llm, *requests)
    with pytest.raises(FastLLMError, match="PerRequest failed: KeyError"):
        ask(llm, ([20], {"refused": 1}))


def test_a_broken_callable_ends_its_own_request_alone(tiny_options):
    config = EngineConfig(**{k: v for k, v in tiny_options.items() if k != "skip_tokenizer_init"})
    engine = Engine.create(config, None, [PerRequest(config, "cpu", False)])
    good = engine.submit(GenerationRequest([20], SamplingParams(max_tokens=3, extra_args={"count_up": 2})))
    bad = engine.submit(GenerationRequest([20], SamplingParams(max_tokens=3, extra_args={"broken": 2})))
    tokens, ended = {good: [], bad: []}, {}
    while len(ended) < 2:
        for delta in engine.drain(60000):
            tokens[delta.request_id] += delta.token_ids
            if delta.finish_reason is not None:
                ended[delta.request_id] = delta.finish_reason
    assert ended == {good: "length", bad: "error"}
    assert tokens == {good: [22, 24, 26], bad: []}
    engine.shutdown()


def test_logprobs_are_of_the_raw_logits(llm):
    plain = ask(llm, ([5, 6], None), max_tokens=1, logprobs=3)[0].outputs[0]
    forced = ask(llm, ([5, 6], {"force": 44}), max_tokens=1, logprobs=3)[0].outputs[0]
    assert forced.token_ids == [44]
    top = {t: lp.logprob for t, lp in plain.logprobs[0].items()}
    for token, logprob in forced.logprobs[0].items():
        if token in top:
            assert logprob.logprob == pytest.approx(top[token], abs=1e-5)
    assert forced.logprobs[0][44].rank > 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"farce": 3}, "extra_args: .*farce.*force"),
        ({"force": "x"}, "Force: ValueError: force must be a token id, got 'x'"),
    ],
)
def test_bad_arguments_are_refused(llm, args, message):
    with pytest.raises(InvalidArgumentError, match=message):
        ask(llm, ([4], args))


def test_arguments_without_a_processor_are_refused(tiny_options):
    with LLM(**tiny_options) as llm:
        with pytest.raises(InvalidArgumentError, match="'force' is not known: this engine has no logits processors"):
            ask(llm, ([4], {"force": 1}))
        assert ids(ask(llm, ([4], {}))) == ids(ask(llm, ([4], None)))


@pytest.mark.parametrize("spec", ["nowhere:Thing", "json", "json:loads", 5, dict])
def test_what_is_no_processor_is_refused(tiny_options, spec):
    with pytest.raises(InvalidArgumentError, match="logits_processors: "):
        LLM(**tiny_options, logits_processors=[spec])
