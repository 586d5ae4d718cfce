"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API, for text."""

from fastllm_core.outputs import Piece
from fastllm_core.server.chat import chat_prompt
from fastllm_core.server.common import ALL_SAMPLING, ESCAPE, MAX_NOTED, Api
from fastllm_core.server.errors import ApiError, bad_request, dump
from fastllm_core.server.generation import Plan, Run
from fastllm_core.server.relay import Events
from fastllm_core.server.schema import RequestFields, Statement, field, missing

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "abort": "end_turn"}
_NO_TOOLS = "tool calls are not made"

_MARK = {"type": "ephemeral"}
_CACHE_CONTROL = Statement(
    (None, _MARK, {**_MARK, "ttl": "5m"}, {**_MARK, "ttl": "1h"}),
    "prefixes are cached without marks, while there is room",
)

_STATEMENTS = {
    "cache_control": _CACHE_CONTROL,
    "tools": Statement((None,), _NO_TOOLS),
    "tool_choice": Statement((None, {"type": "none"}), _NO_TOOLS),
    "thinking": Statement((None, {"type": "disabled"}), "reasoning is not told apart from the answer"),
    "service_tier": Statement((None, "auto", "standard_only"), "one tier"),
    "container": Statement((None,), "no containers"),
    "mcp_servers": Statement((None, []), "no tool servers are called"),
    "context_management": Statement((None,), "the context is used as it is"),
    "output_format": Statement((None,), "output is not constrained"),
    "output_config": Statement((None,), "output is not constrained"),
}

_BLOCK_STATEMENTS = {"cache_control": _CACHE_CONTROL, "citations": Statement((None, []), "nothing is cited")}

_CONVERSATION = {
    "model": field("string", "A served name."),
    "messages": field(
        "array",
        "Turns with a role and a content, a text or text blocks.",
        items={
            "type": ["object"],
            "properties": {"role": {"enum": ["user", "assistant"]}, "content": {"type": ["string", "array"]}},
            "required": ["role", "content"],
            "additionalProperties": False,
        },
        minItems=1,
    ),
    "system": field(["string", "array"], "A text or text blocks."),
}

_DELTA_HEAD = (
    'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":'
)
_DELTA_TAIL = "}}\n\n"


class MessagesApi(Api):
    """Text in, text out. What else Anthropic's API knows is refused by name."""

    id_prefix = "msg_"
    required = ("max_tokens", "messages")
    without = ALL_SAMPLING - {"temperature", "top_p", "top_k"}

    def __init__(self, state):
        super().__init__(state)
        self.count_fields = RequestFields(_CONVERSATION, _STATEMENTS, ALL_SAMPLING, state.config)

    def own_fields(self):
        return {
            **_CONVERSATION,
            "max_tokens": field("integer", "Most tokens to generate."),
            "stop_sequences": field(
                "array", "Texts that end the answer.", items={"type": ["string"]}, maxItems=self.state.config.max_stop
            ),
            "stream": field("boolean", "Answer as server-sent events."),
            "metadata": field("object", "user_id goes to the access log.", properties={"user_id": {"type": "string"}}),
        }

    def statements(self):
        return _STATEMENTS

    async def plan(self, body, request_id):
        fields = self.fields.check(body)
        _check_metadata(fields.get("metadata", {}))
        model = self.state.check_model(fields.get("model"))
        if "max_tokens" not in fields:
            raise missing("max_tokens")
        if fields["max_tokens"] < 1:
            raise bad_request(f"max_tokens must be at least 1, got {fields['max_tokens']}", "max_tokens")
        made = {"max_tokens": self.cap(fields["max_tokens"]), "stop": fields.get("stop_sequences", [])}
        params = await self.finish_params(self.fields.sampling_params(self.defaults(), fields, made))
        prompt = await chat_prompt(self.state, {"messages": conversation(fields)})
        plan = Plan(self.state.new_id(self.id_prefix, request_id), model, [prompt], params)
        plan.stream = fields.get("stream", False)
        return plan, MessageWriter(plan)

    async def count_tokens(self, body: dict) -> dict:
        """Tokens that a conversation makes through the template."""
        fields = self.count_fields.check(body)
        self.state.check_model(fields.get("model"))
        prompt = await chat_prompt(self.state, {"messages": conversation(fields)})
        return {"input_tokens": len(prompt.ids)}

    def note(self, body):
        user = (body.get("metadata") or {}).get("user_id")
        return {"user": user[:MAX_NOTED]} if user else {}


def _check_metadata(metadata: dict) -> None:
    for name, value in metadata.items():
        where = f"metadata.{name[:80]}"
        if name != "user_id":
            raise bad_request(f"{where} is not supported: answers are not stored", where)
        if value is not None and not isinstance(value, str):
            raise bad_request(f"{where} must be a string, got {value!r:.80}", where)


def conversation(fields: dict) -> list[dict]:
    """Anthropic's messages as those of a chat template: the system text first, blocks joined."""
    if not fields.get("messages"):
        raise missing("messages")
    out = []
    if fields.get("system"):
        out.append({"role": "system", "content": _text(fields["system"], "system")})
    for n, message in enumerate(fields["messages"]):
        where = f"messages[{n}]"
        role = message.get("role")
        if role not in ("user", "assistant"):
            raise bad_request(f"{where}.role must be user or assistant, got {role!r:.80}", f"{where}.role")
        for name in message.keys() - {"role", "content"}:
            raise bad_request(f"{where} has the field {name!r:.80}, which no message has", f"{where}.{name[:80]}")
        out.append({"role": role, "content": _text(message.get("content"), f"{where}.content")})
    return out


def _text(content, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(f"{where} must be a text or a list of blocks", where)
    parts = []
    for n, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else type(block).__name__
        if kind != "text" or not isinstance(block.get("text"), str):
            raise bad_request(f"{where}[{n}] is a block of type {kind!r:.80}; only text is supported", f"{where}[{n}]")
        for name, value in block.items():
            inner = f"{where}[{n}].{name[:80]}"
            if name in _BLOCK_STATEMENTS:
                _BLOCK_STATEMENTS[name].check(inner, value)
            elif name not in ("type", "text"):
                raise bad_request(f"{inner} is no field of a text block", inner)
        parts.append(block["text"])
    return "\n".join(parts)


class MessageWriter:
    """Writes message objects and their events."""

    def __init__(self, plan: Plan):
        self._plan = plan

    def first(self, run: Run) -> bytes:
        start = {**self._message([], None, None), "usage": self._usage(run, 0)}
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return _event({"type": "message_start", "message": start}) + _event(block) + _event({"type": "ping"})

    def begins_with_news(self) -> bool:
        return False

    def events(self) -> list[Events]:
        return [(_DELTA_HEAD, _DELTA_TAIL, None)]

    def piece(self, choice: int, piece: Piece, run: Run) -> bytes:
        out = b""
        if piece.text:
            out = f"{_DELTA_HEAD}{ESCAPE(piece.text)}{_DELTA_TAIL}".encode()
        if piece.finish_reason is not None:
            reason, sequence = _reason(piece)
            delta = {"stop_reason": reason, "stop_sequence": sequence}
            out += _event({"type": "content_block_stop", "index": 0})
            out += _event({"type": "message_delta", "delta": delta, "usage": self._usage(run, run.completion_tokens)})
        return out

    def last(self, run: Run) -> bytes:
        return _event({"type": "message_stop"})

    def error(self, error: ApiError) -> bytes:
        return b"event: error\ndata: " + error.body("/v1/messages") + b"\n\n"

    def whole(self, pieces: list[Piece], run: Run) -> dict:
        reason, sequence = _reason(pieces[0])
        message = self._message([{"type": "text", "text": pieces[0].text}], reason, sequence)
        return {**message, "usage": self._usage(run, run.completion_tokens)}

    def _message(self, content: list, reason: str | None, sequence: str | None) -> dict:
        return {
            "id": self._plan.request_id,
            "type": "message",
            "role": "assistant",
            "model": self._plan.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
        }

    def _usage(self, run: Run, output: int) -> dict:
        cached = run.cached_tokens
        return {
            "input_tokens": run.plan.prompt_tokens - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": output,
        }


def _reason(piece: Piece) -> tuple[str, str | None]:
    if piece.finish_reason == "stop" and isinstance(piece.stop_reason, str):
        return "stop_sequence", piece.stop_reason
    return _STOP_REASONS.get(piece.finish_reason, "end_turn"), None


def _event(value: dict) -> bytes:
    return f"event: {value['type']}\ndata: ".encode() + dump(value) + b"\n\n"
