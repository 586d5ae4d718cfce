"""fastllm run-batch: a JSONL file of requests in OpenAI's batch format, answered by an engine of its own."""

import asyncio
import json
import sys
import uuid
from pathlib import Path

from fastllm_core.cli import flags
from fastllm_core.errors import FastLLMError, InvalidArgumentError

_URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


def run(argv: list[str]) -> int:
    parser = flags.FlagParser("run-batch", "Answers a file of requests; a run that was stopped goes on where it was.")
    parser.add_argument("-i", "--input-file", required=True, help="JSONL: custom_id, method, url, body on each line.")
    parser.add_argument("-o", "--output-file", required=True, help="JSONL; lines that are there are not asked again.")
    parser.add_argument("--max-concurrency", type=int, default=256, help="Requests at one time. (default: 256)")
    parser.add_argument("--served-model-name", help="The name that requests use; any by default.")
    flags.add_model_flags(parser, beside_sampling=False)
    args = parser.parse(argv)
    if args.max_concurrency < 1:
        parser.error(f"--max-concurrency must be at least 1, got {args.max_concurrency}")
    options = flags.engine_options(parser, args)
    lines = read_batch(Path(args.input_file))
    done = answered(Path(args.output_file))
    todo = [line for line in lines if line["custom_id"] not in done]
    print(f"{len(lines)} requests, {len(lines) - len(todo)} answered before", file=sys.stderr)
    failed = asyncio.run(_answer_all(todo, options, args)) if todo else 0
    print(f"{len(todo) - failed} answered, {failed} failed", file=sys.stderr)
    return 0


def read_batch(path: Path) -> list[dict]:
    """The lines, checked: an error names its line. Nothing runs before all of them are right in form."""
    out, seen = [], set()
    with open(path, encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            line = _parse(text, f"{path.name}:{number}")
            if line["custom_id"] in seen:
                raise InvalidArgumentError(f"{path.name}:{number}: custom_id {line['custom_id']!r} is there twice")
            seen.add(line["custom_id"])
            out.append(line)
    return out


def _parse(text: str, where: str) -> dict:
    try:
        line = json.loads(text)
    except ValueError as e:
        raise InvalidArgumentError(f"{where}: not JSON: {e}") from None
    if not isinstance(line, dict) or not isinstance(line.get("custom_id"), str):
        raise InvalidArgumentError(f"{where}: needs an object with a custom_id")
    if line.get("method", "POST") != "POST":
        raise InvalidArgumentError(f"{where}: method must be POST, got {line['method']!r:.80}")
    if line.get("url") not in _URLS:
        raise InvalidArgumentError(f"{where}: url must be one of {', '.join(_URLS)}, got {line.get('url')!r:.80}")
    if not isinstance(line.get("body"), dict):
        raise InvalidArgumentError(f"{where}: needs a body, an object")
    return line


def answered(path: Path) -> set[str]:
    """custom_ids of the answers in an output file. What is none is taken out of it and asked again: half a line at its
    end, of a run that died, and failures that are not the request's own fault (a status of 500 or above)."""
    if not path.exists():
        return set()
    data = path.read_bytes()
    lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
    answers = [(line, json.loads(line)) for line in lines if line.strip()]
    kept = [(line, answer) for line, answer in answers if answer["response"]["status_code"] < 500]
    whole = b"".join(line for line, _ in kept)
    if whole != data:
        partial = path.with_name(path.name + ".partial")
        partial.write_bytes(whole)
        partial.replace(path)
    return {answer["custom_id"] for _, answer in kept}


async def _answer_all(todo: list[dict], options: dict, args) -> int:
    from tqdm import tqdm

    from fastllm_core.async_llm import AsyncLLM
    from fastllm_core.server.app import GENERATION_ROUTES
    from fastllm_core.server.config import ServerConfig
    from fastllm_core.server.state import ServerState

    model = options.pop("model")
    llm = AsyncLLM(model, **options)
    try:
        name = args.served_model_name or model
        state = ServerState(llm, name, ServerConfig(access_log="off"))
        apis = {url: kind(state) for url, kind in GENERATION_ROUTES.items()}
        waiting = iter(todo)
        failed = 0
        with open(args.output_file, "a", encoding="utf-8") as out, tqdm(total=len(todo), unit="request") as progress:

            async def worker() -> None:
                nonlocal failed
                for line in waiting:
                    answer = await answer_one(state, apis[line["url"]], line, args.served_model_name is None)
                    failed += answer["response"]["status_code"] != 200
                    out.write(json.dumps(answer, ensure_ascii=False) + "\n")
                    out.flush()
                    progress.update(1)

            await asyncio.gather(*(worker() for _ in range(min(args.max_concurrency, len(todo)))))
        return failed
    finally:
        llm.shutdown()


async def answer_one(state, api, line: dict, any_model: bool) -> dict:
    """One line of the output: OpenAI's shape, with the error of a request that was refused in its response."""
    from fastllm_core.server.errors import ApiError, from_exception
    from fastllm_core.server.generation import start, whole_answer

    body = dict(line["body"])
    if any_model:
        body.pop("model", None)
    status, error, answer = 200, None, None
    try:
        if body.get("stream"):
            raise ApiError(400, "stream is not possible in a batch", "stream")
        plan, writer = await api.plan(body, None)
        run_ = start(state, plan)
        try:
            answer = await whole_answer(run_, writer)
        finally:
            run_.close()
    except (ApiError, FastLLMError) as e:
        failure = from_exception(e)
        status, answer = failure.status, {"error": failure.openai()}
        error = {"code": str(failure.status), "message": failure.message}
    response = {"status_code": status, "request_id": uuid.uuid4().hex, "body": answer}
    return {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": line["custom_id"], "response": response, "error": error}
