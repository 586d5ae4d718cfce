"""From a route to an answer: reads the body, races the work against the client's leaving, writes whole or stream."""

import asyncio
import contextlib
import json
import logging

from starlette.requests import Request
from starlette.responses import Response

from fastllm_core._C import SamplingParams
from fastllm_core.server.body import ClientGone
from fastllm_core.server.common import Api
from fastllm_core.server.errors import ApiError, dump, from_exception
from fastllm_core.server.generation import start, stream_answer, whole_answer
from fastllm_core.server.relay import relayed_connection
from fastllm_core.server.routing import routed
from fastllm_core.server.state import ServerState

_log = logging.getLogger("fastllm.server")


def generation_endpoint(api: Api):
    """The FastAPI endpoint of a generation route."""

    async def endpoint(request: Request) -> Response:
        return GenerationResponse(api)

    return endpoint


class GenerationRoute:
    """A generation route as an ASGI application of its own. Requests begin a few at a time."""

    def __init__(self, api: Api):
        self._api = api

    async def __call__(self, scope, receive, send) -> None:
        await self._api.state.turns.take()
        await GenerationResponse(self._api)(scope, receive, send)


async def send_json(send, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    extra = [(k.lower().encode(), v.encode("latin-1")) for k, v in (headers or {}).items()]
    length = (b"content-length", str(len(body)).encode())
    head = [(b"content-type", b"application/json"), length, *extra]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def send_error(scope, send, error: ApiError) -> None:
    await send_json(send, error.status, error.body(scope["path"]), error.headers)


class GenerationResponse(Response):
    """One generation request. It is a Response so that the framework leaves receive and send to it."""

    def __init__(self, api: Api):
        self.background = None
        self._api = api
        self._state: ServerState = api.state
        self._stream_begun = False
        self._timed_out = False

    async def __call__(self, scope, receive, send) -> None:
        try:
            self._state.enter()
        except ApiError as e:
            self._state.metrics.reject(e.status)
            await send_error(scope, send, e)
            return
        try:
            await self._race(scope, receive, send)
        finally:
            self._state.leave()

    async def _race(self, scope, receive, send) -> None:
        try:
            body = await self._state.bodies.read_json(scope, receive)
        except ClientGone:
            return
        except ApiError as e:
            self._state.metrics.reject(e.status)
            await send_error(scope, send, e)
            return
        loop = asyncio.get_running_loop()
        work = loop.create_task(self._answer(body, scope, send))
        gone = loop.create_task(_client_gone(receive))
        try:
            limit = self._state.config.request_timeout_s or None
            await asyncio.wait((work, gone), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            self._timed_out = not work.done() and not gone.done()
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work

    async def _answer(self, body: dict, scope, send) -> None:
        try:
            await self._generate(body, scope, send)
        except asyncio.CancelledError:
            if not self._timed_out:
                raise
            seconds = self._state.config.request_timeout_s
            await self._fail(ApiError(504, f"the request took longer than {seconds:g} s"), scope, send)
        except Exception as e:
            error = from_exception(e, self._state.config.retry_after_s)
            if error.status >= 500 and not isinstance(e, ApiError):
                _log.error("request failed", exc_info=e)
            await self._fail(error, scope, send)

    async def _generate(self, body: dict, scope, send) -> None:
        plan, writer = await self._api.plan(body, scope.get("state", {}).get("request_id"))
        plan.scheduling = routed(plan.scheduling, scope, body)
        _note(scope, self._api.note(body), plan)
        _log_request(self._state.config.log_requests, plan)
        detached = await self._api.detach(plan, writer, body)
        if detached is not None:
            await send_json(send, 200, dump(detached))
            return
        run = start(self._state, plan)
        self._writer = writer
        tracer = self._state.tracer
        span = tracer.start(scope["headers"], plan) if tracer is not None else None
        try:
            if not plan.stream:
                answer = dump(await whole_answer(run, writer))
                await send_json(send, 200, answer)
                return
            await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
            self._stream_begun = True
            connection = relayed_connection(self._state, scope, writer)
            await stream_answer(run, writer, _chunk_writer(scope, send), connection)
            await send({"type": "http.response.body", "body": b""})
        finally:
            run.close()
            if span is not None:
                span.end(run.completion_tokens, f"{run.unfinished} choices did not end" if run.unfinished else None)

    async def _fail(self, error: ApiError, scope, send) -> None:
        if self._stream_begun:
            await send({"type": "http.response.body", "body": self._writer.error(error)})
            return
        self._state.metrics.reject(error.status)
        await send_error(scope, send, error)


def _chunk_writer(scope, send):
    """A coroutine function that sends one chunk: straight to the server, past the layers of the framework, which only
    look at how a response begins."""
    answer = scope.get("state", {}).get("answer")
    direct = send if answer is None else answer.send

    async def write(data: bytes) -> None:
        if answer is not None:
            answer.bytes += len(data)
        await direct({"type": "http.response.body", "body": data, "more_body": True})

    return write


_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


async def _client_gone(receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _note(scope, asked_by: dict[str, str], plan) -> None:
    """What the access log says about the request."""
    note = scope.get("state", {}).get("note")
    if note is not None:
        note.update(id=plan.request_id, prompt_tokens=plan.prompt_tokens, stream=plan.stream, **asked_by)


_CONTENT_FIELDS = frozenset({"stop", "bad_words", "extra_args", "dry_sequence_breakers"})


def _log_request(level: str, plan) -> None:
    """A line about what is asked. params: lengths and numbers, nothing that was written by the client; full: all."""
    if level == "off":
        return
    fresh = SamplingParams().to_dict()
    params = {
        name: value
        for name, value in plan.params.to_dict().items()
        if value != fresh[name] and (level == "full" or name not in _CONTENT_FIELDS)
    }
    fields = {"id": plan.request_id, "prompt_tokens": [len(p.ids) for p in plan.prompts], "params": params}
    if level == "full":
        fields["prompts"] = [p.text if p.text is not None else p.ids for p in plan.prompts]
    _log.info("request %s", json.dumps(fields, default=str))


def json_endpoint(state: ServerState, handler):
    """An endpoint for handler(body: dict) -> dict, with the same limits and errors; for routes that do not generate."""

    async def endpoint(request: Request) -> Response:
        async def answer() -> dict:
            return await handler(await state.bodies.read_json(request.scope, request.receive))

        return await json_answer(state, answer(), request.url.path)

    return endpoint


async def json_answer(state: ServerState, answer, path: str) -> Response:
    """The awaited answer, or its error, as a response."""
    try:
        return _json_response(200, dump(await answer))
    except ClientGone:
        return Response(status_code=499)
    except Exception as e:
        error = from_exception(e, state.config.retry_after_s)
        if error.status >= 500 and not isinstance(e, ApiError):
            _log.error("request failed", exc_info=e)
        return _json_response(error.status, error.body(path), error.headers)


def _json_response(status: int, body: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")
