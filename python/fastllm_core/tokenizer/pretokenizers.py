"""Pre-tokenizers of byte-level BPE vocabularies, by the name that GGUF files carry in `tokenizer.ggml.pre`.

A pre-tokenizer is a list of patterns that split the text one after the other; matches and what lies between them are
pieces, and BPE never merges across pieces.
"""

from dataclasses import dataclass

_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_ANY_CASE = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

GPT2 = _CONTRACTIONS + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|" + _SPACES
QWEN2 = _ANY_CASE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
QWEN35 = _ANY_CASE + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES
DIGITS_ALONE = r"\p{N}"


@dataclass(frozen=True)
class PreTokenizer:
    patterns: tuple[str, ...]
    whole_words: bool = False  # a piece that is itself in the vocabulary is taken without looking at merges
    nfc: bool = False  # the text is brought into Unicode form C first
    adds_bos: bool = False  # the default when the file does not say


_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))
_GPT2 = PreTokenizer((GPT2,))
_SMOLLM = PreTokenizer((DIGITS_ALONE, GPT2))
_LLAMA3 = PreTokenizer((LLAMA3,), whole_words=True, adds_bos=True)
_DBRX = PreTokenizer((LLAMA3,))
_QWEN2 = PreTokenizer((QWEN2,), nfc=True)
_QWEN35 = PreTokenizer((QWEN35,))
_FALCON = PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _DEFAULT,
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "jais": _GPT2,
    "phi-2": _GPT2,
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "refact": _SMOLLM,
    "command-r": _SMOLLM,
    "codeshell": _SMOLLM,
    "exaone": _SMOLLM,
    "minerva-7b": _SMOLLM,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "dbrx": _DBRX,
    "smaug-bpe": _DBRX,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "qwen35": _QWEN35,
    "falcon": _FALCON,
}
