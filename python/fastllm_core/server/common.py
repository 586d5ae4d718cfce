"""What the generation routes have in common: shared fields, what is refused, prompts, usage."""

import json
from collections.abc import Sequence
from functools import lru_cache

from fastllm_core._C import SamplingParams
from fastllm_core.inputs import Scheduling, make_prompt
from fastllm_core.server.errors import ApiError, bad_request
from fastllm_core.server.generation import Plan, PromptInput, Run
from fastllm_core.server.schema import RequestFields, Statement, field
from fastllm_core.server.state import ServerState

ESCAPE = json.encoder.encode_basestring  # a JSON string, non-ASCII as it is
MAX_BAD_WORDS, MAX_BAD_WORD_CHARS = 128, 256
DONE = b"data: [DONE]\n\n"

# Fields of SamplingParams that no route takes as they are: they are made of other fields, or the server decides.
NOT_SAMPLING = frozenset(
    {
        "detokenize",
        "logprobs",
        "prompt_logprobs",
        "output_kind",
        "structured_outputs",
        "bad_words_token_ids",
        "extra_args",
    }
)

ALL_SAMPLING = frozenset(f.name for f in SamplingParams.fields())  # for routes that do not generate
MAX_NOTED = 512  # characters of a value in the access log

STREAM_OPTIONS = field(
    "object",
    "include_usage: a last chunk with the token counts; continuous_usage_stats: counts in every chunk;"
    " include_obfuscation: only false, no padding is sent.",
    properties={name: field("boolean") for name in ("include_usage", "continuous_usage_stats", "include_obfuscation")},
)

COMMON_FIELDS = {
    "model": field("string", "A served name; see /v1/models."),
    "stream": field("boolean", "Answer as server-sent events."),
    "stream_options": STREAM_OPTIONS,
    "stream_interval": field(
        "integer", "Tokens per chunk of a stream; the first and last are sent at once.", minimum=1
    ),
    "max_tokens": field("integer", "Most tokens to generate."),
    "user": field("string", "Who asks; goes to the access log.", maxLength=512),
    "request_id": field("string", "An id for the request, part of the answer's id.", maxLength=128),
    "cache_salt": field("string", "Prefixes are shared only between requests of the same salt."),
    "truncate_prompt_tokens": field(
        "integer", "Keep so many tokens of the prompt; -1 keeps what the context holds.", minimum=-1
    ),
    "truncation_side": field("string", "Where to cut: left (the default) or right.", enum=["left", "right", None]),
    "prompt_logprobs": field("integer", "Log probabilities of the prompt's tokens and of so many others.", minimum=-1),
    "return_tokens_as_token_ids": field("boolean", "Show tokens in logprobs as token_id:<id>."),
    "priority": field("integer", "Lower comes first; needs scheduling_policy=priority."),
    "timeout_ms": field("integer", "Time for the whole request.", minimum=1),
    "max_queue_time_ms": field("integer", "Time in the queue.", minimum=1),
    "vllm_xargs": field("object", "Arguments for logits processors of the host (extra_args)."),
    "return_token_ids": field("boolean", "Give the ids of prompt and output."),
}


def _refused(fact: str, *values) -> Statement:
    return Statement((None, *values), fact)


STATEMENTS = {
    "best_of": _refused("choices are not ranked", 1),
    "structured_outputs": _refused("output is not constrained"),
    "response_format": _refused("output is not constrained", {"type": "text"}),
    "tools": _refused("tool calls are not made"),
    "tool_choice": _refused("tool calls are not made", "none"),
    "parallel_tool_calls": _refused("tool calls are not made", True),
    "functions": _refused("tool calls are not made"),
    "function_call": _refused("tool calls are not made", "none"),
    "audio": _refused("models make text"),
    "modalities": _refused("models make text", ["text"]),
    "prediction": _refused("no predicted output"),
    "web_search_options": _refused("no web search"),
    "reasoning_effort": _refused("reasoning is not told apart; chat_template_kwargs reach the template"),
    "include_reasoning": _refused("reasoning is not told apart from the answer", True),
    "verbosity": _refused("the model decides"),
    "metadata": _refused("answers are not stored", {}),
    "store": _refused("answers are not stored", False),
    "service_tier": _refused("one tier", "auto", "default"),
    "prompt_embeds": _refused("prompts are text or token ids"),
    "use_beam_search": _refused("no beam search", False),
    "length_penalty": _refused("no beam search", 1.0),
    "kv_transfer_params": _refused("the KV cache is not transferred"),
    "mm_processor_kwargs": _refused("models take text"),
    "repetition_detection": _refused("loops are not detected"),
    "thinking_token_budget": _refused("reasoning is not told apart from the answer"),
}


class Api:
    """One generation route: its fields, and how a body becomes a plan and a writer."""

    id_prefix = ""
    required: Sequence[str] = ()
    without = NOT_SAMPLING  # fields of SamplingParams that the route does not take

    def __init__(self, state: ServerState):
        self.state = state
        self.fields = RequestFields(self.own_fields(), self.statements(), self.without, state.config)

    def own_fields(self) -> dict[str, dict]:
        raise NotImplementedError

    def statements(self) -> dict[str, Statement]:
        return STATEMENTS

    async def plan(self, body: dict, request_id: str | None) -> tuple[Plan, object]:
        """The plan and the Writer of a request; ApiError for a body that is wrong."""
        raise NotImplementedError

    def note(self, body: dict) -> dict[str, str]:
        """What the access log says of a checked body: who asks."""
        names = ("user", "safety_identifier", "prompt_cache_key")
        return {name: body[name][:MAX_NOTED] for name in names if body.get(name)}

    async def detach(self, plan: Plan, writer, body: dict) -> dict | None:
        """The answer to a request that goes on without its client; None for all others."""
        return None

    def openapi(self) -> dict:
        schema = self.fields.openapi(list(self.required))
        schema["properties"]["model"] = {"enum": [*self.state.names, None]}
        return schema

    # ---- helpers of the routes ----

    def stream_plan(self, fields: dict) -> dict:
        """The keywords of Plan that say how to stream."""
        options = fields.get("stream_options")
        stream = fields.get("stream", False)
        if options is not None and not stream:
            raise bad_request("stream_options is only allowed when stream is true", "stream_options")
        options = options or {}
        for name, value in options.items():
            if name not in STREAM_OPTIONS["properties"]:
                raise bad_request(f"unknown field {name[:80]!r} in stream_options", f"stream_options.{name[:80]}")
            if value is not None and not isinstance(value, bool):
                raise bad_request(f"stream_options.{name} must be boolean, got {value!r:.80}", f"stream_options.{name}")
        if options.get("include_obfuscation"):
            raise bad_request(
                "stream_options.include_obfuscation can only be false: no padding is sent", "stream_options"
            )
        force = self.state.config.enable_force_include_usage
        return {
            "stream": stream,
            "include_usage": bool(options.get("include_usage")) or force,
            "continuous_usage": bool(options.get("continuous_usage_stats")) or force,
            "stream_interval": fields.get("stream_interval", 1),
        }

    def cap(self, max_tokens: int | None) -> int | None:
        """max_tokens under the server's own limit."""
        cap = self.state.config.max_tokens_cap
        if cap is None or (max_tokens is not None and max_tokens <= cap):
            return max_tokens
        return cap

    def truncate(self, fields: dict, ids: list[int], max_tokens: int | None) -> list[int]:
        keep = fields.get("truncate_prompt_tokens")
        if keep is None:
            return ids
        if keep == 0:
            raise bad_request("truncate_prompt_tokens must be -1 or at least 1, got 0", "truncate_prompt_tokens")
        if keep == -1:
            keep = max(1, self.state.llm.info.max_model_len - (max_tokens or 1))
        if len(ids) <= keep:
            return ids
        side = fields.get("truncation_side") or self.state.llm.get_tokenizer().truncation_side
        return ids[:keep] if side == "right" else ids[-keep:]

    async def finish_params(self, params: SamplingParams) -> SamplingParams:
        """The parameters with what only the tokenizer knows, and without what makes no sense together."""
        if params.n > 1 and params.temperature < 1e-5:
            raise bad_request(f"n must be 1 when temperature is 0: the choices would be equal, got {params.n}", "n")
        if not params.bad_words:
            return params
        longest = max(map(len, params.bad_words))
        if longest > MAX_BAD_WORD_CHARS or len(params.bad_words) > MAX_BAD_WORDS:
            limit = f"{MAX_BAD_WORDS} words of {MAX_BAD_WORD_CHARS} characters"
            raise bad_request(
                f"bad_words must be at most {limit}, got {len(params.bad_words)} of {longest}", "bad_words"
            )
        tokenizer = self.state.llm.get_tokenizer()
        made = await self.state.llm.text_workers.run(make_prompt, {"prompt_token_ids": [0]}, params, tokenizer)
        return made.request.sampling_params

    def scheduling(self, fields: dict) -> Scheduling:
        return Scheduling(fields.get("priority", 0), fields.get("timeout_ms"), fields.get("max_queue_time_ms"))

    def defaults(self) -> SamplingParams:
        """What the model states, under what the request says."""
        return self.state.llm.get_default_sampling_params()

    def default_max_tokens(self, otherwise: int | None) -> int | None:
        info = self.state.llm.info
        return self.defaults().max_tokens if "max_tokens" in info.default_sampling_fields else otherwise

    def check_top_logprobs(self, count: int) -> int:
        """The number of alternatives; 400 where it is more than the engine gives."""
        info = self.state.llm.info
        if info.max_logprobs >= 0 and (info.vocab_size if count == -1 else count) > info.max_logprobs:
            whole = ", the whole vocabulary" if count == -1 else ""
            message = f"top_logprobs must be at most max_logprobs ({info.max_logprobs}), got {count}{whole}"
            raise bad_request(message, "top_logprobs")
        return count

    def check_lengths(self, fields: dict) -> None:
        for name in ("user", "request_id"):
            limit = self.fields.own[name]["maxLength"]
            if len(fields.get(name, "")) > limit:
                raise bad_request(f"{name} must have at most {limit} characters", name)

    def made_params(self, fields: dict, logprobs: int | None) -> dict:
        """Values of SamplingParams that both APIs make in the same way."""
        made = {"logprobs": logprobs, "prompt_logprobs": fields.get("prompt_logprobs")}
        if "prompt_logprobs" in fields and fields.get("stream"):
            raise bad_request("prompt_logprobs is not available in a stream", "prompt_logprobs")
        if "vllm_xargs" in fields:
            made["extra_args"] = fields["vllm_xargs"]
        return {name: value for name, value in made.items() if value is not None}

    def check_choices(self, prompts: int, n: int) -> None:
        limit = self.state.config.max_choices
        if prompts * n > limit:
            raise bad_request(f"prompts times n must be at most {limit}, got {prompts * n}", "n")


def usage(run: Run, details: bool) -> dict:
    """The usage object of OpenAI's API."""
    prompt, completion = run.plan.prompt_tokens, run.completion_tokens
    out = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    if details:
        out["prompt_tokens_details"] = {"cached_tokens": run.cached_tokens}
    return out


@lru_cache(maxsize=64)
def quoted(text: str) -> str:
    """A string that is used over and over, as JSON."""
    return ESCAPE(text)


def event(data: str) -> bytes:
    return f"data: {data}\n\n".encode()


def error_event(error: ApiError) -> bytes:
    return b"data: " + error.body() + b"\n\n" + DONE


def check_prompt_ids(ids: list, where: str, max_model_len: int) -> list[int]:
    """Token ids as JSON has them; ApiError names the first that is none."""
    looked_at = ids[: max_model_len + 1]
    if set(map(type, looked_at)) == {int}:
        return ids
    for n, i in enumerate(looked_at):
        if not isinstance(i, int) or isinstance(i, bool):
            raise bad_request(f"{where}[{n}] must be a token id, got {i!r:.80}", "prompt")
    return ids


async def text_prompt(state: ServerState, text: str, add_special_tokens: bool) -> PromptInput:
    return PromptInput(text, await state.llm.text_workers.encode(text, add_special_tokens))
