"""POST /v1/completions."""

from fastllm_core.outputs import Piece
from fastllm_core.server.common import (
    COMMON_FIELDS,
    DONE,
    ESCAPE,
    Api,
    check_prompt_ids,
    error_event,
    event,
    quoted,
    text_prompt,
    usage,
)
from fastllm_core.server.errors import ApiError, bad_request, dump
from fastllm_core.server.generation import Plan, PromptInput, Run
from fastllm_core.server.logprobs import LogprobTexts
from fastllm_core.server.relay import Events
from fastllm_core.server.schema import field, missing

_PROMPT = {
    "description": "A text, a list of token ids, or a list of texts or of such lists.",
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "minItems": 1}, "minItems": 1},
    ],
}


class CompletionApi(Api):
    id_prefix = "cmpl-"
    required = ("prompt",)

    def own_fields(self):
        return {
            **COMMON_FIELDS,
            "prompt": _PROMPT,
            "echo": field("boolean", "Give the prompt's text before the output's."),
            "suffix": field("string", "Not supported; only the empty text."),
            "logprobs": field("integer", "Log probabilities of each token and of so many others.", minimum=-1),
            "add_special_tokens": field("boolean", "Mark the beginning of a text as the model wants it."),
        }

    async def plan(self, body, request_id):
        fields = self.fields.check(body)
        self.check_lengths(fields)
        model = self.state.check_model(fields.get("model"))
        if fields.get("suffix"):
            raise bad_request("suffix is not supported: text is only continued", "suffix")
        streaming = self.stream_plan(fields)
        max_tokens = self.cap(fields.get("max_tokens", self.default_max_tokens(16)))
        only_echo = max_tokens == 0 and fields.get("echo", False)
        logprobs = fields.get("logprobs")
        made = {**self.made_params(fields, logprobs), "max_tokens": 1 if only_echo else max_tokens}
        if fields.get("echo") and logprobs is not None:
            made["prompt_logprobs"] = logprobs
        params = await self.finish_params(self.fields.sampling_params(self.defaults(), fields, made))
        prompts = await self._prompts(fields, max_tokens)
        self.check_choices(len(prompts), params.n)
        plan = Plan(
            self.state.new_id(self.id_prefix, fields.get("request_id") or request_id),
            model,
            prompts,
            params,
            cache_salt=fields.get("cache_salt", ""),
            scheduling=self.scheduling(fields),
            only_echo=only_echo,
            **streaming,
        )
        echoes = [await self._echo(p) if fields.get("echo") else None for p in prompts]
        return plan, CompletionWriter(plan, echoes, fields, self.state)

    async def _prompts(self, fields: dict, max_tokens: int | None) -> list[PromptInput]:
        given = fields.get("prompt")
        if given is None:
            raise missing("prompt")
        items = self._split(given)
        limit = self.state.config.max_prompts
        if len(items) > limit:
            raise bad_request(f"prompt must have at most {limit} prompts, got {len(items)}", "prompt")
        out = []
        for n, item in enumerate(items):
            where = "prompt" if items is not given else f"prompt[{n}]"
            if isinstance(item, str):
                made = await text_prompt(self.state, item, fields.get("add_special_tokens", True))
            else:
                made = PromptInput(None, check_prompt_ids(item, where, self.state.llm.info.max_model_len))
            made.ids = self.truncate(fields, made.ids, max_tokens)
            if not made.ids:
                raise bad_request(f"{where} is empty: it has no token to continue", "prompt")
            out.append(made)
        return out

    def _split(self, given) -> list:
        if isinstance(given, str):
            return [given]
        if not isinstance(given, list) or not given:
            raise bad_request(f"prompt must be a text or a list that is not empty, got {given!r:.80}", "prompt")
        kinds = {kind if kind in (str, list) else int for kind in set(map(type, given))}
        if len(kinds) > 1:
            raise bad_request("prompt mixes texts, token ids and lists", "prompt")
        return [given] if kinds == {int} else given

    async def _echo(self, prompt: PromptInput) -> str:
        if prompt.text is not None:
            return prompt.text
        return await self.state.llm.text_workers.decode(prompt.ids)


class CompletionWriter:
    """Writes text_completion objects. `echoes` are the prompts' texts, None where they are not asked for."""

    def __init__(self, plan: Plan, echoes: list[str | None], fields: dict, state):
        self._plan = plan
        self._echoes = echoes
        self._return_ids = fields.get("return_token_ids", False)
        self._details = state.config.enable_prompt_tokens_details
        self._fingerprint = state.fingerprint
        self._prompt_logprobs = "prompt_logprobs" in fields
        self._top: int | None = fields.get("logprobs")
        self._texts = LogprobTexts(state.llm.get_tokenizer(), fields.get("return_tokens_as_token_ids", False))
        self._offsets: dict[int, int] = {}  # by choice that has begun: where its next token is in the text
        self._head = (
            f'data: {{"id":{ESCAPE(plan.request_id)},"object":"text_completion","created":{plan.created},'
            f'"model":{quoted(plan.model)},"choices":['
        )
        self._tail = "]" + (',"usage":null' if plan.include_usage else "") + "}\n\n"

    def first(self, run: Run) -> bytes:
        return b""

    def begins_with_news(self) -> bool:
        return all(echo is None for echo in self._echoes)

    def events(self) -> list[Events] | None:
        if self._return_ids or self._top is not None or self._plan.stream_interval > 1 or self._plan.continuous_usage:
            return None
        if self._plan.choices > 1 and self._echoes[0] is not None:
            return None  # each begins with its prompt
        rest = ',"logprobs":null,"finish_reason":'
        suffix, tail = f"{rest}null}}{self._tail}", f"}}{self._tail}"
        begins = [f'{self._head}{{"index":{n},"text":' for n in range(self._plan.choices)]
        return [(begin, suffix, (f'{rest}"', f'{begin}""{rest}"', '","stop_reason":', tail)) for begin in begins]

    def piece(self, choice: int, piece: Piece, run: Run) -> bytes:
        fresh = choice not in self._offsets
        text, logprobs = self._content(choice, piece)
        if not text and piece.finish_reason is None and not self._return_ids and not logprobs:
            return b""
        reason = "null"
        if piece.finish_reason is not None:
            reason = f'"{piece.finish_reason}","stop_reason":{_json(piece.stop_reason)}'
        more = ""
        if self._return_ids:
            more = f',"token_ids":{_json(list(piece.token_ids))}'
            if fresh:
                more += f',"prompt_token_ids":{_json(self._plan.prompts[choice // self._plan.n].ids)}'
        tail = self._tail
        if self._plan.continuous_usage:
            tail = f'],"usage":{_json(usage(run, self._details))}}}\n\n'
        shown = "null" if logprobs is None else _json(logprobs)
        out = (
            f'{self._head}{{"index":{choice},"text":{ESCAPE(text)},"logprobs":{shown},"finish_reason":{reason}{more}}}'
        )
        return (out + tail).encode()

    def _content(self, choice: int, piece: Piece) -> tuple[str, dict | None]:
        """Text and logprobs of a piece, with the prompt's before those of the first one."""
        fresh = choice not in self._offsets
        prompt = choice // self._plan.n
        echo = self._echoes[prompt] if fresh else None
        text = piece.text if echo is None else echo + piece.text
        if self._top is None:
            self._offsets[choice] = 0
            return text, None
        offset = self._offsets.get(choice, 0)
        out: dict | None = None
        if echo is not None:
            positions = piece.prompt_logprobs or [[]]
            out, offset = self._texts.prompt_completion(self._plan.prompts[prompt].ids, positions, self._top)
        if piece.logprobs and not self._plan.only_echo:
            more, offset = self._texts.completion(piece.logprobs, self._top, offset)
            out = more if out is None else {name: out[name] + more[name] for name in out}
        self._offsets[choice] = offset
        return text, out

    def last(self, run: Run) -> bytes:
        if not self._plan.include_usage:
            return DONE
        data = f'{self._head[6:]}],"usage":{_json(usage(run, self._details))}}}'
        return event(data) + DONE

    def error(self, error: ApiError) -> bytes:
        return error_event(error)

    def whole(self, pieces: list[Piece], run: Run) -> dict:
        choices = [self._choice(n, piece) for n, piece in enumerate(pieces)]
        return {
            "id": self._plan.request_id,
            "object": "text_completion",
            "created": self._plan.created,
            "model": self._plan.model,
            "system_fingerprint": self._fingerprint,
            "choices": choices,
            "usage": usage(run, self._details),
        }

    def _choice(self, n: int, piece: Piece) -> dict:
        text, logprobs = self._content(n, piece)
        out = {
            "index": n,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
        }
        prompt = n // self._plan.n
        if self._prompt_logprobs:
            out["prompt_logprobs"] = self._texts.prompt(piece.prompt_logprobs)
        if self._return_ids:
            out["token_ids"] = list(piece.token_ids)
            out["prompt_token_ids"] = self._plan.prompts[prompt].ids
        return out


def _json(value) -> str:
    return dump(value).decode()
