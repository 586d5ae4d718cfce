"""What a request may say about the replica that takes it (data_parallel_size > 1)."""

import hashlib
from dataclasses import replace

from fastllm_core.inputs import Scheduling
from fastllm_core.server.body import header
from fastllm_core.server.errors import bad_request

_LONG = 512  # longer ids of sessions are hashed


def routed(scheduling: Scheduling, scope, body: dict) -> Scheduling:
    """With the headers X-data-parallel-rank and x-session-id; the field prompt_cache_key names a session too."""
    rank, session = header(scope, b"x-data-parallel-rank"), header(scope, b"x-session-id")
    if session is None and isinstance(body.get("prompt_cache_key"), str):
        session = body["prompt_cache_key"]
    if rank is None and not session:
        return scheduling
    if rank is not None and not (rank.isascii() and rank.isdigit() and len(rank) < 6):
        raise bad_request(f"the header X-data-parallel-rank must be the number of a replica, got {rank[:40]!r}")
    if session and len(session) > _LONG:
        session = hashlib.sha256(session.encode()).hexdigest()
    return replace(scheduling, data_parallel_rank=None if rank is None else int(rank), session_id=session or "")
