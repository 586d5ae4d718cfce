"""The application: every route of the server, under its one middleware."""

from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import HTTPException
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

import fastllm_core
from fastllm_core.server.admin import AdminRoutes
from fastllm_core.server.chat import ChatApi
from fastllm_core.server.common import Api
from fastllm_core.server.completions import CompletionApi
from fastllm_core.server.endpoint import GenerationRoute, generation_endpoint, json_answer, json_endpoint
from fastllm_core.server.errors import ApiError
from fastllm_core.server.guard import Guard
from fastllm_core.server.messages import MessagesApi
from fastllm_core.server.replicas import ReplicaRoutes
from fastllm_core.server.response_items import PAGE_PARAMETERS
from fastllm_core.server.responses import ResponsesApi
from fastllm_core.server.state import ServerState
from fastllm_core.server.web import add_web_page

GENERATION_ROUTES: dict[str, type[Api]] = {
    "/v1/completions": CompletionApi,
    "/v1/chat/completions": ChatApi,
    "/v1/responses": ResponsesApi,
    "/v1/messages": MessagesApi,
}


def build_app(state: ServerState):
    """The ASGI application of a server."""
    app = FastAPI(
        title="fastllm_core",
        version=fastllm_core.__version__,
        docs_url=None,  # these pages load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,
    )
    apis = {path: kind(state) for path, kind in GENERATION_ROUTES.items()}
    for path, api in apis.items():
        _add_generation(app, path, api)
    _add_messages(app, state, apis["/v1/messages"])
    _add_responses(app, state, apis["/v1/responses"])
    admin = AdminRoutes(state)
    admin.add_to(app)
    ReplicaRoutes(state).add_to(app)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(HTTPException, _http_error)
    open_paths = add_web_page(app) if state.config.web_ui else frozenset()
    direct = {("POST", path): GenerationRoute(api) for path, api in apis.items()}
    direct["GET", "/health"] = admin.health_app
    return _with_cors(Guard(app, state, open_paths, direct), state.config)


def _with_cors(app, config):
    """Around the guard: a browser asks for permission without its key."""
    if not config.allowed_origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=config.allowed_origins,
        allow_methods=config.allowed_methods,
        allow_headers=config.allowed_headers,
        allow_credentials=config.allow_credentials,
        expose_headers=["x-request-id"],
    )


def _add_generation(app: FastAPI, path: str, api: Api) -> None:
    schema = {"application/json": {"schema": api.openapi()}}
    app.add_api_route(
        path,
        generation_endpoint(api),
        methods=["POST"],
        response_class=Response,
        openapi_extra={"requestBody": {"required": True, "content": schema}},
        name=path.removeprefix("/v1/").replace("/", "_"),
    )


def _add_messages(app: FastAPI, state: ServerState, api: MessagesApi) -> None:
    schema = {"application/json": {"schema": api.count_fields.openapi(["messages"])}}
    app.add_api_route(
        "/v1/messages/count_tokens",
        json_endpoint(state, api.count_tokens),
        methods=["POST"],
        response_class=Response,
        openapi_extra={"requestBody": {"required": True, "content": schema}},
        name="count_tokens",
    )


def _add_responses(app: FastAPI, state: ServerState, api: ResponsesApi) -> None:
    def add(path: str, method: str, handler, name: str, description: str, query: Sequence[dict] = ()) -> None:
        async def endpoint(response_id: str, request: Request) -> Response:
            return await json_answer(state, handler(response_id, request.query_params), "/v1/responses")

        app.add_api_route(
            f"/v1/responses/{{response_id}}{path}",
            endpoint,
            methods=[method],
            response_class=Response,
            name=name,
            description=description,
            openapi_extra={"parameters": list(query)},
        )

    add("", "GET", api.get, "get_response", "A kept answer; 404 when it is not kept.")
    add("", "DELETE", api.delete, "delete_response", "Forgets a kept answer, and ends it when it still runs.")
    add("/cancel", "POST", api.cancel, "cancel_response", "Ends a response that runs in the background.")
    add("/input_items", "GET", api.items, "input_items", "What a kept answer was made of, in pages.", PAGE_PARAMETERS)


async def _http_error(request: Request, error: StarletteHTTPException) -> Response:
    """What the framework refuses (no such route, wrong method), in our shape."""
    made = ApiError(error.status_code, f"{request.method} {request.url.path[:200]}: {error.detail}")
    headers = dict(error.headers or {})
    return Response(made.body(request.url.path), error.status_code, headers, media_type="application/json")
