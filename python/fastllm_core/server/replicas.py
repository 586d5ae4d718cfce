"""The routes that look after replicas (data_parallel_size > 1)."""

from starlette.requests import Request
from starlette.responses import Response

from fastllm_core.server.endpoint import json_answer
from fastllm_core.server.errors import ApiError
from fastllm_core.server.state import ServerState


class ReplicaRoutes:
    """GET /replicas; with enable_replica_admin also drain, resume and restart of one."""

    def __init__(self, state: ServerState):
        self._state = state

    def add_to(self, app) -> None:
        """Registers the routes with a FastAPI application."""
        app.add_api_route("/replicas", self.list, methods=["GET"], response_class=Response)
        if not self._state.config.enable_replica_admin:
            return
        llm = self._state.llm
        for word, action in (
            ("drain", llm.drain_replica),
            ("resume", llm.resume_replica),
            ("restart", llm.restart_replica),
        ):
            app.add_api_route(
                f"/replicas/{{replica}}/{word}",
                self._acting(action),
                methods=["POST"],
                response_class=Response,
                name=f"{word}_replica",
            )

    async def list(self) -> Response:
        """Each replica: its state, what runs, what was sent to it."""
        return await json_answer(self._state, self._listed(), "/replicas")

    def _acting(self, action):
        async def act(request: Request, replica: int) -> Response:
            """Answers as GET /replicas does afterwards; 404 for a number that is none, 409 where it cannot be done."""

            async def answer() -> dict:
                if not 0 <= replica < len(self._state.llm.replicas()):
                    raise ApiError(404, f"there is no replica {replica}")
                await action(replica)
                return await self._listed()

            return await json_answer(self._state, answer(), request.url.path)

        return act

    async def _listed(self) -> dict:
        replicas = []
        for number, r in enumerate(self._state.llm.replicas()):
            one = {"replica": number, "state": r.state, "live": r.live, "requests": r.requests}
            one |= {"running": r.stats.running, "waiting": r.stats.waiting, "restarts": r.restarts}
            replicas.append(one | {"reason": r.reason or None})
        return {"object": "list", "data": replicas}
