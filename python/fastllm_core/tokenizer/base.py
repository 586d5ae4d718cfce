"""What every tokenizer does."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from fastllm_core.chat_template import ChatTemplate
from fastllm_core.errors import ChatTemplateError, InvalidArgumentError


def check_text(text) -> None:
    """Refuses what has no UTF-8 form."""
    if not isinstance(text, str):
        raise TypeError(f"text must be str, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as e:
        code = ord(text[e.start])
        raise InvalidArgumentError(f"text holds U+{code:04X}, half of a surrogate pair, at {e.start}") from None


class Tokenizer(ABC):
    """One vocabulary and its rules.

    Special tokens written out in a text ("<|im_end|>") become their ids with parse_special, the default as in
    transformers and vLLM; without it they are text like any other.
    """

    vocab_size: int
    bos_token_id: int | None = None
    eos_token_ids: list[int]
    chat_template: ChatTemplate | None = None
    _made_table = None
    _longest: int | None = None
    truncation_side: str = "left"  # which end of a prompt truncate_prompt_tokens cuts off when the request does not say

    @property
    def eos_token_id(self) -> int | None:
        return self.eos_token_ids[0] if self.eos_token_ids else None

    @property
    def longest_token_bytes(self) -> int:
        """No token stands for more bytes of a text than this."""
        if self._longest is None:
            self._longest = max((len(piece) for piece in self._pieces()[0]), default=0)
        return self._longest

    def encode(self, text: str, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """Ids of a text. add_special_tokens: with the beginning and end marks that the model wants."""
        check_text(text)
        return self._encode(text, add_special_tokens, parse_special)

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> str:
        """Text of ids, as the engine makes it: what cannot be decoded becomes U+FFFD.

        spaces_between_special_tokens=False: as in vLLM, an added token right behind another one is written without the
        space that some decoders (WordPiece) put in front of it; of no effect with skip_special_tokens.
        """
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise InvalidArgumentError(f"token id {i} is outside [0, {self.vocab_size})")
        return self._decode(list(ids), skip_special_tokens, spaces_between_special_tokens)

    def token_bytes(self, token: int) -> bytes:
        """What one token stands for within a text; may be part of a character."""
        pieces, _ = self._pieces()
        if not 0 <= token < len(pieces):
            raise InvalidArgumentError(f"token id {token} is outside [0, {len(pieces)})")
        return pieces[token]

    def token_text(self, token: int) -> str:
        """token_bytes() as text, invalid UTF-8 replaced by U+FFFD; "" for an id that has no piece."""
        pieces, _ = self._pieces()
        return pieces[token].decode("utf-8", errors="replace") if token < len(pieces) else ""

    def apply_chat_template(self, messages, add_generation_prompt: bool = True, tokenize: bool = False, **options):
        """The messages as the text that the model was trained on, or as ids with `tokenize`.

        Options: chat_template (another template than the model's), continue_final_message, tools, and whatever the
        template itself reads.
        """
        own = options.pop("chat_template", None)
        template = self.chat_template
        if own is not None:
            template = ChatTemplate(own, self._special_texts())
        if template is None:
            raise ChatTemplateError("the model has no chat template; pass chat_template=")
        text = template.render(messages, add_generation_prompt=add_generation_prompt, **options)
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def use_chat_template(self, source: str) -> None:
        """Another template in place of the model's."""
        self.chat_template = ChatTemplate(source, self._special_texts())

    def token_table(self):
        """The engine's view of the vocabulary (_C.TokenTable); None when it cannot express the decoder.

        The text of such a tokenizer is made in Python (library_text.py).
        """
        if self._made_table is None:
            self._made_table = self._make_token_table()
        return self._made_table

    def _make_token_table(self):
        from fastllm_core._C import TokenTable

        pieces, special = self._pieces()
        return TokenTable(pieces, special, **self._table_options())

    def _decode(self, ids: list[int], skip_special_tokens: bool, spaces_between_special_tokens: bool) -> str:
        return self.token_table().decode(ids, skip_special_tokens, spaces_between_special_tokens)

    def _special_texts(self) -> dict[str, str]:
        """bos_token, eos_token, ... for templates."""
        out = {}
        if self.bos_token_id is not None:
            out["bos_token"] = self._piece(self.bos_token_id).decode("utf-8", errors="replace")
        if self.eos_token_ids:
            out["eos_token"] = self._piece(self.eos_token_ids[0]).decode("utf-8", errors="replace")
        return out

    def _piece(self, token: int) -> bytes:
        """One of _pieces(), for tokenizers that can tell it without making them all."""
        return self._pieces()[0][token]

    @abstractmethod
    def _encode(self, text: str, add_special_tokens: bool, parse_special: bool) -> list[int]: ...

    @abstractmethod
    def _pieces(self) -> tuple[list[bytes], list[bool]]:
        """By id: the token's bytes, and whether it is a control token."""

    def _table_options(self) -> dict:
        """The arguments of _C.TokenTable besides the pieces."""
        return {}
