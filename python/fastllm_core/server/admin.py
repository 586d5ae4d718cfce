"""Routes that do not generate: models, tokenizing, health, load, metrics, switches."""

from starlette.requests import Request
from starlette.responses import Response

import fastllm_core
from fastllm_core.server.chat import TEMPLATE_FIELDS, chat_prompt
from fastllm_core.server.common import ALL_SAMPLING, text_prompt
from fastllm_core.server.endpoint import json_endpoint
from fastllm_core.server.errors import ApiError, bad_request, dump, from_exception
from fastllm_core.server.exposition import exposition
from fastllm_core.server.schema import RequestFields, field, missing
from fastllm_core.server.state import ServerState


class AdminRoutes:
    """The routes' handlers. Bodies are checked by RequestFields, as those of the generation routes."""

    def __init__(self, state: ServerState):
        self._state = state
        tokenize = {
            "model": field("string"),
            "prompt": field("string", "A text; or give messages."),
            "return_token_strs": field("boolean", "Give the tokens' texts as well."),
            **TEMPLATE_FIELDS,
        }
        detokenize = {"model": field("string"), "tokens": field("array", "Token ids.", items={"type": ["integer"]})}
        abort = {
            "request_ids": field("array", "Ids of answers.", items={"type": ["string"]}),
            "all": field("boolean", "Every request that runs."),
        }
        self.tokenize_fields = RequestFields(tokenize, {}, ALL_SAMPLING, state.config)
        self.detokenize_fields = RequestFields(detokenize, {}, ALL_SAMPLING, state.config)
        self.abort_fields = RequestFields(abort, {}, ALL_SAMPLING, state.config)

    def add_to(self, app) -> None:
        """Registers the routes with a FastAPI application."""
        for path, handler in (
            ("/v1/models", self.models),
            ("/v1/models/{model:path}", self.model),
            ("/health", self.health),
            ("/ping", self.health),
            ("/load", self.load),
            ("/version", self.version),
            ("/metrics", self.metrics),
        ):
            app.add_api_route(path, handler, methods=["GET"], response_class=Response)
        app.add_api_route("/ping", self.health, methods=["POST"], response_class=Response, include_in_schema=False)
        app.add_api_route("/reset_prefix_cache", self.reset_prefix_cache, methods=["POST"], response_class=Response)
        for path, handler, fields, required in (
            ("/tokenize", self.tokenize, self.tokenize_fields, []),
            ("/detokenize", self.detokenize, self.detokenize_fields, ["tokens"]),
            ("/abort_requests", self.abort_requests, self.abort_fields, []),
        ):
            schema = {"application/json": {"schema": fields.openapi(required)}}
            app.add_api_route(
                path,
                json_endpoint(self._state, handler),
                methods=["POST"],
                response_class=Response,
                openapi_extra={"requestBody": {"required": True, "content": schema}},
                name=path.strip("/"),
            )

    async def models(self) -> Response:
        """The names that are served."""
        return _json({"object": "list", "data": [self._card(name) for name in self._state.names]})

    async def model(self, model: str) -> Response:
        """One name; 404 when it is not served."""
        try:
            return _json(self._card(self._state.check_model(model)))
        except ApiError as e:
            return _json({"error": e.openai()}, e.status)

    async def health(self) -> Response:
        """200 while the engine serves; 503 says why it does not: dead, stalled, draining."""
        wrong = self._state.refusal or self._state.health()
        return _json({"status": "ok"}) if wrong is None else _json({"status": "unavailable", "reason": wrong}, 503)

    async def health_app(self, scope, receive, send) -> None:
        """health() as an ASGI application."""
        await (await self.health())(scope, receive, send)

    async def load(self) -> Response:
        """Generation requests that are being answered."""
        return _json({"server_load": self._state.load})

    async def version(self) -> Response:
        """The version of fastllm_core."""
        return _json({"version": fastllm_core.__version__})

    async def metrics(self) -> Response:
        """Prometheus text."""
        text, kind = exposition(self._state.metrics)
        return Response(text, headers={"content-type": kind})

    async def reset_prefix_cache(self, request: Request) -> Response:
        """Forgets all cached prefixes; 409 while a request holds blocks."""
        try:
            await self._state.llm.reset_prefix_cache()
        except fastllm_core.FastLLMError as e:
            error = from_exception(e)
            return _json({"error": error.openai()}, error.status)
        return _json({"success": True})

    async def abort_requests(self, body: dict) -> dict:
        """Ends requests by the ids of their answers. Their clients get what there is, with finish_reason abort."""
        fields = self.abort_fields.check(body)
        if fields.get("all"):
            if "request_ids" in fields:
                raise bad_request("give either request_ids or all", "request_ids")
            wanted = list(self._state.runs)
        else:
            wanted = fields.get("request_ids", [])
            if not wanted:
                raise missing("request_ids")
        found = [name for name in dict.fromkeys(wanted) if name in self._state.runs]
        for name in found:
            self._state.runs[name].abort()
        return {"aborted": found}

    async def tokenize(self, body: dict) -> dict:
        fields = self.tokenize_fields.check(body)
        self._state.check_model(fields.get("model"))
        if ("prompt" in fields) == ("messages" in fields):
            raise bad_request("give either prompt or messages", "prompt")
        if "prompt" in fields:
            for name in fields.keys() & (TEMPLATE_FIELDS.keys() - {"add_special_tokens"}):
                raise bad_request(f"{name} goes with messages, not with prompt", name)
            made = await text_prompt(self._state, fields["prompt"], fields.get("add_special_tokens", True))
        else:
            made = await chat_prompt(self._state, fields)
        out = {
            "count": len(made.ids),
            "max_model_len": self._state.llm.info.max_model_len,
            "tokens": made.ids,
            "token_strs": None,
        }
        if fields.get("return_token_strs"):
            tokenizer = self._state.llm.get_tokenizer()
            out["token_strs"] = [tokenizer.decode([i], skip_special_tokens=False) for i in made.ids]
        return out

    async def detokenize(self, body: dict) -> dict:
        fields = self.detokenize_fields.check(body)
        self._state.check_model(fields.get("model"))
        if "tokens" not in fields:
            raise missing("tokens")
        return {"prompt": await self._state.llm.text_workers.decode(fields["tokens"], False)}

    def _card(self, name: str) -> dict:
        return {
            "id": name,
            "object": "model",
            "created": self._state.started,
            "owned_by": "fastllm",
            "root": self._state.names[0],
            "parent": None,
            "max_model_len": self._state.llm.info.max_model_len,
        }


def _json(value: dict, status: int = 200) -> Response:
    return Response(dump(value), status, media_type="application/json")
