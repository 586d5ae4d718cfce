"""Tokenizers on the library `tokenizers`: tokenizer.json, and byte-level BPE from GGUF."""

import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from fastllm_core.errors import CorruptFileError, UnsupportedError
from fastllm_core.tokenizer.base import Tokenizer
from fastllm_core.tokenizer.byte_level import bytes_of
from fastllm_core.tokenizer.config import TokenizerConfig
from fastllm_core.tokenizer.gguf import CONTROL, UNKNOWN, USER_DEFINED, GgufVocab
from fastllm_core.tokenizer.pretokenizers import PRE_TOKENIZERS

# encode() of the library holds the GIL for as long as it takes; encode_batch_fast() lets it go, but starts threads.
_HELD_CHARS = 4096


class HfTokenizer(Tokenizer):
    """A tokenizers.Tokenizer, and the bytes of its vocabulary."""

    def __init__(self, backend: tokenizers.Tokenizer, pieces: list[bytes], special: list[bool], strip: bool = False):
        self._backend = backend
        self._literal: tokenizers.Tokenizer | None = None
        self._table = (pieces, special)
        self._strip = strip
        self.vocab_size = len(pieces)
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
        return self._table

    def _strip_leading_space(self) -> bool:
        return self._strip


def tokenizer_from_bpe(vocab: GgufVocab) -> HfTokenizer:
    """Byte-level BPE (tokenizer.ggml.model = gpt2)."""
    pre = PRE_TOKENIZERS.get(vocab.pre)
    if pre is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedError(f"{vocab.source}: pre-tokenizer '{vocab.pre}' is not supported; known: {known}")
    ids: dict[str, int] = {}
    for i, token in enumerate(vocab.tokens):
        ids.setdefault(token, i)
    merges = [_split_merge(m, vocab.source) for m in vocab.merges]
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
    literal = {i for i, t in enumerate(vocab.types) if t in (CONTROL, UNKNOWN, USER_DEFINED)}
    plain = {i for i in literal if vocab.types[i] == USER_DEFINED}
    backend.add_special_tokens([_added(vocab.tokens[i], True) for i in sorted(literal - plain)])
    backend.add_tokens([_added(vocab.tokens[i], False) for i in sorted(plain)])
    pieces = [t.encode("utf-8", "surrogateescape") if i in literal else bytes_of(t) for i, t in enumerate(vocab.tokens)]
    out = HfTokenizer(backend, pieces, vocab.special())
    out.bos_token_id = vocab.bos
    out.eos_token_ids = vocab.eos_ids
    out.add_bos = pre.adds_bos if vocab.add_bos is None else vocab.add_bos
    out.add_eos = vocab.add_eos
    return out


def _split_merge(merge: str, source: str) -> tuple[str, str]:
    # A first half that is itself a space would make the first character the separator.
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
    pieces, special, strip = _json_table(spec, backend, path)
    out = HfTokenizer(backend, pieces, special, strip)
    TokenizerConfig.beside(path).apply(out, backend.token_to_id)
    return out


def _json_table(spec: dict, backend: tokenizers.Tokenizer, path: Path) -> tuple[list[bytes], list[bool], bool]:
    kinds = set(_kinds(spec.get("decoder"))) | set(_kinds(spec.get("pre_tokenizer")))
    if "ByteLevel" in kinds:
        to_bytes, strip = bytes_of, False
    elif kinds & {"Metaspace", "ByteFallback"} or _replaces_space_mark(spec.get("decoder")):
        to_bytes, strip = _sentencepiece_bytes, _strips_space(spec.get("decoder"))
    else:
        known = "ByteLevel, Metaspace, ByteFallback"
        raise UnsupportedError(f"{path}: no bytes for tokens of the kind {sorted(kinds)}; known: {known}")
    vocab = backend.get_vocab(with_added_tokens=True)
    size = max(vocab.values(), default=-1) + 1
    pieces, special = [b""] * size, [False] * size
    for token, i in vocab.items():
        pieces[i] = to_bytes(token)
    for added in spec.get("added_tokens", []):
        pieces[added["id"]] = added["content"].encode()
        special[added["id"]] = bool(added.get("special"))
    return pieces, special, strip


def _kinds(node) -> list[str]:
    if not isinstance(node, dict):
        return []
    children = node.get("decoders", []) + node.get("pretokenizers", [])
    return [node.get("type", ""), *(k for c in children for k in _kinds(c))]


def _replaces_space_mark(decoder) -> bool:
    return isinstance(decoder, dict) and "\u2581" in json.dumps(decoder, ensure_ascii=False)


def _strips_space(decoder) -> bool:
    if not isinstance(decoder, dict):
        return False
    if decoder.get("type") == "Strip":
        return decoder.get("content") == " " and decoder.get("start", 0) > 0
    if decoder.get("type") == "Metaspace":
        return decoder.get("prepend_scheme", "always") != "never"
    return any(_strips_space(d) for d in decoder.get("decoders", []))


def _sentencepiece_bytes(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace("\u2581", " ").encode("utf-8", errors="surrogateescape")
