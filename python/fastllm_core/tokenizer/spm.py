"""Tokenizers on the library `sentencepiece`: .model files, and the token scores of GGUF files ("llama").

A GGUF file holds pieces, scores and types; written out as a sentencepiece model they are tokenized by the library
itself, so the ids are sentencepiece's by construction.
"""

import re
import struct
from pathlib import Path

import sentencepiece

from fastllm_core.errors import CorruptFileError
from fastllm_core.tokenizer.base import Tokenizer
from fastllm_core.tokenizer.config import TokenizerConfig
from fastllm_core.tokenizer.gguf import BYTE, CONTROL, UNKNOWN, GgufVocab

_BPE = 2  # TrainerSpec.ModelType
_MARK = "\u2581"  # a space in a piece


class SpmTokenizer(Tokenizer):
    """A sentencepiece model, with special tokens split off the text before it sees it.

    Text after a special token starts anew, so it gets the leading space that the model puts before a text; this is
    what llama.cpp and the original (legacy) Llama tokenizer do.
    """

    def __init__(self, model: sentencepiece.SentencePieceProcessor, specials: dict[str, int], first_until: str):
        self._model = model
        self._specials = specials
        self._first_until = first_until  # TokenTable's first_bytes_until; "" when the start of a text is not special
        self.vocab_size = max(model.vocab_size(), max(specials.values(), default=-1) + 1)
        self.bos_token_id = None
        self.eos_token_ids = []
        self.add_bos: bool | None = True
        self.add_eos = False
        longest_first = sorted(specials, key=len, reverse=True)
        self._splitter = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if specials else None
        self._table: tuple[list[bytes], list[bool]] | None = None

    def _encode(self, text: str, add_special_tokens: bool, parse_special: bool) -> list[int]:
        parts = self._splitter.split(text) if parse_special and self._splitter else [text]
        ids: list[int] = []
        if add_special_tokens and self.add_bos and self.bos_token_id is not None:
            ids.append(self.bos_token_id)
        for n, part in enumerate(parts):
            if n % 2:
                ids.append(self._specials[part])
            elif part:
                ids.extend(self._model.encode(part, out_type=int))
        if add_special_tokens and self.add_eos and self.eos_token_ids:
            ids.append(self.eos_token_ids[0])
        return ids

    def _pieces(self):
        if self._table is None:
            self._table = self._make_table()
        return self._table

    def _make_table(self) -> tuple[list[bytes], list[bool]]:
        pieces, special = [b""] * self.vocab_size, [False] * self.vocab_size
        m = self._model
        for i in range(m.vocab_size()):
            text = m.id_to_piece(i)
            special[i] = m.is_control(i) or m.is_unknown(i)
            if m.is_unused(i):
                continue  # has no text
            if m.is_byte(i):
                pieces[i] = bytes([int(text[3:5], 16)])
            else:
                pieces[i] = (text if special[i] else text.replace(_MARK, " ")).encode()
        for text, i in self._specials.items():
            pieces[i], special[i] = text.encode(), True
        return pieces, special

    def _table_options(self):
        # As the library decodes: each byte that is no text is one U+FFFD, and the space that was put before the text
        # is taken off, though not one that is a byte token.
        if not self._first_until:
            return {"invalid_bytes": "replace_each"}
        pieces, special = self._pieces()
        first = list(pieces)
        for i in range(self._model.vocab_size()):
            if pieces[i] and not special[i] and self._model.id_to_piece(i).startswith(_MARK):
                first[i] = pieces[i][1:]
        return {"first_bytes": first, "first_bytes_until": self._first_until, "invalid_bytes": "replace_each"}


def tokenizer_from_model(path: Path) -> SpmTokenizer:
    """A sentencepiece .model file, with tokenizer_config.json beside it when it is there."""
    try:
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError) as e:
        raise CorruptFileError(f"{path}: not a sentencepiece model: {e}") from None
    config = TokenizerConfig.beside(path)
    specials = {model.id_to_piece(i): i for i in range(model.vocab_size()) if model.is_control(i)}
    specials.update(config.added_tokens())
    out = SpmTokenizer(model, specials, first_until=_first_until(model))
    config.apply(out, lambda text: _id_of(model, specials, text))
    if out.bos_token_id is None and model.bos_id() >= 0:
        out.bos_token_id = model.bos_id()
    if not out.eos_token_ids and model.eos_id() >= 0:
        out.eos_token_ids = [model.eos_id()]
    return out


def _id_of(model, specials: dict[str, int], text: str) -> int | None:
    if text in specials:
        return specials[text]
    i = model.piece_to_id(text)
    return i if model.id_to_piece(i) == text else None


def _first_until(model) -> str:
    """How the model treats the start of a text, seen in what it does."""
    if model.encode("a  b", out_type=str) == model.encode("a b", out_type=str):
        return "visible"  # remove_extra_whitespaces
    return "bytes" if model.encode("a", out_type=str)[:1][0].startswith(_MARK) else ""


def tokenizer_from_scores(vocab: GgufVocab) -> SpmTokenizer:
    """tokenizer.ggml.model = llama: merges by score with byte fallback."""
    prefix = vocab.add_space_prefix is not False
    proto = model_proto(vocab, add_dummy_prefix=prefix)
    try:
        model = sentencepiece.SentencePieceProcessor(model_proto=proto)
    except RuntimeError as e:
        raise CorruptFileError(f"{vocab.source}: tokenizer.ggml.tokens are no sentencepiece vocabulary: {e}") from None
    specials = {vocab.tokens[i]: i for i, t in enumerate(vocab.types) if t == CONTROL and vocab.tokens[i]}
    out = SpmTokenizer(model, specials, first_until="bytes" if prefix else "")
    out.bos_token_id = vocab.bos
    out.eos_token_ids = vocab.eos_ids
    out.add_bos = vocab.add_bos is not False
    out.add_eos = vocab.add_eos
    return out


def model_proto(vocab: GgufVocab, add_dummy_prefix: bool) -> bytes:
    """The vocabulary in the wire form of sentencepiece_model.proto (field numbers are those of the .proto file)."""
    out = bytearray()
    seen: set[str] = set()
    unknown = _unknown_id(vocab)
    for i, (token, score, kind) in enumerate(zip(vocab.tokens, vocab.scores, vocab.types, strict=True)):
        if not token or token in seen:  # the library wants texts that differ; these can never be matched
            token, kind = f"\ue000{i}\ue000", CONTROL
        seen.add(token)
        if kind == UNKNOWN and i != unknown:
            kind = CONTROL
        elif i == unknown:
            kind = UNKNOWN
        text = token.encode("utf-8", errors="surrogateescape")
        piece = _bytes_field(1, text) + _float_field(2, score) + _varint_field(3, kind)
        out += _bytes_field(1, piece)
    has_bytes = sum(t == BYTE for t in vocab.types) == 256
    trainer = _varint_field(3, _BPE) + _varint_field(35, int(has_bytes)) + _varint_field(40, unknown)
    trainer += _bytes_field(45, vocab.tokens[unknown].encode("utf-8", errors="surrogateescape"))
    normalizer = _bytes_field(1, b"identity") + _varint_field(3, int(add_dummy_prefix))
    normalizer += _varint_field(4, 0) + _varint_field(5, 1)  # keep spaces, escape them as U+2581
    out += _bytes_field(2, trainer) + _bytes_field(3, normalizer)
    return bytes(out)


def _unknown_id(vocab: GgufVocab) -> int:
    if vocab.unk is not None:
        return vocab.unk
    if UNKNOWN in vocab.types:
        return vocab.types.index(UNKNOWN)
    raise CorruptFileError(f"{vocab.source}: the tokenizer has no unknown token (tokenizer.ggml.unknown_token_id)")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _bytes_field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _float_field(number: int, value: float) -> bytes:
    return _varint(number << 3 | 5) + struct.pack("<f", value)
