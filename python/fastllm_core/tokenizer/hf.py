"""Tokenizers on the library `tokenizers`: tokenizer.json, and byte-level BPE from GGUF."""

import json
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from fastllm_core.errors import CorruptFileError, UnsupportedError
from fastllm_core.tokenizer.base import Tokenizer
from fastllm_core.tokenizer.byte_level import bytes_of
from fastllm_core.tokenizer.config import TokenizerConfig
from fastllm_core.tokenizer.decoder import Columns, columns_of, written_columns
from fastllm_core.tokenizer.gguf import CONTROL, SPECIAL, UNKNOWN, UNUSED, USER_DEFINED, GgufVocab
from fastllm_core.tokenizer.pretokenizers import PRE_TOKENIZERS

_LITERAL = (CONTROL, UNKNOWN, USER_DEFINED)  # tokens that are written as their text
# encode() of the library holds the GIL for as long as it takes; encode_batch_fast() lets it go, but starts threads.
_HELD_CHARS = 4096


class HfTokenizer(Tokenizer):
    """A tokenizers.Tokenizer, and what its decoder makes of the vocabulary.

    own_text: the engine's table cannot express the decoder; the columns then hold the tokens as they are written.
    """

    def __init__(self, backend: tokenizers.Tokenizer, columns: "Columns | _GgufColumns", own_text: bool = False):
        self._backend = backend
        self._literal: tokenizers.Tokenizer | None = None
        self._columns = columns
        self._own_text = own_text
        self.vocab_size = len(columns)
        self.bos_token_id = None
        self.eos_token_ids = []
        self.add_bos: bool | None = None  # None: as the backend's post-processor does
        self.add_eos = False

    def _encode(self, text: str, add_special_tokens: bool, parse_special: bool) -> list[int]:
        backend = self._backend if parse_special else self._literal_backend()
        if len(text) > _HELD_CHARS:
            ids = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        else:
            ids = backend.encode(text, add_special_tokens=add_special_tokens).ids
        if add_special_tokens:
            ids = self._mark(ids)
        return ids

    def _literal_backend(self) -> tokenizers.Tokenizer:
        # A copy, because the flag is state of the backend and encode() may run in several threads.
        if self._literal is None:
            copy = tokenizers.Tokenizer.from_str(self._backend.to_str())
            copy.encode_special_tokens = True
            self._literal = copy
        return self._literal

    def _mark(self, ids: list[int]) -> list[int]:
        bos = self.bos_token_id
        if self.add_bos is True and bos is not None and ids[:1] != [bos]:
            ids = [bos, *ids]
        elif self.add_bos is False and bos is not None and ids[:1] == [bos]:
            ids = ids[1:] if self._backend.num_special_tokens_to_add(False) > 0 else ids
        if self.add_eos and self.eos_token_ids:
            ids = [*ids, self.eos_token_ids[0]]
        return ids

    def _pieces(self):
        return self._columns.pieces, self._columns.special

    def _piece(self, token):
        return self._columns.piece(token)

    def _table_options(self):
        return self._columns.options

    def _make_token_table(self):
        return None if self._own_text else super()._make_token_table()

    def library_decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        """The library's own text of ids; those that it does not know have none."""
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def added_texts(self) -> dict[int, bytes]:
        """Added tokens as they are written."""
        return {i: token.content.encode() for i, token in self._backend.get_added_tokens_decoder().items()}

    def _decode(self, ids, skip_special_tokens, spaces_between_special_tokens):
        if not self._own_text:
            return super()._decode(ids, skip_special_tokens, spaces_between_special_tokens)
        if skip_special_tokens or spaces_between_special_tokens:
            return self.library_decode(ids, skip_special_tokens)
        from fastllm_core.tokenizer.stream import LibraryDetokenizer

        text = LibraryDetokenizer(lambda part: self.library_decode(part, False), joined=self.added_texts())
        return "".join(map(text.append, ids)) + text.flush()


class _GgufColumns:
    """Columns of a GGUF file's vocabulary, made when they are asked for: the engine reads the file itself, and a first
    token needs none of them."""

    options: ClassVar[dict] = {}

    def __init__(self, vocab: GgufVocab):
        self._tokens = vocab.tokens
        self._types = vocab.types

    def __len__(self) -> int:
        return len(self._tokens)

    @cached_property
    def pieces(self) -> list[bytes]:
        return [self.piece(i) for i in range(len(self))]

    @cached_property
    def special(self) -> list[bool]:
        return [kind in SPECIAL for kind in self._types]

    def piece(self, token: int) -> bytes:
        kind, text = self._types[token], self._tokens[token]
        if kind == UNUSED:
            return b""
        return text.encode("utf-8", "surrogateescape") if kind in _LITERAL else bytes_of(text)


def tokenizer_from_bpe(vocab: GgufVocab) -> HfTokenizer:
    """Byte-level BPE (tokenizer.ggml.model = gpt2)."""
    pre = PRE_TOKENIZERS.get(vocab.pre)
    if pre is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedError(f"{vocab.source}: pre-tokenizer '{vocab.pre}' is not supported; known: {known}")
    # Of tokens that are written alike the first counts.
    ids = dict(zip(reversed(vocab.tokens), range(len(vocab.tokens) - 1, -1, -1)))
    merges = [p if len(p) == 2 and p[0] else _split_merge(p, vocab.source) for p in _at_spaces(vocab.merges)]
    try:
        model = models.BPE(ids, merges, ignore_merges=pre.whole_words)
    except Exception as e:  # the library raises plain Exception
        raise CorruptFileError(f"{vocab.source}: tokenizer.ggml.merges: {e}") from None
    backend = tokenizers.Tokenizer(model)
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    steps = [pre_tokenizers.Split(Regex(p), "isolated") for p in pre.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*steps, byte_level])
    if vocab.add_space_prefix:
        prefix = [normalizers.Prepend(" ")] if not pre.nfc else [normalizers.NFC(), normalizers.Prepend(" ")]
        backend.normalizer = normalizers.Sequence(prefix)
    backend.decoder = decoders.ByteLevel()
    literal = {i for i, t in enumerate(vocab.types) if t in _LITERAL}
    plain = {i for i in literal if vocab.types[i] == USER_DEFINED}
    backend.add_special_tokens([_added(vocab.tokens[i], True) for i in sorted(literal - plain)])
    backend.add_tokens([_added(vocab.tokens[i], False) for i in sorted(plain)])
    out = HfTokenizer(backend, _GgufColumns(vocab))
    out.bos_token_id = vocab.bos
    out.eos_token_ids = vocab.eos_ids
    out.add_bos = pre.adds_bos if vocab.add_bos is None else vocab.add_bos
    out.add_eos = vocab.add_eos
    return out


def _at_spaces(merges: list[str]) -> list[tuple[str, ...]]:
    return [tuple(m.split(" ")) for m in merges]


def _split_merge(parts: tuple[str, ...], source: str) -> tuple[str, str]:
    # A first half that is itself a space would make the first character the separator.
    merge = " ".join(parts)
    at = merge.find(" ", 1)
    if at < 0:
        raise CorruptFileError(f"{source}: tokenizer.ggml.merges holds {merge!r}, which is not two tokens")
    return merge[:at], merge[at + 1 :]


def _added(text: str, special: bool) -> AddedToken:
    return AddedToken(text, special=special, normalized=False)


def tokenizer_from_json(path: Path) -> HfTokenizer:
    """tokenizer.json, with tokenizer_config.json and chat_template.jinja beside it when they are there."""
    try:
        text = path.read_text(encoding="utf-8")
        spec = json.loads(text)
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as e:  # the library raises plain Exception
        raise CorruptFileError(f"{path}: not a tokenizer.json: {e}") from None
    backend.no_padding()
    backend.no_truncation()
    vocab, added = backend.get_vocab(with_added_tokens=True), spec.get("added_tokens", [])
    columns = columns_of(spec.get("decoder"), vocab, added)
    out = HfTokenizer(backend, columns or written_columns(vocab, added), own_text=columns is None)
    TokenizerConfig.beside(path).apply(out, backend.token_to_id)
    return out
