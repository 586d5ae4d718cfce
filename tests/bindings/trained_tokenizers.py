"""Small tokenizers of every kind, trained here, each with the one-shot decode of the library that it comes from."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sentencepiece
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from fastllm_core.tokenizer import load_tokenizer

WORDS = """
the quick brown fox jumps over a lazy dog don't it's we've
naïve café größte 日本語 日本 😀 👩‍👩‍👧 x.y , ! ? re-do
""".split()
SPECIALS = ["<unk>", "<s>", "</s>"]


def corpus() -> list[str]:
    rng = random.Random(3)
    return [" ".join(rng.choices(WORDS, k=12)) for _ in range(300)] + [f"{n}  {n}" for n in range(60)]


@dataclass
class Kind:
    """`decode(ids, skip_special_tokens)` is the library's; ids of `excluded` mean something else to it."""

    tokenizer: object
    decode: Callable[[list[int], bool], str]
    excluded: frozenset = frozenset()
    skips: tuple[bool, ...] = (True, False)

    @property
    def ids(self) -> list[int]:
        return [i for i in range(self.tokenizer.vocab_size) if i not in self.excluded]


def _kind(backend: Backend, folder: Path) -> Kind:
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    return Kind(load_tokenizer(str(folder)), lambda ids, skip: backend.decode(list(ids), skip_special_tokens=skip))


def byte_level(folder: Path) -> Kind:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        corpus(), trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIALS, initial_alphabet=alphabet)
    )
    backend.add_tokens(["plain added", "é"])  # the decoder reads the second as a byte
    return _kind(backend, folder)


def byte_fallback(folder: Path) -> Kind:
    """As the tokenizer.json of Llama 2: byte tokens, and a leading space that is taken off the text."""
    trained = Backend(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIALS))
    spec = json.loads(trained.to_str())
    vocab = spec["model"]["vocab"]
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    vocab["▁▁▁"] = len(vocab)
    spec["model"]["byte_fallback"] = True
    backend = Backend.from_str(json.dumps(spec))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _kind(backend, folder)


def _wordpiece(folder: Path, cleanup: bool) -> Kind:
    backend = Backend(models.WordPiece(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece("##", cleanup)
    backend.train_from_iterator(corpus(), trainers.WordPieceTrainer(vocab_size=260, special_tokens=SPECIALS))
    backend.add_tokens(["do not", "n't"])
    return _kind(backend, folder)


def wordpiece(folder: Path) -> Kind:
    return _wordpiece(folder, True)


def wordpiece_without_cleanup(folder: Path) -> Kind:
    return _wordpiece(folder, False)


def metaspace(folder: Path) -> Kind:
    backend = Backend(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=[*SPECIALS, "a▁b"], unk_token="<unk>")
    backend.train_from_iterator(corpus(), trainer)
    backend.add_tokens(["▁▁two", "▁"])
    return _kind(backend, folder)


def no_decoder(folder: Path) -> Kind:
    backend = Backend(models.WordLevel(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.train_from_iterator(corpus(), trainers.WordLevelTrainer(vocab_size=60, special_tokens=SPECIALS))
    return _kind(backend, folder)


def bpe_suffix(folder: Path) -> Kind:
    """The text of a token depends on whether it is the last: the engine's table cannot express that."""
    backend = Backend(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.BPEDecoder("</w>")
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=SPECIALS, end_of_word_suffix="</w>")
    backend.train_from_iterator(corpus(), trainer)
    return _kind(backend, folder)


def _sentencepiece(folder: Path, **options) -> Kind:
    folder.mkdir()
    (folder / "corpus.txt").write_text("\n".join(corpus()))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "corpus.txt"),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=420,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
        num_threads=1,
        hard_vocab_limit=False,
        **options,
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    # To the library the unknown token is the text " ⁇ ", and control tokens never have any.
    return Kind(
        load_tokenizer(str(folder)),
        lambda ids, skip: model.decode(list(ids)),
        excluded=frozenset({model.unk_id()}),
        skips=(True,),
    )


def sentencepiece_model(folder: Path) -> Kind:
    return _sentencepiece(folder, normalization_rule_name="identity", remove_extra_whitespaces=False)


def sentencepiece_that_removes_spaces(folder: Path) -> Kind:
    return _sentencepiece(folder, user_defined_symbols=["▁", "▁▁two"])


def sentencepiece_without_prefix(folder: Path) -> Kind:
    return _sentencepiece(folder, add_dummy_prefix=False, remove_extra_whitespaces=False)


MAKERS = [
    byte_level,
    byte_fallback,
    wordpiece,
    wordpiece_without_cleanup,
    metaspace,
    no_decoder,
    bpe_suffix,
    sentencepiece_model,
    sentencepiece_that_removes_spaces,
    sentencepiece_without_prefix,
]
