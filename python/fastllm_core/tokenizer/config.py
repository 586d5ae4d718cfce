"""tokenizer_config.json, generation_config.json and chat_template.jinja of a Hugging Face folder."""

import json
from collections.abc import Callable
from pathlib import Path

from fastllm_core.chat_template import ChatTemplate
from fastllm_core.errors import CorruptFileError

# Classes of transformers that build their begin and end marks from add_bos_token and add_eos_token.
_FLAG_CLASSES = ("LlamaTokenizer", "GemmaTokenizer", "CodeLlamaTokenizer", "CohereTokenizer")


class TokenizerConfig:
    def __init__(self, folder: Path):
        self._config = _read_json(folder / "tokenizer_config.json")
        self._generation = _read_json(folder / "generation_config.json") or _read_json(folder / "config.json")
        self._template = folder / "chat_template.jinja"
        self._folder = folder

    @classmethod
    def beside(cls, file: Path) -> "TokenizerConfig":
        return cls(file.parent)

    def apply(self, tokenizer, id_of: Callable[[str], int | None]) -> None:
        """Sets the special ids, the begin and end marks and the chat template of a tokenizer."""
        bos = self._text("bos_token")
        tokenizer.bos_token_id = None if bos is None else id_of(bos)
        tokenizer.eos_token_ids = self._eos_ids(id_of)
        if (self._config.get("tokenizer_class") or "").removesuffix("Fast") in _FLAG_CLASSES:
            tokenizer.add_bos = self._config.get("add_bos_token", tokenizer.add_bos)
            tokenizer.add_eos = bool(self._config.get("add_eos_token", tokenizer.add_eos))
        if self._config.get("truncation_side") in ("left", "right"):
            tokenizer.truncation_side = self._config["truncation_side"]
        source = self._chat_template()
        if source is not None:
            tokenizer.chat_template = ChatTemplate(source, self._special_texts())

    def added_tokens(self) -> dict[str, int]:
        """Text -> id of added_tokens_decoder."""
        entries = self._config.get("added_tokens_decoder", {})
        return {e["content"]: int(i) for i, e in entries.items()}

    def _text(self, key: str) -> str | None:
        value = self._config.get(key)
        return value.get("content") if isinstance(value, dict) else value

    def _special_texts(self) -> dict[str, str]:
        names = ("bos_token", "eos_token", "unk_token", "pad_token")
        return {n: t for n in names if (t := self._text(n)) is not None}

    def _eos_ids(self, id_of) -> list[int]:
        eos = self._text("eos_token")
        first = None if eos is None else id_of(eos)
        more = self._generation.get("eos_token_id")
        ids = [first, *(more if isinstance(more, list) else [more])]
        return list(dict.fromkeys(i for i in ids if i is not None))

    def _chat_template(self) -> str | None:
        if self._template.is_file():
            return self._template.read_text(encoding="utf-8")
        value = self._config.get("chat_template")
        if isinstance(value, list):  # named templates
            named = {t["name"]: t["template"] for t in value}
            return named.get("default") or next(iter(named.values()), None)
        return value


def _read_json(path: Path) -> dict:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise CorruptFileError(f"{path}: {e}") from None
    if not isinstance(value, dict):
        raise CorruptFileError(f"{path}: expected an object, got {type(value).__name__}")
    return value
