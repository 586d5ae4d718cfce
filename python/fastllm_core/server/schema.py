"""Fields of request bodies: one table says what a field may hold, and the same table makes the OpenAPI description."""

import math
from dataclasses import dataclass

from fastllm_core._C import SamplingParams, unknown_option_message
from fastllm_core.errors import FastLLMError
from fastllm_core.server.errors import ApiError, bad_request
from fastllm_core.vllm_keywords import SAMPLING_STATEMENTS

_PYTHON_TYPES = {"string": str, "boolean": bool, "object": dict, "array": list}


def field(kind: str | list[str], description: str = "", **more) -> dict:
    """A JSON Schema for one field; null is always allowed and means absent."""
    kinds = [kind] if isinstance(kind, str) else list(kind)
    out = {"type": [*kinds, "null"], **more}
    if description:
        out["description"] = description
    return out


def _is(kind: str, value) -> bool:
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, _PYTHON_TYPES[kind])


def check_value(name: str, value, schema: dict) -> None:
    """400 when the value is not what the schema says; null passes."""
    kinds = [k for k in schema.get("type", []) if k != "null"]
    if value is None or not kinds:
        return
    if not any(_is(k, value) for k in kinds):
        raise bad_request(f"{name} must be {' or '.join(kinds)}, got {_shown(value)}", name)
    if isinstance(value, float) and not math.isfinite(value):
        raise bad_request(f"{name} must be a finite number, got {value}", name)
    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(repr(v) for v in schema["enum"] if v is not None)
        raise bad_request(f"{name} must be one of {allowed}, got {_shown(value)}", name)
    if "minimum" in schema and _is("number", value) and value < schema["minimum"]:
        raise bad_request(f"{name} must be at least {schema['minimum']}, got {_shown(value)}", name)
    if isinstance(value, dict) and len(value) > schema.get("maxProperties", len(value)):
        raise bad_request(f"{name} must have at most {schema['maxProperties']} entries, got {len(value)}", name)
    if isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            raise bad_request(f"{name} must have at most {schema['maxItems']} elements, got {len(value)}", name)
        if schema.get("items"):
            for n, item in enumerate(value):
                check_value(f"{name}[{n}]", item, schema["items"])


def _shown(value) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


@dataclass(frozen=True)
class Statement:
    """A field of the API that this version has no machinery for: the values that state what is the case anyway."""

    values: tuple
    fact: str

    def check(self, name: str, value) -> None:
        if not any(type(value) is type(v) and value == v for v in self.values) and not self._equal_number(value):
            can = " or ".join("null" if v is None else repr(v) for v in self.values)
            raise bad_request(f"{name}={_shown(value)} is not supported: {self.fact}; it can only be {can}", name)

    def _equal_number(self, value) -> bool:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and any(value == v for v in self.values if not isinstance(v, bool))


class RequestFields:
    """The fields of one route.

    own: what the route itself reads, as JSON Schemas. sampling: names of SamplingParams' fields that the route takes;
    the list is made from SamplingParams.fields(), so a field that the engine learns is taken without a change here.
    statements: what is refused, except for values that are true anyway. Anything else is unknown: 400.
    """

    def __init__(self, own: dict[str, dict], statements: dict[str, Statement], without: frozenset[str], limits):
        self.sampling = {f.name: f for f in SamplingParams.fields() if f.name not in without and f.name not in own}
        self.own = own
        known = {f.name for f in SamplingParams.fields()}
        inherited = {k: Statement(*s) for k, s in SAMPLING_STATEMENTS.items()} if self.sampling else {}
        merged = {**{k: Statement((None, *s.values), s.fact) for k, s in inherited.items()}, **statements}
        self.statements = {k: s for k, s in merged.items() if k not in own and (k not in known or k in without)}
        self._schemas = {name: self._sampling_schema(name, limits) for name in self.sampling}

    def check(self, body: dict) -> dict:
        """The body without its nulls; ApiError 400 for a field that is wrong, not supported or unknown."""
        out = {}
        for name, value in body.items():
            if name in self.own:
                check_value(name, value, self.own[name])
            elif name in self.sampling:
                check_value(name, value, self._schemas[name])
            elif name in self.statements:
                self.statements[name].check(name, value)
                continue
            else:
                known = sorted([*self.own, *self.sampling, *self.statements])
                message = unknown_option_message(str(name)[:80], known).replace("unknown option", "unknown field", 1)
                raise bad_request(message, str(name)[:80])
            if value is not None:
                out[name] = value
        return out

    def sampling_params(self, start: SamplingParams, fields: dict, made: dict) -> SamplingParams:
        """`start` with checked fields and with values that the route made of others; an error names the field."""
        params = start.clone()
        for name, value in {**{k: v for k, v in fields.items() if k in self.sampling}, **made}.items():
            try:
                setattr(params, name, _converted(name, value))
            except (FastLLMError, TypeError, ValueError) as e:
                raise bad_request(str(e), name) from None
        return params

    def openapi(self, required: list[str]) -> dict:
        """The schema of the body."""
        properties = {**self.own, **self._schemas}
        for name, statement in self.statements.items():
            properties[name] = {"enum": list(statement.values), "description": f"Not supported: {statement.fact}."}
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def _sampling_schema(self, name: str, limits) -> dict:
        if name == "stop":
            items = {"type": ["string"]}
            return field(["string", "array"], self.sampling[name].help, items=items, maxItems=limits.max_stop)
        return _schema_of(self.sampling[name], limits.max_list_items)


def _schema_of(described, max_items: int) -> dict:
    kind, more = described.type, {}
    if kind.startswith("map[") or kind == "json":
        return field("object", described.help, maxProperties=max_items)
    if kind.startswith("list[list["):
        return field("array", described.help, items={"type": ["array"]}, maxItems=max_items)
    if kind.startswith("list["):
        item = "string" if "string" in kind else "number" if "float" in kind else "integer"
        return field("array", described.help, items={"type": [item]}, maxItems=max_items)
    if kind in ("int32", "int64", "float"):
        for key, bound in (("minimum", described.lo), ("maximum", described.hi)):
            if bound is not None and math.isfinite(bound):
                more[key] = bound if kind == "float" else int(bound)
        if more.get("maximum") is not None:
            del more["maximum"]  # the engine's own message names it
        if described.lo_open and "minimum" in more:
            del more["minimum"]
        return field("number" if kind == "float" else "integer", described.help, **more)
    if kind in ("bool", "string"):
        if described.choices:
            more["enum"] = [*described.choices, None]
        return field("boolean" if kind == "bool" else "string", described.help, **more)
    return {"description": described.help}  # the binding checks it


def _converted(name: str, value):
    """JSON values as the binding wants them."""
    if name == "stop" and isinstance(value, str):
        return [value]
    if name == "seed" and value == -1:
        return None  # -1 is "no seed" in vLLM's API
    return value


def missing(name: str) -> ApiError:
    return bad_request(f"the field {name!r} is required", name)
