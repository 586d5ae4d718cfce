"""Chat templates: Jinja from a model's files, rendered in a sandbox as transformers does, with limits."""

import datetime
import json
from collections.abc import Sequence

from fastllm_core.errors import ChatTemplateError

MAX_TEMPLATE_CHARS = 1 << 20
MAX_RENDERED_CHARS = 16 << 20
MAX_RANGE_ITEMS = 100_000  # of all range() calls of one rendering
MAX_REPEATED_CHARS = 1 << 20  # "x" * n
MAX_EXPONENT_BITS = 1 << 12


def _environment():
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(Extension):
        """{% generation %}...{% endgeneration %} marks the assistant's part for training; here it is its content."""

        tags = frozenset({"generation"})

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Sandbox(ImmutableSandboxedEnvironment):
        """Refuses operators that make huge values of small ones."""

        intercepted_binops = frozenset(["*", "**"])

        def call_binop(self, context, operator, left, right):
            if operator == "*":
                _check_repeat(left, right)
                _check_repeat(right, left)
            elif _power_bits(left, right) > MAX_EXPONENT_BITS:
                raise jinja2.exceptions.SecurityError(f"{left} ** {right} is too large")
            return super().call_binop(context, operator, left, right)

    def _check_repeat(text, count):
        if isinstance(text, (str, list, tuple)) and isinstance(count, int) and len(text) * count > MAX_REPEATED_CHARS:
            raise jinja2.exceptions.SecurityError(f"repetition makes more than {MAX_REPEATED_CHARS} elements")

    def _power_bits(base, exponent):
        whole = isinstance(base, int) and isinstance(exponent, int)
        return base.bit_length() * abs(exponent) if whole else 0

    env = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock])
    env.filters["tojson"] = _to_json
    env.globals["raise_exception"] = _raise
    env.globals["strftime_now"] = lambda fmt: datetime.datetime.now().strftime(fmt)
    return env


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    """Jinja's own tojson escapes HTML characters, which prompts must not have."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Refused(Exception):
    """raise_exception() of a template."""


def _raise(message):
    raise _Refused(str(message))


def _budgeted_range():
    """range() whose calls within one rendering may give MAX_RANGE_ITEMS in all."""
    left = MAX_RANGE_ITEMS

    def limited(*args):
        nonlocal left
        out = range(*args)
        left -= len(out)
        if left < 0:
            raise _Refused(f"range() gave more than {MAX_RANGE_ITEMS} items")
        return out

    return limited


class ChatTemplate:
    """One template; `specials` are names that it may read (bos_token, eos_token)."""

    def __init__(self, source: str, specials: dict[str, str]):
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ChatTemplateError(f"chat template of {len(source)} characters; the limit is {MAX_TEMPLATE_CHARS}")
        self.source = source
        self._specials = specials
        self._compiled = None

    def render(
        self,
        messages: Sequence[dict],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict] | None = None,
        **variables,
    ) -> str:
        """The text of a conversation. With continue_final_message it ends inside the last message, to be continued."""
        messages = check_messages(messages)
        if continue_final_message and add_generation_prompt:
            raise ChatTemplateError("add_generation_prompt and continue_final_message cannot both be true")
        if continue_final_message and not messages:
            raise ChatTemplateError("continue_final_message: there is no message")
        names = {**self._specials, "tools": tools, "documents": None, **variables}
        names.update(messages=messages, add_generation_prompt=add_generation_prompt, range=_budgeted_range())
        text = self._render(**names)
        return _cut_after(text, messages[-1]["content"]) if continue_final_message else text

    def _render(self, **names) -> str:
        import jinja2

        try:
            if self._compiled is None:
                self._compiled = _environment().from_string(self.source)
            parts: list[str] = []
            size = 0
            for part in self._compiled.generate(**names):
                parts.append(part)
                size += len(part)
                if size > MAX_RENDERED_CHARS:
                    raise ChatTemplateError(f"chat template made more than {MAX_RENDERED_CHARS} characters")
            return "".join(parts)
        except _Refused as e:
            raise ChatTemplateError(f"chat template: {e}") from None
        except jinja2.TemplateError as e:
            raise ChatTemplateError(f"chat template: {type(e).__name__}: {e}") from None
        except (TypeError, ValueError, KeyError, AttributeError, ZeroDivisionError, OverflowError, RecursionError) as e:
            if isinstance(e, ChatTemplateError):
                raise
            raise ChatTemplateError(f"chat template: {type(e).__name__}: {e}") from None


def check_messages(messages: Sequence[dict]) -> list[dict]:
    """Copies of the messages, text parts joined by line breaks; refuses what is no conversation."""
    if isinstance(messages, (str, dict)) or not isinstance(messages, Sequence):
        raise ChatTemplateError(f"messages must be a list of dicts with a role, got {type(messages).__name__}")
    if len(messages) == 0:
        raise ChatTemplateError("messages must not be empty")
    return [_check_message(n, m) for n, m in enumerate(messages)]


def _check_message(n: int, message: dict) -> dict:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ChatTemplateError(f"messages[{n}] must be a dict with a role, got {message!r:.80}")
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_text_part(n, part) for part in content)
    elif content is not None and not isinstance(content, str):
        raise ChatTemplateError(
            f"messages[{n}]: content must be a str or a list of parts, got {type(content).__name__}"
        )
    return {**message, "content": "" if content is None else content}


# cache_control comes from clients that speak to several APIs; prefixes are cached without such marks.
_TEXT_PART_FIELDS = {"type", "text", "cache_control"}


def _text_part(n: int, part) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        for name in part.keys() - _TEXT_PART_FIELDS:
            raise ChatTemplateError(f"messages[{n}]: {name!r:.80} is no field of a text part")
        return part["text"]
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise ChatTemplateError(f"messages[{n}]: content part of type {kind!r}; this version takes text parts only")


def _cut_after(text: str, last: str) -> str:
    """The text up to the end of the last message."""
    last = last.strip()
    at = text.rfind(last)
    if at < 0:
        raise ChatTemplateError("continue_final_message: the template changes the last message")
    return text[: at + len(last)]
