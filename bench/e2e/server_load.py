"""What the server adds: CPU time per streamed token, requests/s, and how /health answers under load.

server_load.py [--streams 1 64 512] [--relay on off] [--long-text] [--tokens N] [--rounds N] [--json FILE]

Starts `fastllm serve` on a tiny random model, so that the server is the cost, and drives it from this process. The
figures per token are CPU times of the server's threads, so that other work on the machine does not count:
  loop     the main thread: Python, the event loop
  relay    the thread that writes streams to their sockets
A probe asks for /health every 20 ms all the while. --relay off lets Python write each event, as without the relay.
--long-text: a text of 20 MB is tokenized meanwhile, again and again (POST /tokenize).
"""

import argparse
import asyncio
import json
import os
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "server"))

from server_support import TINY_ARGS, RunningServer, write_tiny_model

from fastllm_core.bench.report import percentile
from fastllm_core.http_client import HttpClient

LONG_TEXT = "lorem ipsum dolor " * (20_000_000 // 18)
LONG_CONTEXT = 1 << 21  # positions, so that the text is not refused by its length


def thread_cpu(pid: int) -> dict[str, float]:
    """Seconds by thread name; the main thread is "loop"."""
    out: dict[str, float] = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{tid}/stat") as file:
            name, fields = file.read().rsplit(")", 1)
        name = "loop" if tid == str(pid) else name.split("(", 1)[1]
        fields = fields.split()
        out[name] = out.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return out


class Stream:
    """One streamed completion as its client saw it, on a connection of its own: events are counted, not parsed, so that
    the client costs little."""

    def __init__(self, port: int, prompt: list[int], tokens: int):
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True}
        data = json.dumps({**body, "stream_options": {"include_usage": True}}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
        self._ask = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
        self._port = port
        self.ttft: float | None = None
        self.gaps: list[float] = []
        self.events = self.tokens = self.bytes = 0
        self.failed = False

    async def run(self) -> None:
        start = last = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        tail = b""
        try:
            writer.write(self._ask)
            while part := await reader.read(1 << 16):
                now = time.perf_counter()
                self.bytes += len(part)
                events = part.count(b"data: {")
                self.events += events
                if events and self.ttft is None:
                    self.ttft = now - start
                elif events:
                    self.gaps.append(now - last)
                last = now
                tail = (tail + part)[-600:]
            usage = tail.rpartition(b'"completion_tokens":')[2].partition(b",")[0]
            self.tokens = int(usage)
            self.failed = b"[DONE]" not in tail
        except (OSError, ValueError):
            self.failed = True
        finally:
            writer.close()


async def probe(client: HttpClient, stop: asyncio.Event) -> list[float]:
    waits = []
    while not stop.is_set():
        start = time.perf_counter()
        await client.get_json("/health")
        waits.append(time.perf_counter() - start)
        await asyncio.sleep(0.02)
    return waits


async def tokenize(client: HttpClient, stop: asyncio.Event) -> int:
    done = 0
    while not stop.is_set():
        answer = await client.post_json("/tokenize", {"prompt": LONG_TEXT})
        assert answer["count"] >= len(LONG_TEXT)
        done += 1
    return done


async def client_of(port: int, number: int, tokens: int, rounds: int) -> list[Stream]:
    streams = [Stream(port, [5 + number % 300, 6 + number // 300, 7 + n], tokens) for n in range(rounds)]
    for stream in streams:
        await stream.run()
    return streams


async def level(server: RunningServer, clients: int, tokens: int, rounds: int, long_text: bool) -> dict:
    http = HttpClient(server.url)
    stop = asyncio.Event()
    beside = [asyncio.create_task(probe(http, stop))]
    if long_text:
        beside.append(asyncio.create_task(tokenize(http, stop)))
    before, begin = thread_cpu(server.process.pid), time.perf_counter()
    seen = await asyncio.gather(*(client_of(server.port, n, tokens, rounds) for n in range(clients)))
    seconds = time.perf_counter() - begin
    used = {name: value - before.get(name, 0.0) for name, value in thread_cpu(server.process.pid).items()}
    stop.set()
    waits, *texts = await asyncio.gather(*beside)
    streams = [s for of_client in seen for s in of_client]
    made = sum(s.tokens for s in streams) or 1
    events = sum(s.events for s in streams) or 1
    gaps = [gap for s in streams for gap in s.gaps] or [0.0]
    return {
        "streams": clients,
        "requests_s": round(len(streams) / seconds, 1),
        "output_tok_s": round(made / seconds),
        "loop_us_per_token": round(used["loop"] / made * 1e6, 2),
        "relay_us_per_token": round(used.get("fastllm-relay", 0.0) / made * 1e6, 2),
        "loop_and_relay_us_per_event": round((used["loop"] + used.get("fastllm-relay", 0.0)) / events * 1e6, 2),
        "tokens_per_event": round(made / events, 2),
        "ttft_ms": [round(percentile([s.ttft or 0.0 for s in streams], q) * 1e3, 1) for q in (50, 99)],
        "gap_ms": [round(percentile(gaps, q) * 1e3, 2) for q in (50, 99)],
        "health_ms": [round(percentile(waits, q) * 1e3, 1) for q in (50, 99, 100)],
        "long_texts": texts[0] if texts else 0,
        "failed": sum(s.failed for s in streams),
    }


def start(folder: str, relay: str, long_text: bool) -> RunningServer:
    model = pathlib.Path(folder)
    args = [*TINY_ARGS, "--num-gpu-blocks-override", "20000", "--access-log", "off", "--max-num-seqs", "1024"]
    args.append("--stream-relay" if relay == "on" else "--no-stream-relay")
    if long_text:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": LONG_CONTEXT}))
        args += ["--max-model-len", str(LONG_CONTEXT), "--num-gpu-blocks-override", str(LONG_CONTEXT // 16 + 2)]
    return RunningServer(str(model), *args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 512])
    parser.add_argument("--relay", nargs="+", choices=("on", "off"), default=["on"])
    parser.add_argument("--long-text", action="store_true")
    parser.add_argument("--tokens", type=int, help="Per request; by default 40,000 in all, 100 to 1000 each.")
    parser.add_argument("--rounds", type=int, default=1, help="Requests of each client, one after another.")
    parser.add_argument("--json", help="File for the figures, a line each.")
    args = parser.parse_args()
    lines = []
    for relay in args.relay:
        with tempfile.TemporaryDirectory() as folder:
            write_tiny_model(pathlib.Path(folder))
            server = start(folder, relay, args.long_text)
            try:
                asyncio.run(level(server, 8, 50, 1, False))  # warms up
                for streams in args.streams:
                    tokens = args.tokens or max(100, min(1000, 40000 // streams))
                    figures = asyncio.run(level(server, streams, tokens, args.rounds, args.long_text))
                    lines.append(json.dumps({"relay": relay, "tokens": tokens, "rounds": args.rounds, **figures}))
                    print(lines[-1], flush=True)
            finally:
                server.kill()
    if args.json:
        pathlib.Path(args.json).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
