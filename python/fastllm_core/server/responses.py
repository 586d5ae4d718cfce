"""/v1/responses: OpenAI's Responses API, for text; kept answers live in memory (response_items.py)."""

import asyncio

from starlette.datastructures import QueryParams

from fastllm_core.outputs import Piece
from fastllm_core.server.chat import chat_prompt
from fastllm_core.server.common import ESCAPE, NOT_SAMPLING, Api
from fastllm_core.server.errors import ApiError, bad_request, dump
from fastllm_core.server.generation import Plan, Run, start, whole_answer
from fastllm_core.server.logprobs import LogprobTexts
from fastllm_core.server.response_items import (
    LOGPROBS,
    ResponseStore,
    as_messages,
    check_metadata,
    check_query,
    input_items,
    item_page,
    new_item_id,
    output_part,
)
from fastllm_core.server.schema import Statement, field, missing

_NO_TOOLS = "tool calls are not made"
_PLAIN_TEXT = {"format": {"type": "text"}}

_STATEMENTS = {
    "tools": Statement((None, []), _NO_TOOLS),
    "max_tool_calls": Statement((None,), _NO_TOOLS),
    "reasoning": Statement((None,), "reasoning is not told apart from the answer"),
    "text": Statement((None, {}, _PLAIN_TEXT), "output is not constrained"),
    "truncation": Statement((None, "disabled"), "a conversation that is too long is refused"),
    "service_tier": Statement((None, "auto", "default"), "one tier"),
    "prompt": Statement((None,), "no stored prompts"),
    "conversation": Statement((None,), "no stored conversations; previous_response_id chains answers"),
    "stream_options": Statement((None, {}, {"include_obfuscation": False}), "no padding is sent"),
}


class ResponsesApi(Api):
    """Text in, text out. Storing, chaining and running in the background need enable_response_store."""

    id_prefix = "resp_"
    required = ("input",)
    without = NOT_SAMPLING | {"n", "max_tokens"}

    def __init__(self, state):
        super().__init__(state)
        self.store = ResponseStore(state.config.max_stored_responses)

    def own_fields(self):
        return {
            "model": field("string", "A served name."),
            "input": field(["string", "array"], "A text, or messages.", items={"type": ["object"]}),
            "instructions": field("string", "A system message."),
            "max_output_tokens": field("integer", "Most tokens to generate.", minimum=1),
            "stream": field("boolean", "Answer as server-sent events."),
            "store": field("boolean", "Keep the answer."),
            "background": field("boolean", "Answer at once and run on; the answer is kept."),
            "previous_response_id": field("string", "Continue the conversation of a kept answer."),
            "metadata": field("object", "Given back with the answer.", maxProperties=16),
            "user": field("string", "Who asks; goes to the access log."),
            "safety_identifier": field("string", "Who asks; goes to the access log."),
            "prompt_cache_key": field("string", "Goes to the access log; equal prefixes are found without a key."),
            "cache_salt": field("string", "Prefixes are shared only between requests of the same salt."),
            "include": field("array", f"{LOGPROBS}, or nothing.", items={"type": ["string"], "enum": [LOGPROBS]}),
            "top_logprobs": field("integer", "Of so many of the likeliest tokens as well; needs include.", minimum=0),
            "tool_choice": field("string", "Given back; there are no tools to choose.", enum=["none", "auto", None]),
            "parallel_tool_calls": field("boolean", "Given back; there are no tools to call."),
        }

    def statements(self):
        return _STATEMENTS

    async def plan(self, body, request_id):
        if "max_tokens" in body:
            raise bad_request("the field of this API is max_output_tokens, not max_tokens", "max_tokens")
        fields = self.fields.check(body)
        check_metadata(fields.get("metadata", {}))
        model = self.state.check_model(fields.get("model"))
        keep = self._keeps(fields)
        limit = fields.get("max_output_tokens", self.default_max_tokens(None))
        made = {"max_tokens": self.cap(limit)}
        if fields.get("include"):
            made["logprobs"] = self.check_top_logprobs(fields.get("top_logprobs", 0))
        elif fields.get("top_logprobs"):
            raise bad_request(f"top_logprobs needs include to hold {LOGPROBS!r}", "top_logprobs")
        params = await self.finish_params(self.fields.sampling_params(self.defaults(), fields, made))
        items = self._conversation(fields)
        system = [{"role": "system", "content": fields["instructions"]}] if fields.get("instructions") else []
        prompt = await chat_prompt(self.state, {"messages": [*system, *as_messages(items)]})
        plan = Plan(self.state.new_id(self.id_prefix, request_id), model, [prompt], params)
        plan.stream = fields.get("stream", False)
        plan.cache_salt = fields.get("cache_salt", "")
        logprobs = LogprobTexts(self.state.llm.get_tokenizer(), False) if fields.get("include") else None
        return plan, ResponseWriter(plan, fields, items, self.store if keep else None, logprobs)

    async def detach(self, plan: Plan, writer: "ResponseWriter", body: dict) -> dict | None:
        """For a request in the background: starts it, keeps what is known, and returns that. None for others."""
        if not body.get("background"):
            return None
        run = start(self.state, plan)
        queued = writer.response(run, "queued", [])
        self.store.put(queued, writer.items)
        task = asyncio.create_task(self._background(run, writer))
        self.store.tasks[plan.request_id] = task
        task.add_done_callback(lambda _: self.store.tasks.pop(plan.request_id, None))
        return queued

    async def _background(self, run: Run, writer: "ResponseWriter") -> None:
        self.state.enter()
        try:
            await whole_answer(run, writer)
        except asyncio.CancelledError:
            self.store.put(writer.response(run, "cancelled", []), writer.items)
        except ApiError as e:
            failed = {**writer.response(run, "failed", []), "error": {"code": "server_error", "message": e.message}}
            self.store.put(failed, writer.items)
        finally:
            run.close()
            self.state.leave()

    async def get(self, name: str, query: QueryParams) -> dict:
        check_query(query)
        return self.store.get(name)[0]

    async def items(self, name: str, query: QueryParams) -> dict:
        """A page of the items that the response was made of, earlier answers of its conversation among them."""
        return item_page(self.store.get(name)[1], query)

    async def cancel(self, name: str, query: QueryParams) -> dict:
        """Ends a background response; 400 for one that is not in the background or has ended."""
        check_query(query)
        self.store.get(name)
        if not await self._end_task(name):
            raise bad_request(f"the response {name[:100]!r} does not run in the background", "response_id")
        return self.store.get(name)[0]

    async def delete(self, name: str, query: QueryParams) -> dict:
        """Forgets a response, and ends it when it runs in the background. Those that were chained to it stay."""
        check_query(query)
        self.store.get(name)
        await self._end_task(name)
        self.store.remove(name)
        return {"id": name, "object": "response", "deleted": True}

    async def _end_task(self, name: str) -> bool:
        """False when nothing runs under this id."""
        task = self.store.tasks.get(name)
        if task is None:
            return False
        task.cancel()
        await asyncio.wait((task,))
        return True

    def _keeps(self, fields: dict) -> bool:
        wanted = [n for n in ("store", "background", "previous_response_id") if fields.get(n)]
        if wanted and not self.state.config.enable_response_store:
            raise bad_request(f"{wanted[0]} needs a server with --enable-response-store", wanted[0])
        if fields.get("background") and fields.get("stream"):
            raise bad_request("background and stream together are not supported", "background")
        if fields.get("background") and fields.get("store") is False:
            raise bad_request("background needs store", "store")
        return self.state.config.enable_response_store and fields.get("store", True)

    def _conversation(self, fields: dict) -> list[dict]:
        if "input" not in fields:
            raise missing("input")
        before: list[dict] = []
        if "previous_response_id" in fields:
            response, items = self.store.get(fields["previous_response_id"], "previous_response_id")
            before = [*items, *response["output"]]
            if response["status"] not in ("completed", "incomplete"):
                raise bad_request(f"the response is {response['status']}, not completed", "previous_response_id")
        items = [*before, *input_items(fields["input"], {item["id"] for item in before})]
        if not items:
            raise bad_request("input must not be empty", "input")
        return items


class ResponseWriter:
    """Writes response objects and their events, each with its number."""

    def __init__(
        self,
        plan: Plan,
        fields: dict,
        items: list[dict],
        store: ResponseStore | None,
        texts: LogprobTexts | None,
    ):
        self._texts = texts  # when log probabilities are asked for
        self._logprobs: list[dict] = []
        self.items = items  # what the prompt was made of
        self._plan = plan
        self._fields = fields
        self._store = store
        self._item = new_item_id()
        self._text: list[str] = []
        self._end: Piece | None = None
        self._number = 0

    def first(self, run: Run) -> bytes:
        begun = self.response(run, "in_progress", [])
        item = {"id": self._item, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        out = self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)
        out += self._event("response.output_item.added", output_index=0, item=item)
        return out + self._event("response.content_part.added", **self._place(), part=output_part("", []))

    def begins_with_news(self) -> bool:
        return False

    def events(self) -> None:
        return None  # events are numbered, and their text is kept

    def piece(self, choice: int, piece: Piece, run: Run) -> bytes:
        if piece.finish_reason is not None:
            self._end = piece
        logprobs = self._shown(piece)
        if not piece.text and not logprobs:
            return b""
        self._text.append(piece.text)
        self._logprobs += logprobs
        self._number += 1
        kind = "response.output_text.delta"
        return (
            f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":{self._number - 1},"item_id":"{self._item}",'
            f'"output_index":0,"content_index":0,"delta":{ESCAPE(piece.text)},"logprobs":{dump(logprobs).decode()}}}\n\n'
        ).encode()

    def last(self, run: Run) -> bytes:
        text = "".join(self._text)
        done = self._done(run, text, self._end, self._logprobs)
        out = self._event("response.output_text.done", **self._place(), text=text, logprobs=self._logprobs)
        out += self._event("response.content_part.done", **self._place(), part=output_part(text, self._logprobs))
        out += self._event("response.output_item.done", output_index=0, item=done["output"][0])
        return out + self._event(f"response.{done['status']}", response=done)

    def error(self, error: ApiError) -> bytes:
        return self._event("error", code=str(error.status), message=error.message, param=error.param)

    def whole(self, pieces: list[Piece], run: Run) -> dict:
        return self._done(run, pieces[0].text, pieces[0], self._shown(pieces[0]))

    def _shown(self, piece: Piece) -> list[dict]:
        """The log probabilities of a piece, as this API has them."""
        if self._texts is None or not piece.logprobs:
            return []
        return self._texts.chat(piece.logprobs, self._fields.get("top_logprobs", 0))["content"]

    def _done(self, run: Run, text: str, end: Piece, logprobs: list[dict]) -> dict:
        status = "incomplete" if end.finish_reason == "length" else "completed"
        content = [output_part(text, logprobs)]
        item = {"id": self._item, "type": "message", "status": status, "role": "assistant", "content": content}
        out = self.response(run, status, [item])
        if status == "incomplete":
            out["incomplete_details"] = {"reason": "max_output_tokens"}
        if self._store is not None:
            self._store.put(out, self.items)
        return out

    def response(self, run: Run, status: str, output: list[dict]) -> dict:
        params, fields = self._plan.params, self._fields
        prompt, made = self._plan.prompt_tokens, run.completion_tokens
        return {
            "id": self._plan.request_id,
            "object": "response",
            "created_at": self._plan.created,
            "status": status,
            "background": fields.get("background", False),
            "error": None,
            "incomplete_details": None,
            "instructions": fields.get("instructions"),
            "max_output_tokens": fields.get("max_output_tokens"),
            "metadata": fields.get("metadata", {}),
            "model": self._plan.model,
            "output": output,
            "parallel_tool_calls": fields.get("parallel_tool_calls", True),
            "previous_response_id": fields.get("previous_response_id"),
            "store": self._store is not None,
            "temperature": params.temperature,
            "text": _PLAIN_TEXT,
            "tool_choice": fields.get("tool_choice", "none"),
            "tools": [],
            "top_p": params.top_p,
            "truncation": "disabled",
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": run.cached_tokens, "cache_write_tokens": 0},
                "output_tokens": made,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + made,
            }
            if output
            else None,
        }

    def _place(self) -> dict:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields) -> bytes:
        self._number += 1
        data = dump({"type": kind, "sequence_number": self._number - 1, **fields})
        return f"event: {kind}\ndata: ".encode() + data + b"\n\n"
