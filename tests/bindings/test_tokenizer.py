"""Token ids against the references: transformers' ids of SmolLM2, the sentencepiece library, tokenizer.json."""

import json

import pytest
import sentencepiece

from fastllm_core.errors import CorruptFileError, InvalidArgumentError, ModelNotFoundError, UnsupportedError
from fastllm_core.tokenizer import load_tokenizer
from fastllm_core.tokenizer.gguf import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, tokenizer_from_metadata

# Ids of SmolLM2 by transformers 5.24.
KNOWN = {
    "😀": [10813, 242, 218],
    "👩‍👩‍👧": [10813, 235, 119, 321, 231, 10813, 235, 119, 321, 231, 10813, 235, 117],
    "日本語": [23274, 115, 40993, 179, 120, 248],
    "é": [2756],
    "   ": [333],
    "\n\n\n": [16506],
    " hello": [33662],
    "hello": [28120],
    "": [],
}


def test_golden_prompts(tokenizer, golden):
    assert len(golden) == 8
    for p in golden:
        assert tokenizer.encode(p["text"]) == p["prompt_ids"], p["name"]
        assert tokenizer.decode(p["prompt_ids"], skip_special_tokens=False) == p["text"]


@pytest.mark.parametrize("text", KNOWN)
def test_known_ids(tokenizer, text):
    assert tokenizer.encode(text) == KNOWN[text]


def test_chat_template_of_the_file(tokenizer, golden):
    chats = [p for p in golden if p["kind"] == "chat"]
    assert len(chats) == 3
    for p in chats:
        assert tokenizer.apply_chat_template(p["input"]) == p["text"]
        assert tokenizer.apply_chat_template(p["input"], tokenize=True) == p["prompt_ids"]


def test_special_tokens_in_text(tokenizer):
    assert tokenizer.encode("<|im_end|>") == [2]
    plain = tokenizer.encode("<|im_end|>", parse_special=False)
    assert 2 not in plain
    assert tokenizer.decode(plain) == "<|im_end|>"
    assert tokenizer.encode("<|im_end|>") == [2]  # the flag does not stick
    assert tokenizer.decode([1, 28120, 2]) == "hello"
    assert tokenizer.decode([1, 28120, 2], skip_special_tokens=False) == "<|im_start|>hello<|im_end|>"


def test_facts(tokenizer):
    assert (tokenizer.vocab_size, tokenizer.bos_token_id, tokenizer.eos_token_id) == (49152, 1, 2)


def test_token_table(tokenizer, golden):
    table = tokenizer.token_table()
    assert len(table) == 49152
    for p in golden:
        data = b"".join(table.bytes_of(i) for i in p["prompt_ids"])
        assert data.decode() == p["text"]
    assert table.is_special(2)
    assert not table.is_special(28120)


def test_text_that_is_no_text(tokenizer):
    with pytest.raises(InvalidArgumentError, match="U\\+D800"):
        tokenizer.encode("a\ud800")
    with pytest.raises(TypeError):
        tokenizer.encode(5)
    with pytest.raises(InvalidArgumentError, match="49152"):
        tokenizer.decode([49152])


def bpe_metadata(**changes) -> dict:
    """A byte-level vocabulary of the 256 bytes, a merge and a control token."""
    from fastllm_core.tokenizer.byte_level import BYTE_OF_CHAR

    chars = sorted(BYTE_OF_CHAR, key=BYTE_OF_CHAR.get)
    tokens = [*chars, "ab", "<end>", "<user>"]
    m = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * 257 + [CONTROL, USER_DEFINED],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 257,
        "tokenizer.ggml.eos_token_id": 257,
    }
    m.update({"tokenizer.ggml." + k: v for k, v in changes.items()})
    return {k: v for k, v in m.items() if v is not None}


def test_bpe_flags():
    def ids(text, **flags):
        return tokenizer_from_metadata(bpe_metadata(**flags), "x").encode(text)

    assert ids("abc<user>") == [256, ord("c"), 258]
    assert ids("ab", add_bos_token=True) == [257, 256]
    assert ids("ab", add_bos_token=True, add_eos_token=True) == [257, 256, 257]
    assert ids("ab", add_space_prefix=True) == [ord(" "), 256]
    assert ids("ab", pre="llama-bpe") == [257, 256]  # this family begins with BOS unless the file says otherwise


def test_pre_tokenizers_split_where_they_should():
    merges = ["1 2", "12 3", "123 4"]

    def ids(pre):
        m = bpe_metadata(pre=pre, merges=merges, add_bos_token=False)
        for token in ("12", "123", "1234"):
            m["tokenizer.ggml.tokens"].append(token)
            m["tokenizer.ggml.token_type"].append(NORMAL)
        return tokenizer_from_metadata(m, "x").encode("1234")

    one_two_three = 260
    assert ids("gpt-2") == [261]  # digits together
    assert ids("llama-bpe") == [one_two_three, ord("4")]  # at most three
    assert ids("qwen2") == [ord(c) for c in "1234"]  # each alone
    assert ids("smollm") == [ord(c) for c in "1234"]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"pre": "nosuch"}, UnsupportedError, "nosuch.*gpt-2.*llama-bpe.*smollm"),
        ({"model": "t5"}, UnsupportedError, "t5.*gpt2, llama"),
        ({"model": None}, ModelNotFoundError, "no tokenizer"),
        ({"tokens": None}, CorruptFileError, "tokens"),
        ({"token_type": [1]}, CorruptFileError, "1 entries for 259"),
        ({"merges": ["ab"]}, CorruptFileError, "'ab'"),
        ({"merges": ["a zz"]}, CorruptFileError, "merges"),
        ({"eos_token_id": 300}, CorruptFileError, "300.*259"),
        ({"pre": 5}, CorruptFileError, "pre must be a str"),
    ],
)
def test_damaged_metadata(changes, error, words):
    with pytest.raises(error, match=words):
        tokenizer_from_metadata(bpe_metadata(**changes), "x.gguf")


TEXTS = [
    "hello world",
    " two  spaces ",
    "naïve café",
    "日本語 😀",
    "a\nb\tc",
    "",
    "   ",
    "hello hello",
    "x" * 50,
    "▁mark",
]


@pytest.fixture(scope="module")
def spm_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spm")
    corpus = folder / "corpus.txt"
    words = "hello world help held yellow mellow fellow naive cafe two spaces held the low bell well".split()
    corpus.write_text("\n".join(" ".join(words[i % 7 :] + words[: i % 5]) for i in range(200)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=320,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
        num_threads=1,
    )
    return folder / "tokenizer.model"


def spm_metadata(model) -> dict:
    """What a GGUF converter writes for a sentencepiece model."""
    types = []
    for i in range(model.vocab_size()):
        if model.is_unknown(i):
            types.append(UNKNOWN)
        elif model.is_control(i):
            types.append(CONTROL)
        else:
            types.append(BYTE if model.is_byte(i) else NORMAL)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in range(model.vocab_size())],
        "tokenizer.ggml.scores": [model.get_score(i) for i in range(model.vocab_size())],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def test_spm_from_scores_equals_the_library(spm_file):
    model = sentencepiece.SentencePieceProcessor(model_file=str(spm_file))
    ours = tokenizer_from_metadata(spm_metadata(model), "x")
    for text in TEXTS:
        assert ours.encode(text) == [1, *model.encode(text)], text
        assert ours.encode(text, add_special_tokens=False) == model.encode(text)
        assert ours.decode(ours.encode(text)) == text.replace("▁", " ")


def test_spm_special_tokens_in_text(spm_file):
    model = sentencepiece.SentencePieceProcessor(model_file=str(spm_file))
    ours = tokenizer_from_metadata(spm_metadata(model), "x")
    assert ours.encode("hello</s>world") == [1, *model.encode("hello"), 2, *model.encode("world")]
    assert 2 not in ours.encode("hello</s>", parse_special=False)


def test_spm_without_space_prefix(spm_file):
    model = sentencepiece.SentencePieceProcessor(model_file=str(spm_file))
    meta = spm_metadata(model) | {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    ours = tokenizer_from_metadata(meta, "x")
    assert ours.encode(" hello") == model.encode("hello")
    assert ours.decode(ours.encode(" hello")) == " hello"


def test_model_file(spm_file):
    model = sentencepiece.SentencePieceProcessor(model_file=str(spm_file))
    ours = load_tokenizer(str(spm_file.parent))
    assert (ours.bos_token_id, ours.eos_token_id, ours.vocab_size) == (1, 2, 320)
    for text in TEXTS:
        assert ours.encode(text) == [1, *model.encode(text)]
        assert ours.decode(ours.encode(text)) == text.replace("▁", " ")
    assert ours.token_table().decode(ours.encode(" hello")) == " hello"  # one space of two is taken off


def test_damaged_model_file(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"not a model")
    with pytest.raises(CorruptFileError, match=r"tokenizer\.model"):
        load_tokenizer(str(tmp_path))


def test_tokenizer_json(tmp_path, tokenizer, golden):
    """The library's own file of the same vocabulary, with the configuration of a Hugging Face folder."""
    tokenizer._backend.save(str(tmp_path / "tokenizer.json"))
    config = {
        "bos_token": "<|im_start|>",
        "eos_token": {"content": "<|im_end|>"},
        "chat_template": "{% for m in messages %}{{ bos_token }}{{ m.content }}{% endfor %}",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    ours = load_tokenizer(str(tmp_path))
    for p in golden:
        assert ours.encode(p["text"]) == p["prompt_ids"]
        assert ours.decode(p["prompt_ids"], skip_special_tokens=False) == p["text"]
    assert (ours.bos_token_id, ours.eos_token_ids) == (1, [2, 0])
    assert ours.apply_chat_template([{"role": "user", "content": "x"}]) == "<|im_start|>x"
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].role }}")
    assert load_tokenizer(str(tmp_path)).apply_chat_template([{"role": "user", "content": "x"}]) == "user"


def test_damaged_tokenizer_json(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CorruptFileError, match=r"tokenizer\.json"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json and tokenizer\.model"):
        load_tokenizer(str(tmp_path))
