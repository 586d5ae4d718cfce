"""What `chat --url` and `complete` share: streaming an answer of a server to the terminal."""

import asyncio
import os
import sys
import time

from fastllm_core.cli.stream import Answer
from fastllm_core.http_client import HttpClient


def add_remote_flags(parser, required: bool) -> None:
    parser.add_argument("--url", required=required, help="A server, as http://127.0.0.1:8000.")
    parser.add_argument("--api-key", help="Its key; FASTLLM_API_KEY by default.")
    parser.add_argument("--model-name", help="The model to ask for; the server's first one by default.")


class RemoteModel:
    """One model of a server."""

    def __init__(self, args):
        self._client = HttpClient(args.url, args.api_key or os.environ.get("FASTLLM_API_KEY"))
        self.name = args.model_name or asyncio.run(self._client.get_json("/v1/models"))["data"][0]["id"]

    def print_answer(self, path: str, body: dict, answer: Answer) -> None:
        """Streams one request to stdout; `answer` is filled as it goes."""
        asyncio.run(self._print(path, {**body, "model": self.name}, answer))

    async def _print(self, path: str, body: dict, answer: Answer) -> None:
        start = time.perf_counter()
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        events = self._client.stream(path, body)
        try:
            async for event in events:
                answer.total_s = time.perf_counter() - start
                if event.get("usage"):
                    answer.prompt_tokens = event["usage"]["prompt_tokens"]
                    answer.tokens = event["usage"]["completion_tokens"]
                for choice in event["choices"]:
                    text = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
                    if text and not answer.text:
                        answer.first_token_s = answer.total_s
                    answer.text += text
                    answer.finish_reason = choice["finish_reason"] or answer.finish_reason
                    sys.stdout.write(text)
                    sys.stdout.flush()
        finally:
            await events.aclose()
