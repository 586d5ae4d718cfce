"""LLM: kinds of prompts, order, errors, Ctrl-C."""

import array
import json
import os
import signal
import subprocess
import sys
import threading

import numpy
import pytest
from fastllm_core._C import ExtraKeys, GenerationRequest

from fastllm_core import LLM, EngineDeadError, FastLLMError, InvalidArgumentError, SamplingParams, UnknownOptionError
from fastllm_core.errors import ChatTemplateError

FRANCE = [504, 3575, 282, 4649, 314]  # "The capital of France is"
PARIS = [7042, 30, 198, 198, 504]
TEXT = " Paris.\n\nThe"


def greedy(n: int, **more) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True, **more)


@pytest.fixture(scope="module")
def llm():
    with LLM(model="smollm2", max_model_len=512, num_gpu_blocks_override=100, cpu_precision="float32") as llm:
        yield llm


@pytest.fixture(scope="module")
def tiny(tiny_options):
    with LLM(**tiny_options) as llm:
        yield llm


@pytest.mark.parametrize(
    "prompt",
    [
        "The capital of France is",
        ["The capital of France is"],
        FRANCE,
        [FRANCE],
        {"prompt": "The capital of France is"},
        {"prompt_token_ids": FRANCE},
        [{"prompt_token_ids": tuple(FRANCE), "cache_salt": "a"}],
    ],
)
def test_kinds_of_prompts(llm, prompt):
    (out,) = llm.generate(prompt, greedy(5), use_tqdm=False)
    assert (out.prompt_token_ids, out.finished) == (FRANCE, True)
    completion = out.outputs[0]
    assert (completion.index, completion.token_ids, completion.text) == (0, PARIS, TEXT)
    assert (completion.finish_reason, completion.stop_reason) == ("length", None)


def test_results_are_in_order_with_own_params(llm):
    outs = llm.generate([FRANCE, "1 2 3 4 5", FRANCE], [greedy(5), greedy(4), greedy(2)], use_tqdm=True)
    assert [o.outputs[0].token_ids for o in outs] == [PARIS, [216, 38, 216, 39], PARIS[:2]]
    assert [o.prompt for o in outs] == [None, "1 2 3 4 5", None]
    assert len({o.request_id for o in outs}) == 3


def test_stop_string(llm):
    (out,) = llm.generate("1 2 3 4 5", greedy(16, stop=["8"]), use_tqdm=False)
    assert (out.outputs[0].text, out.outputs[0].finish_reason, out.outputs[0].stop_reason) == (" 6 7 ", "stop", "8")


def test_chat(llm, golden):
    p = next(p for p in golden if p["name"] == "chat_simple")
    (out,) = llm.chat(p["input"], greedy(8, skip_special_tokens=False), use_tqdm=False)
    assert out.prompt_token_ids == p["prompt_ids"]
    assert out.outputs[0].token_ids == p["hf_fp32"]["ids"][:8]
    both = llm.chat([p["input"], p["input"]], greedy(2), use_tqdm=False)
    assert [o.outputs[0].token_ids for o in both] == [p["hf_fp32"]["ids"][:2]] * 2


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "prompt 0: messages must not be empty"),
        ([[]], "prompt 0: messages must not be empty"),
        ([[{"role": "user", "content": "a"}], []], "prompt 1: messages must not be empty"),
        ({"role": "user", "content": "a"}, "list of dicts with a role, got dict"),
        ("a", "list of dicts with a role, got str"),
        (None, "list of dicts with a role, got NoneType"),
        ([5], "list of dicts with a role, got int"),
        ([{"content": "a"}], r"messages\[0\] must be a dict with a role"),
    ],
)
def test_what_is_no_conversation(llm, messages, words):
    with pytest.raises(ChatTemplateError, match=words):
        llm.chat(messages, greedy(1), use_tqdm=False)


def test_prefix_cache_is_reported(llm):
    prompt = list(range(1000, 1050))
    llm.generate([prompt], greedy(1), use_tqdm=False)
    (out,) = llm.generate([prompt], greedy(1), use_tqdm=False)
    assert out.num_cached_tokens == 48


def test_empty_batch(llm):
    assert llm.generate([], greedy(1)) == []


@pytest.mark.parametrize(
    "bad", [[], [49152], [-1], [1.5], ["a"], [None], [True], [2**40], {"prompt": 5}, {"text": "x"}, {}, 7]
)
def test_one_bad_prompt_stops_the_batch_before_it_runs(llm, bad):
    before = llm.stats().finished_requests
    with pytest.raises((ValueError, TypeError), match=r"^prompt 1: "):
        llm.generate([FRANCE, bad, FRANCE], greedy(5), use_tqdm=False)
    assert llm.stats().finished_requests == before
    assert llm.stats().running == llm.stats().waiting == 0
    assert llm.generate([FRANCE], greedy(5), use_tqdm=False)[0].outputs[0].token_ids == PARIS


def test_errors_do_not_dump_the_prompt(llm):
    with pytest.raises(InvalidArgumentError) as e:
        llm.generate([[5] * 600], greedy(1), use_tqdm=False)
    assert "600" in str(e.value)
    assert "512" in str(e.value)
    assert len(str(e.value)) < 300


def test_number_of_sampling_params(llm):
    with pytest.raises(InvalidArgumentError, match="2 sampling_params for 1 prompts"):
        llm.generate([FRANCE], [greedy(1), greedy(1)])
    with pytest.raises(TypeError, match="sampling_params"):
        llm.generate([FRANCE], {"temperature": 0})


def test_text_without_tokenizer(tiny):
    with pytest.raises(InvalidArgumentError, match="skip_tokenizer_init"):
        tiny.generate("hello")
    with pytest.raises(InvalidArgumentError, match="skip_tokenizer_init"):
        tiny.chat([{"role": "user", "content": "x"}])
    (out,) = tiny.generate([5, 6], greedy(3, detokenize=False), use_tqdm=False)
    assert len(out.outputs[0].token_ids) == 3


def test_ctrl_c_ends_the_batch_and_not_the_engine(tiny):
    """A signal that arrives while generate() waits for the engine."""
    done = threading.Event()

    def interrupt():
        while tiny.stats().running == 0 and not done.wait(0.001):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has it ignored
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            tiny.generate([[5, 6]] * 4, greedy(1500, detokenize=False), use_tqdm=False)
    finally:
        done.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert tiny.stats().used_blocks == 0
    assert tiny.stats().running == 0
    assert len(tiny.generate([5, 6], greedy(3, detokenize=False), use_tqdm=False)[0].outputs[0].token_ids) == 3


def test_two_threads(tiny):
    results = {}

    def work(n):
        results[n] = [
            o.outputs[0].token_ids for o in tiny.generate([[n, 6]] * 3, greedy(20, detokenize=False), use_tqdm=False)
        ]

    threads = [threading.Thread(target=work, args=(n,)) for n in (5, 9)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for n in (5, 9):
        (alone,) = tiny.generate([[n, 6]], greedy(20, detokenize=False), use_tqdm=False)
        assert results[n] == [alone.outputs[0].token_ids] * 3


def test_after_shutdown(tiny_options):
    llm = LLM(**tiny_options)
    llm.shutdown()
    llm.shutdown()
    with pytest.raises(EngineDeadError):
        llm.generate([5, 6], greedy(1, detokenize=False))


def test_keywords(tiny_options):
    statements = {
        "enforce_eager": True,
        "disable_log_stats": True,
        "trust_remote_code": False,
        "generation_config": "vllm",
    }
    with LLM(**tiny_options, **statements, kv_cache_dtype="auto", data_parallel_size=1) as llm:
        assert llm.info.architecture == "LlamaForCausalLM"
    with LLM(**tiny_options, attention_backend="fastllm") as llm:
        assert llm.info.architecture == "LlamaForCausalLM"
    with pytest.raises(FastLLMError, match=r"backend flashinfer; .*f32 supports device cpu.*backend fastllm"):
        LLM(**tiny_options, attention_backend="flashinfer")
    with pytest.raises(InvalidArgumentError, match=r"attention_backend.*auto.*fastllm.*flashinfer"):
        LLM(**tiny_options, attention_backend="triton")
    for name, value in [("swap_space", 4), ("enable_expert_parallel", True)]:
        with pytest.raises(InvalidArgumentError, match=f"{name}={value!r}"):
            LLM(**tiny_options, **{name: value})
    with pytest.raises(InvalidArgumentError, match=r"quantization.*int8.*fp8.*compressed-tensors"):
        LLM(**tiny_options, quantization="awq")
    with LLM(**tiny_options, quantization=None) as llm:
        assert llm.info.architecture == "LlamaForCausalLM"
    for quantization, cache in [("fp8", "fp8"), ("int8", "int8")]:
        with LLM(**tiny_options, quantization=quantization, kv_cache_dtype=cache) as llm:
            assert len(llm.generate([5, 6], greedy(3, detokenize=False))[0].outputs[0].token_ids) == 3
    with pytest.raises(UnknownOptionError, match=r"max_num_seq'.*max_num_seqs"):
        LLM(**tiny_options, max_num_seq=4)


def test_tokenizer_from_another_place(tiny_options, tmp_path):
    """A tokenizer that the model folder does not have: text comes out through its token table."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from fastllm_core.tokenizer.byte_level import BYTE_OF_CHAR

    chars = sorted(BYTE_OF_CHAR, key=BYTE_OF_CHAR.get)
    backend = Tokenizer(models.BPE({c: i for i, c in enumerate(chars)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({}))
    options = {k: v for k, v in tiny_options.items() if k != "skip_tokenizer_init"}
    with LLM(**options, tokenizer=str(tmp_path)) as llm:
        (out,) = llm.generate("AB", greedy(40), use_tqdm=False)
        assert out.prompt_token_ids == [65, 66]
        ids = [i for i in out.outputs[0].token_ids if i < 256]
        assert out.outputs[0].text == bytes(ids).decode(errors="replace")


class _Emptier:
    """A token id that empties the list it is in when it is read."""

    def __init__(self, ids: list):
        self._ids = ids

    def __index__(self) -> int:
        self._ids.clear()
        return 5


def test_ids_are_read_from_a_copy():
    ids: list = []
    ids.extend([_Emptier(ids), *range(1000)])
    assert GenerationRequest(ids, SamplingParams()).prompt_token_ids == [5, *range(1000)]


class _Int(int):
    pass


def test_ids_are_ints_of_any_kind_that_fit():
    five = type("Five", (), {"__index__": lambda self: 5})()
    assert GenerationRequest((1, five, _Int(7), 2**31 - 1), SamplingParams()).prompt_token_ids == [1, 5, 7, 2**31 - 1]
    for wrong, shown in ((True, "True"), (1.5, "1.5"), ("a", "'a'"), (None, "None")):
        with pytest.raises(TypeError, match=rf"prompt_token_ids\[1\] must be an int, got {shown}"):
            GenerationRequest([1, wrong], SamplingParams())
    for wide in (2**31, -(2**31) - 1, 2**70):
        with pytest.raises(InvalidArgumentError, match=rf"prompt_token_ids\[0\] = {wide} is no token id"):
            GenerationRequest([wide], SamplingParams())


@pytest.mark.parametrize("code", ["i", "I", "l", "L", "q", "Q"])
def test_ids_of_arrays(code):
    ids = array.array(code, [3, 1, 2**31 - 1])
    assert GenerationRequest(ids, SamplingParams()).prompt_token_ids == [3, 1, 2**31 - 1]
    assert GenerationRequest(ids[:0], SamplingParams()).prompt_token_ids == []
    if array.array(code).itemsize == 8 or code.isupper():
        with pytest.raises(InvalidArgumentError, match=rf"prompt_token_ids\[1\] = {2**31} is no token id"):
            GenerationRequest(array.array(code, [0, 2**31]), SamplingParams())


def test_ids_of_other_arrays_are_read_item_by_item():
    assert GenerationRequest(array.array("h", [3, 1]), SamplingParams()).prompt_token_ids == [3, 1]
    assert GenerationRequest(bytearray(b"ab"), SamplingParams()).prompt_token_ids == [97, 98]
    with pytest.raises(TypeError, match=r"prompt_token_ids\[0\] must be an int, got 1.0"):
        GenerationRequest(array.array("d", [1.0]), SamplingParams())
    for dtype in ("int32", "int64", "uint32", "int16"):
        ids = numpy.arange(6, dtype=dtype)
        assert GenerationRequest(ids, SamplingParams()).prompt_token_ids == [0, 1, 2, 3, 4, 5]
        assert GenerationRequest(ids[::2], SamplingParams()).prompt_token_ids == [0, 2, 4]


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(InvalidArgumentError, match="stop must not hold half of a surrogate pair"):
        SamplingParams(stop=["\ud800"])
    with pytest.raises(InvalidArgumentError, match="cache_salt must not hold half of a surrogate pair"):
        ExtraKeys(cache_salt="\ud800")


def test_a_message_that_is_cut_within_a_character():
    # 77 bytes of "{'" and two-byte characters end in half of one.
    with pytest.raises(InvalidArgumentError, match="must be None, bool, int, float, str or a list, got"):
        SamplingParams(stop={"é" * 100})


FORK = """
import os, sys
from fastllm_core import LLM, InvalidStateError, SamplingParams
llm = LLM(**{options})
params = SamplingParams(max_tokens=2)
pid = os.fork()
if pid == 0:
    try:
        llm.generate([1, 2], params, use_tqdm=False)
    except InvalidStateError as e:
        print(str(e), flush=True)
    assert llm.stats().steps == 0  # of the parent's no more than half might be here
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), len(llm.generate([1, 2], params, use_tqdm=False)), flush=True)
"""


def test_forked_child_is_refused_and_ends(tiny_options):
    code = FORK.format(options=tiny_options)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    said, parent = out.stdout.splitlines()
    assert "does not run in its forked child" in said
    assert parent == "7 1"
    assert out.returncode == 0
