"""SmolLM2 against transformers in float32 on the same (dequantised) weights."""

import pytest
from smollm2_support import EXACT, greedy, ids_of

NEAR_TIE = 1e-3  # logits; the smallest top-2 gap at which the reference itself may flip in float32


def assert_equal_up_to_near_tie(name: str, got: list[int], reference: dict) -> None:
    for step, (ours, theirs) in enumerate(zip(got, reference["ids"], strict=True)):
        if ours == theirs:
            continue
        top = reference["top5"][step]
        gap = top[0][1] - top[1][1]
        assert gap < NEAR_TIE, f"{name}: step {step} gave {ours}, the reference {theirs} by a gap of {gap}"
        return  # past a near-tie the two texts are different prompts


def test_every_prompt_alone(make_llm, golden):
    llm = make_llm(**EXACT)
    for p in golden:
        (got,) = ids_of(llm, [p["prompt_ids"]], greedy(48))
        assert_equal_up_to_near_tie(p["name"], got, p["hf_fp32"])


def test_all_prompts_in_one_batch(make_llm, golden):
    llm = make_llm(**EXACT)
    for p, got in zip(golden, ids_of(llm, [p["prompt_ids"] for p in golden], greedy(48)), strict=True):
        assert_equal_up_to_near_tie(p["name"], got, p["hf_fp32"])


def test_tokenizer_ids(make_llm, golden):
    tokenizer = make_llm(**EXACT).get_tokenizer()
    for p in golden:
        assert list(tokenizer.encode(p["text"])) == p["prompt_ids"], p["name"]


def test_text_is_the_reference_text(make_llm, golden):
    """Text streamed token by token equals the one-shot decode of the reference."""
    llm = make_llm(**EXACT)
    for p in golden:
        params = greedy(48, skip_special_tokens=False)
        (out,) = llm.generate([{"prompt_token_ids": p["prompt_ids"]}], params, use_tqdm=False)
        if list(out.outputs[0].token_ids) == p["hf_fp32"]["ids"]:
            assert out.outputs[0].text == p["hf_fp32"]["text"], p["name"]


@pytest.mark.parametrize("name", ["chat_simple", "chat_system_multi", "chat_code"])
def test_chat_template_text(make_llm, golden, name):
    """The chat template of the GGUF renders the reference's text from its messages."""
    p = next(q for q in golden if q["name"] == name)
    rendered = make_llm(**EXACT).get_tokenizer().apply_chat_template(p["input"], add_generation_prompt=True)
    assert rendered == p["text"]
