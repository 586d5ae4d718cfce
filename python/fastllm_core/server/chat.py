"""POST /v1/chat/completions."""

from fastllm_core.chat_template import check_messages
from fastllm_core.outputs import Piece
from fastllm_core.server.common import (
    COMMON_FIELDS,
    DONE,
    ESCAPE,
    Api,
    error_event,
    event,
    quoted,
    usage,
)
from fastllm_core.server.errors import ApiError, bad_request, dump
from fastllm_core.server.generation import Plan, PromptInput, Run
from fastllm_core.server.logprobs import LogprobTexts
from fastllm_core.server.relay import Events
from fastllm_core.server.schema import field, missing

_MESSAGES = field(
    "array",
    "The conversation: objects with a role and a content, a text or a list of text parts.",
    items={
        "type": ["object"],
        "properties": {"role": {"type": "string"}, "content": {"type": ["string", "array", "null"]}},
        "required": ["role", "content"],
    },
    minItems=1,
)
TEMPLATE_FIELDS = {
    "messages": _MESSAGES,
    "add_generation_prompt": field("boolean", "End with the head of an answer."),
    "continue_final_message": field("boolean", "Continue the last message in place of a new one."),
    "add_special_tokens": field("boolean", "Add marks beside those of the template."),
    "chat_template": field("string", "A Jinja template; refused unless the server trusts its clients."),
    "chat_template_kwargs": field("object", "Variables for the template."),
    "documents": field("array", "Documents for the template.", items={"type": ["object"]}),
}
_RESERVED = frozenset({"messages", "add_generation_prompt", "tools", "documents", "range", "chat_template", "tokenize"})


class ChatApi(Api):
    id_prefix = "chatcmpl-"
    required = ("messages",)

    def own_fields(self):
        return {
            **COMMON_FIELDS,
            **TEMPLATE_FIELDS,
            "max_completion_tokens": field("integer", "Most tokens to generate; wins over max_tokens."),
            "logprobs": field("boolean", "Log probabilities of the answer's tokens."),
            "top_logprobs": field("integer", "Of so many of the likeliest tokens as well; needs logprobs.", minimum=-1),
            "echo": field("boolean", "Give the last message before the answer, if it is the assistant's."),
            "prompt_cache_key": field("string", "Goes to the access log; equal prefixes are found without a key."),
            "safety_identifier": field("string", "Who asks; goes to the access log."),
        }

    async def plan(self, body, request_id):
        fields = self.fields.check(body)
        self.check_lengths(fields)
        model = self.state.check_model(fields.get("model"))
        streaming = self.stream_plan(fields)
        name = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
        max_tokens = fields.get(name)
        if max_tokens is not None and max_tokens < 1:
            raise bad_request(f"{name} must be at least 1, got {max_tokens}", name)
        logprobs = self._logprobs(fields)
        made = {
            **self.made_params(fields, logprobs),
            "max_tokens": self.cap(max_tokens or self.default_max_tokens(None)),
        }
        params = await self.finish_params(self.fields.sampling_params(self.defaults(), fields, made))
        prompt = await chat_prompt(self.state, fields)
        prompt.ids = self.truncate(fields, prompt.ids, max_tokens)
        self.check_choices(1, params.n)
        plan = Plan(
            self.state.new_id(self.id_prefix, fields.get("request_id") or request_id),
            model,
            [prompt],
            params,
            cache_salt=fields.get("cache_salt", ""),
            scheduling=self.scheduling(fields),
            **streaming,
        )
        echo = ""
        if fields.get("echo") and fields["messages"][-1].get("role") == self.state.config.response_role:
            echo = check_messages(fields["messages"][-1:])[0]["content"]
        return plan, ChatWriter(plan, echo, logprobs, fields, self.state)

    def _logprobs(self, fields: dict) -> int | None:
        """The engine's logprobs: how many alternatives, None without any."""
        if fields.get("logprobs"):
            return self.check_top_logprobs(fields.get("top_logprobs", 0))
        if fields.get("top_logprobs"):
            raise bad_request("top_logprobs needs logprobs to be true", "top_logprobs")
        return None


async def chat_prompt(state, fields: dict) -> PromptInput:
    """The messages through the template, tokenized."""
    messages = fields.get("messages")
    if messages is None:
        raise missing("messages")
    if not messages:
        raise bad_request("messages must not be empty", "messages")
    options = {
        "add_generation_prompt": fields.get("add_generation_prompt", True),
        "continue_final_message": fields.get("continue_final_message", False),
    }
    if options["continue_final_message"] and fields.get("add_generation_prompt") is None:
        options["add_generation_prompt"] = False
    if "documents" in fields:
        options["documents"] = fields["documents"]
    for name in fields.get("chat_template_kwargs", {}):
        if name in _RESERVED or name in options:
            raise bad_request(f"chat_template_kwargs must not hold {name!r}", "chat_template_kwargs")
    options.update(fields.get("chat_template_kwargs", {}))
    if "chat_template" in fields:
        if not state.config.trust_request_chat_template:
            raise bad_request(
                "chat_template is refused: this server does not render templates of requests", "chat_template"
            )
        options["chat_template"] = fields["chat_template"]
    text, ids = await state.llm.text_workers.chat(messages, fields.get("add_special_tokens", False), **options)
    if not ids:
        raise bad_request("the chat template made an empty prompt", "messages")
    return PromptInput(text, ids)


class ChatWriter:
    """Writes chat.completion objects and their chunks."""

    def __init__(self, plan: Plan, echo: str, logprobs: int | None, fields: dict, state):
        self._plan = plan
        self._echo = echo
        self._top = logprobs
        self._texts = LogprobTexts(state.llm.get_tokenizer(), fields.get("return_tokens_as_token_ids", False))
        self._prompt_logprobs = "prompt_logprobs" in fields
        self._return_ids = fields.get("return_token_ids", False)
        self._details = state.config.enable_prompt_tokens_details
        self._role = state.config.response_role
        self._fingerprint = state.fingerprint
        self._head = (
            f'data: {{"id":{ESCAPE(plan.request_id)},"object":"chat.completion.chunk","created":{plan.created},'
            f'"model":{quoted(plan.model)},"choices":['
        )
        self._tail = "]" + (',"usage":null' if plan.include_usage else "") + "}\n\n"

    def first(self, run: Run) -> bytes:
        """Who speaks, for each choice, and what is echoed."""
        out = []
        more = ""
        if self._return_ids:
            more = f',"prompt_token_ids":{_json(self._plan.prompts[0].ids)}'
        for n in range(self._plan.choices):
            delta = f'{{"role":{quoted(self._role)},"content":""}}'
            out.append(self._chunk(n, delta, "null", run, more))
        if self._echo:
            out += [
                self._chunk(n, f'{{"content":{ESCAPE(self._echo)}}}', "null", run) for n in range(self._plan.choices)
            ]
        return b"".join(out)

    def begins_with_news(self) -> bool:
        return False

    def events(self) -> list[Events] | None:
        if self._return_ids or self._top is not None or self._plan.stream_interval > 1 or self._plan.continuous_usage:
            return None
        rest = '},"logprobs":null,"finish_reason":'
        suffix, tail = f"{rest}null}}{self._tail}", f"}}{self._tail}"
        begins = [f'{self._head}{{"index":{n},"delta":{{' for n in range(self._plan.choices)]
        return [
            (f'{begin}"content":', suffix, (f'{rest}"', f'{begin}{rest}"', '","stop_reason":', tail))
            for begin in begins
        ]

    def piece(self, choice: int, piece: Piece, run: Run) -> bytes:
        logprobs = "null"
        if self._top is not None and piece.logprobs:
            logprobs = _json(self._texts.chat(piece.logprobs, self._top))
        elif not piece.text and piece.finish_reason is None and not self._return_ids:
            return b""
        reason = "null"
        if piece.finish_reason is not None:
            reason = f'"{piece.finish_reason}","stop_reason":{_json(piece.stop_reason)}'
        delta = f'{{"content":{ESCAPE(piece.text)}}}' if piece.text else "{}"
        more = f',"token_ids":{_json(list(piece.token_ids))}' if self._return_ids else ""
        return self._chunk(choice, delta, reason, run, more, logprobs)

    def last(self, run: Run) -> bytes:
        if not self._plan.include_usage:
            return DONE
        return event(f'{self._head[6:]}],"usage":{_json(usage(run, self._details))}}}') + DONE

    def error(self, error: ApiError) -> bytes:
        return error_event(error)

    def whole(self, pieces: list[Piece], run: Run) -> dict:
        out = {
            "id": self._plan.request_id,
            "object": "chat.completion",
            "created": self._plan.created,
            "model": self._plan.model,
            "system_fingerprint": self._fingerprint,
            "choices": [self._choice(n, piece) for n, piece in enumerate(pieces)],
            "usage": usage(run, self._details),
        }
        if self._prompt_logprobs:
            out["prompt_logprobs"] = self._texts.prompt(pieces[0].prompt_logprobs)
        if self._return_ids:
            out["prompt_token_ids"] = self._plan.prompts[0].ids
        return out

    def _choice(self, n: int, piece: Piece) -> dict:
        message = {"role": self._role, "content": self._echo + piece.text, "refusal": None}
        logprobs = None if self._top is None else self._texts.chat(piece.logprobs, self._top)
        out = {"index": n, "message": message, "logprobs": logprobs, "finish_reason": piece.finish_reason}
        out["stop_reason"] = piece.stop_reason
        if self._return_ids:
            out["token_ids"] = list(piece.token_ids)
        return out

    def _chunk(self, choice: int, delta: str, reason: str, run: Run, more: str = "", logprobs: str = "null") -> bytes:
        tail = self._tail
        if self._plan.continuous_usage:
            tail = f'],"usage":{_json(usage(run, self._details))}}}\n\n'
        out = f'{self._head}{{"index":{choice},"delta":{delta},"logprobs":{logprobs},"finish_reason":{reason}{more}}}'
        return (out + tail).encode()


def _json(value) -> str:
    return dump(value).decode()
