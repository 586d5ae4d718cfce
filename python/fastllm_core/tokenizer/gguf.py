"""Tokenizers from the metadata of GGUF files (`tokenizer.ggml.*`)."""

from fastllm_core.chat_template import ChatTemplate
from fastllm_core.errors import CorruptFileError, ModelNotFoundError, UnsupportedError
from fastllm_core.tokenizer.base import Tokenizer

PREFIX = "tokenizer."

# tokenizer.ggml.token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPECIAL = (CONTROL, UNKNOWN)


def tokenizer_from_gguf(path: str) -> Tokenizer:
    """The tokenizer that a GGUF file carries: models "gpt2" (byte-level BPE) and "llama" (sentencepiece)."""
    from fastllm_core._C import gguf_metadata

    return tokenizer_from_metadata(gguf_metadata(path, PREFIX), path)


def tokenizer_from_metadata(metadata: dict, source: str) -> Tokenizer:
    """As tokenizer_from_gguf(), from the metadata itself; `source` is named in errors."""
    vocab = GgufVocab(metadata, source)
    if vocab.model == "gpt2":
        from fastllm_core.tokenizer.hf import tokenizer_from_bpe

        tokenizer = tokenizer_from_bpe(vocab)
    elif vocab.model == "llama":
        from fastllm_core.tokenizer.spm import tokenizer_from_scores

        tokenizer = tokenizer_from_scores(vocab)
    else:
        raise UnsupportedError(f"{source}: tokenizer model '{vocab.model}' is not supported; known: gpt2, llama")
    if vocab.chat_template is not None:
        tokenizer.chat_template = ChatTemplate(vocab.chat_template, tokenizer._special_texts())
    return tokenizer


class GgufVocab:
    """The checked content of `tokenizer.ggml.*`."""

    def __init__(self, metadata: dict, source: str):
        self._metadata = metadata
        self.source = source
        self.model: str = self._get("model", str)
        if self.model is None:
            raise ModelNotFoundError(f"{source} carries no tokenizer (no key tokenizer.ggml.model); pass tokenizer=")
        self.tokens: list[str] = self._get("tokens", list) or []
        if not self.tokens:
            raise CorruptFileError(f"{source}: tokenizer.ggml.tokens is missing or empty")
        self.types: list[int] = self._column("token_type", NORMAL)
        self.scores: list[float] = self._column("scores", 0.0)
        self.merges: list[str] = self._get("merges", list) or []
        self.pre: str = self._get("pre", str) or "default"
        self.bos = self._id("bos_token_id")
        self.eos = self._id("eos_token_id")
        self.unk = self._id("unknown_token_id")
        self.add_bos: bool | None = self._get("add_bos_token", bool)
        self.add_eos: bool = bool(self._get("add_eos_token", bool))
        self.add_space_prefix: bool | None = self._get("add_space_prefix", bool)
        self.chat_template: str | None = metadata.get("tokenizer.chat_template")

    @property
    def eos_ids(self) -> list[int]:
        """End of sequence first, then the ends of turn and of message where they differ."""
        ids = [self.eos, self._id("eot_token_id"), self._id("eom_token_id")]
        return list(dict.fromkeys(i for i in ids if i is not None))

    def _get(self, key: str, kind: type):
        value = self._metadata.get("tokenizer.ggml." + key)
        if value is not None and not isinstance(value, kind):
            got = type(value).__name__
            raise CorruptFileError(f"{self.source}: tokenizer.ggml.{key} must be a {kind.__name__}, got {got}")
        return value

    def _column(self, key: str, default) -> list:
        values = self._get(key, list)
        if values is None:
            return [default] * len(self.tokens)
        if len(values) != len(self.tokens):
            sizes = f"{len(values)} entries for {len(self.tokens)} tokens"
            raise CorruptFileError(f"{self.source}: tokenizer.ggml.{key} has {sizes}")
        return values

    def _id(self, key: str) -> int | None:
        value = self._get(key, int)
        if value is not None and not 0 <= value < len(self.tokens):
            raise CorruptFileError(f"{self.source}: tokenizer.ggml.{key} = {value} is outside [0, {len(self.tokens)})")
        return value
