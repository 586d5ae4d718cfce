"""gguf_vocabularies.py on vocabularies made here, and on the folder that FASTLLM_GGUF_VOCABS names."""

import os
import pathlib

import gguf
import gguf_vocabularies
import pytest
import sentencepiece
import trained_tokenizers
from test_tokenizer import KNOWN, spm_metadata
from tokenizers import Tokenizer as Backend

from fastllm_core.tokenizer.pretokenizers import PRE_TOKENIZERS

TEXTS = ["hello", " two  spaces ", "", "\n\n", "it's 123 we've", "naïve größte 日本語 😀", "\ttab\r\n x", "a" * 40]


def write_cases(vocabulary: pathlib.Path, cases: dict[str, list[int]]) -> None:
    texts = "".join(text + gguf_vocabularies.SEPARATOR for text in cases)
    pathlib.Path(f"{vocabulary}.inp").write_bytes(texts.encode())
    pathlib.Path(f"{vocabulary}.out").write_text("".join(f" {' '.join(map(str, ids))}\n" for ids in cases.values()))


def write_gguf(path: pathlib.Path, metadata: dict) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(metadata["tokenizer.ggml.model"])
    writer.add_tokenizer_pre(metadata.get("tokenizer.ggml.pre", "default"))
    writer.add_token_list([t.encode() for t in metadata["tokenizer.ggml.tokens"]])
    writer.add_token_types(metadata["tokenizer.ggml.token_type"])
    if "tokenizer.ggml.scores" in metadata:
        writer.add_token_scores(metadata["tokenizer.ggml.scores"])
        writer.add_unk_token_id(0)
    if "tokenizer.ggml.merges" in metadata:
        writer.add_token_merges(metadata["tokenizer.ggml.merges"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, smollm2) -> pathlib.Path:
    """Expected ids: transformers' for SmolLM2, the libraries' for what is trained here."""
    made = tmp_path_factory.mktemp("vocabularies")
    (made / "smollm.gguf").symlink_to(smollm2)
    write_cases(made / "smollm.gguf", KNOWN)

    trained_tokenizers.sentencepiece_model(made / "spm")
    model = sentencepiece.SentencePieceProcessor(model_file=str(made / "spm" / "tokenizer.model"))
    write_gguf(made / "spm.gguf", spm_metadata(model))
    write_cases(made / "spm.gguf", {text: model.encode(text) for text in TEXTS})

    trained_tokenizers.byte_level(made / "bpe")
    backend = Backend.from_file(str(made / "bpe" / "tokenizer.json"))
    write_gguf(made / "bpe.gguf", bpe_metadata(backend))
    write_cases(made / "bpe.gguf", {text: backend.encode(text).ids for text in TEXTS})

    write_gguf(made / "wordpiece.gguf", bpe_metadata(backend) | {"tokenizer.ggml.model": "bert"})
    write_cases(made / "wordpiece.gguf", {"x": [1]})
    return made


def bpe_metadata(backend: Backend) -> dict:
    import json

    spec = json.loads(backend.to_str())
    vocab = backend.get_vocab()
    special = {a["id"]: 3 if a["special"] else 4 for a in spec["added_tokens"]}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": sorted(vocab, key=vocab.get),
        "tokenizer.ggml.token_type": [special.get(i, 1) for i in range(len(vocab))],
        "tokenizer.ggml.merges": [" ".join(m) for m in spec["model"]["merges"]],
    }


def test_vocabularies_made_here(folder):
    results = {r.name: r for r in gguf_vocabularies.check_folder(folder)}
    assert {n: (r.total, r.failures) for n, r in results.items()} == {
        "smollm.gguf": (len(KNOWN), []),
        "spm.gguf": (len(TEXTS), []),
        "bpe.gguf": (len(TEXTS), []),
        "wordpiece.gguf": (0, []),
    }
    assert "bert" in results["wordpiece.gguf"].unsupported
    assert results["bpe.gguf"].line() == f"bpe.gguf: {len(TEXTS)} of {len(TEXTS)}"


def test_a_wrong_id_is_seen(folder, tmp_path):
    (tmp_path / "x.gguf").symlink_to(folder / "bpe.gguf")
    write_cases(tmp_path / "x.gguf", {"hello": [0], "": []})
    (result,) = gguf_vocabularies.check_folder(tmp_path)
    assert (result.line(), result.failures[0][:2]) == ("x.gguf: 1 of 2", ("hello", [0]))
    write_cases(tmp_path / "x.gguf", {"hello": [0]})
    pathlib.Path(tmp_path / "x.gguf.out").write_text("0\n1\n")
    with pytest.raises(ValueError, match="1 texts, but 2 lines"):
        gguf_vocabularies.check_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        gguf_vocabularies.check_folder(tmp_path / "none")


def test_the_given_folder(folder):
    given = pathlib.Path(os.environ.get("FASTLLM_GGUF_VOCABS") or folder)
    results = gguf_vocabularies.check_folder(given)
    print("\n".join(r.line() for r in results))
    assert not [(r.name, r.failures[:3]) for r in results if r.failures]


def test_only_qwen2_composes_characters():
    """llama.cpp's cases of qwen35 keep a letter and its combining accent apart; those of qwen2 join them."""
    assert PRE_TOKENIZERS["qwen2"].nfc
    assert not PRE_TOKENIZERS["qwen35"].nfc
