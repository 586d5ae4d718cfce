"""Kept answers of /v1/responses, and the items that conversations are made of: messages of text."""

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from starlette.datastructures import QueryParams

from fastllm_core.server.errors import ApiError, bad_request

LOGPROBS = "message.output_text.logprobs"
MAX_PAGE, DEFAULT_PAGE = 100, 20

PAGE_PARAMETERS = [
    {
        "name": "limit",
        "in": "query",
        "description": "Most items of a page.",
        "schema": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": DEFAULT_PAGE},
    },
    {
        "name": "order",
        "in": "query",
        "description": "By their places in the conversation.",
        "schema": {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
    },
    {
        "name": "after",
        "in": "query",
        "description": "The id of an item: those that follow it in this order.",
        "schema": {"type": "string"},
    },
    {
        "name": "include",
        "in": "query",
        "description": f"{LOGPROBS}: those of earlier answers, where they were asked for.",
        "schema": {"type": "array", "items": {"type": "string", "enum": [LOGPROBS]}},
    },
]


class ResponseStore:
    """Answers by id with the items they were made of, the oldest dropped beyond a number; and the tasks of those that
    run in the background."""

    def __init__(self, most: int):
        self._most = most
        self._kept: OrderedDict[str, tuple[dict, list[dict]]] = OrderedDict()
        self.tasks: dict[str, asyncio.Task] = {}

    def put(self, response: dict, items: list[dict]) -> None:
        self._kept[response["id"]] = (response, items)
        self._kept.move_to_end(response["id"])
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def get(self, name: str, param: str = "response_id") -> tuple[dict, list[dict]]:
        if name not in self._kept:
            raise ApiError(404, f"no response with the id {name[:100]!r} is kept", param)
        return self._kept[name]

    def remove(self, name: str) -> None:
        self._kept.pop(name, None)


def check_metadata(metadata: dict) -> None:
    """400 for what OpenAI's metadata cannot hold: texts of at most 512 characters under names of at most 64."""
    for name, value in metadata.items():
        if len(name) > 64:
            raise bad_request(f"a name in metadata must have at most 64 characters, got {len(name)}", "metadata")
        if not isinstance(value, str) or len(value) > 512:
            got = f"{len(value)} characters" if isinstance(value, str) else f"{value!r:.80}"
            where = f"metadata.{name}"
            raise bad_request(f"{where} must be a text of at most 512 characters, got {got}", where)


def new_item_id() -> str:
    return f"msg_{uuid.uuid4().hex}"


def output_part(text: str, logprobs: list[dict]) -> dict:
    """The content of an answer."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def input_items(given: str | list[dict], used_ids: set[str]) -> list[dict]:
    """A request's input as items, each with an id; one that is used already, or in the same list, is made anew."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    used, out = set(used_ids), []
    for n, item in enumerate(given):
        made = _item(item, f"input[{n}]")
        if made["id"] in used:
            made["id"] = new_item_id()
        used.add(made["id"])
        out.append(made)
    return out


def as_messages(items: list[dict]) -> list[dict]:
    """Items as a chat template wants them."""
    return [
        {
            "role": "system" if item["role"] == "developer" else item["role"],
            "content": "\n".join(part["text"] for part in item["content"]),
        }
        for item in items
    ]


def check_query(query: Mapping, known: Sequence[str] = ()) -> None:
    """400 for a parameter of the address that the route does not know."""
    for name in query:
        if name not in known:
            has = f"known: {', '.join(known)}" if known else "this route has none"
            raise bad_request(f"the query parameter {name[:80]!r} is not supported; {has}", name[:80])


def item_page(items: list[dict], query: QueryParams) -> dict:
    """The page that a query asks for (PAGE_PARAMETERS), as OpenAI's lists."""
    check_query(query, ("limit", "order", "after", "include", "include[]"))  # clients write lists either way
    limit, order = query.get("limit", str(DEFAULT_PAGE)), query.get("order", "desc")
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 9 and 1 <= int(limit) <= MAX_PAGE):
        raise bad_request(f"limit must be between 1 and {MAX_PAGE}, got {limit[:80]!r}", "limit")
    if order not in ("asc", "desc"):
        raise bad_request(f"order must be 'asc' or 'desc', got {order[:80]!r}", "order")
    include = [*query.getlist("include"), *query.getlist("include[]")]
    for name in include:
        if name != LOGPROBS:
            raise bad_request(f"include must be {LOGPROBS!r}, got {name[:80]!r}", "include")
    ordered = items if order == "asc" else items[::-1]
    begin = 0
    if "after" in query:
        begin = next((n for n, item in enumerate(ordered, 1) if item["id"] == query["after"]), 0)
        if begin == 0:
            raise bad_request(f"after must be the id of an item of this response, got {query['after'][:80]!r}", "after")
    page = ordered[begin : begin + int(limit)]
    return {
        "object": "list",
        "data": page if include else [_without_logprobs(item) for item in page],
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": begin + len(page) < len(ordered),
    }


def _without_logprobs(item: dict) -> dict:
    content = [{**part, "logprobs": []} if part.get("logprobs") else part for part in item["content"]]
    return {**item, "content": content}


# What this API's own items hold, so that they can be sent back.
_MESSAGE_FIELDS = {"type", "id", "status", "role", "content"}
_PART_FIELDS = {"type", "text", "annotations", "logprobs"}
_STATES = ("in_progress", "completed", "incomplete")


def _check_names(value: dict, known: set[str], where: str) -> None:
    for name in value.keys() - known:
        raise bad_request(f"{where}.{name[:80]} is not supported; known: {', '.join(sorted(known))}", where)


def _item(item: dict, where: str) -> dict:
    kind = item.get("type", "message")
    if kind != "message":
        raise bad_request(f"{where} is an item of type {kind!r:.80}; only messages are supported", where)
    _check_names(item, _MESSAGE_FIELDS, where)
    content, role = item.get("content"), item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise bad_request(f"{where}.role must be user, assistant, system or developer, got {role!r:.80}", where)
    name, status = item.get("id"), item.get("status")
    if not (name is None or (isinstance(name, str) and name)):
        raise bad_request(f"{where}.id must be a text that is not empty, got {name!r:.80}", where)
    if status is not None and status not in _STATES:
        raise bad_request(f"{where}.status must be one of {', '.join(_STATES)}, got {status!r:.80}", where)
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise bad_request(f"{where}.content must be a text or a list of parts", where)
    return {
        "id": name or new_item_id(),
        "type": "message",
        "status": status or "completed",
        "role": role,
        "content": [_part(part, role, where) for part in content],
    }


def _part(part: dict, role: str, where: str) -> dict:
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind not in ("input_text", "output_text", "text") or not isinstance(part.get("text"), str):
        raise bad_request(f"{where} has a part of type {kind!r:.80}; only text is supported", where)
    _check_names(part, _PART_FIELDS, where)
    for name in ("annotations", "logprobs"):
        if not isinstance(part.get(name), (list, type(None))):
            raise bad_request(f"{where}.content.{name} must be a list, got {part[name]!r:.80}", where)
    if role != "assistant":
        return {"type": "input_text", "text": part["text"]}
    made = output_part(part["text"], part.get("logprobs") or [])
    return {**made, "annotations": part.get("annotations") or []}
