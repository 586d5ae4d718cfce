"""What the server adds: CPU time per streamed token, requests/s, and how /health answers under load.

server_load.py [--streams 1 64 512] [--relay on off] [--long-text] [--tokens N] [--rounds N] [--peer URL] [--json FILE]

Starts `fastllm serve` on a tiny random model, so that the server is the cost, and drives it from this process. The
figures per token are CPU times of the server's threads, so that other work on the machine does not count:
  loop     the main thread: Python, the event loop
  relay    the thread that writes streams to their sockets
A probe asks for /health every 20 ms all the while. --relay off lets Python write each event, as without the relay.
--long-text: a prompt of 20 MB is tokenized meanwhile, again and again.
--peer: another server of the same model gets the same load, one after the other at each level; its figures have no
threads. --write FOLDER writes the model for it and ends; --model FOLDER serves it. vLLM, in an environment of its own:
  python -m vllm.entrypoints.openai.api_server --model FOLDER --load-format dummy --served-model-name tiny --port 8100
added_ms: how much later the last stream ends than all of their tokens take in the engine by itself, LLM.generate().
"""

import argparse
import asyncio
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "server"))

from server_support import TINY_ARGS, RunningServer, write_tiny_model

from fastllm_core.bench.report import percentile
from fastllm_core.http_client import HttpClient, HttpError

LONG_TEXT = "lorem ipsum dolor " * (20_000_000 // 18)
PEERS_SHAPE = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}  # heads of 64, as peers want them
LONG_CONTEXT = 1 << 21  # positions, so that the text is not refused by its length


def thread_cpu(pid: int) -> dict[str, float]:
    """Seconds by thread name; the main thread is "loop"."""
    out: dict[str, float] = {}
    if not pid:
        return out
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
        self.seconds = 0.0
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
            self.tokens = int(re.findall(rb'"completion_tokens": ?(\d+)', tail)[-1])
            self.failed = b"[DONE]" not in tail
            self.seconds = last - start
        except (OSError, IndexError):
            self.failed = True
        finally:
            writer.close()


class Probe:
    """Asks for /health every 20 ms, each time on a new connection, from a process of its own, so that it does not wait
    for the client's work."""

    def __init__(self, port: int):
        command = [sys.executable, "-c", _PROBE, str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._process.stdout.readline()  # it has begun

    def stop(self) -> list[float]:
        """Seconds of each answer."""
        return json.loads(self._process.communicate("")[0])


_PROBE = """
import json, select, socket, sys, time
waits = []
print("begun", flush=True)
while not waits or not select.select([sys.stdin], [], [], 0.02)[0]:
    start = time.perf_counter()
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as s:
        s.sendall(b"GET /health HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
        answer = b""
        while part := s.recv(4096):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200"), answer
    waits.append(time.perf_counter() - start)
print(json.dumps(waits))
"""


async def tokenize(client: HttpClient, stop: asyncio.Event) -> int:
    """Prompts of 20 MB, one after another; how many. Each is tokenized and then found to be too long."""
    done = 0
    while not stop.is_set():
        try:
            await client.post_json("/v1/completions", {"prompt": LONG_TEXT, "max_tokens": 1})
        except HttpError as e:
            assert e.status == 400 and "max_model_len" in str(e), e
        done += 1
    return done


async def client_of(port: int, number: int, tokens: int, rounds: int) -> list[Stream]:
    streams = [Stream(port, [5 + number % 300, 6 + number // 300, 7 + n], tokens) for n in range(rounds)]
    for stream in streams:
        await stream.run()
    return streams


@dataclass
class Target:
    """A server to load; `pid` is 0 for a peer, whose threads are not looked at."""

    url: str
    port: int
    pid: int = 0


async def level(target: Target, clients: int, tokens: int, rounds: int, long_text: bool) -> dict:
    http = HttpClient(target.url)
    stop = asyncio.Event()
    probe = Probe(target.port)
    texts = asyncio.create_task(tokenize(http, stop)) if long_text else None
    before, begin = thread_cpu(target.pid), time.perf_counter()
    seen = await asyncio.gather(*(client_of(target.port, n, tokens, rounds) for n in range(clients)))
    seconds = time.perf_counter() - begin
    used = {name: value - before.get(name, 0.0) for name, value in thread_cpu(target.pid).items()}
    stop.set()
    waits = probe.stop()
    long_texts = await texts if texts else 0
    streams = [s for of_client in seen for s in of_client]
    made = sum(s.tokens for s in streams) or 1
    events = sum(s.events for s in streams) or 1
    gaps = [gap for s in streams for gap in s.gaps] or [0.0]
    out = {
        "streams": clients,
        "requests_s": round(len(streams) / seconds, 1),
        "output_tok_s": round(made / seconds),
        "tokens_per_event": round(made / events, 2),
        "ttft_ms": in_ms([s.ttft or 0.0 for s in streams], (50, 99)),
        "gap_ms": in_ms(gaps, (50, 99)),
        "e2e_ms": in_ms([s.seconds for s in streams], (50, 99)),
        "health_ms": in_ms(waits, (50, 99, 100)),
        "long_texts": long_texts,
        "failed": sum(s.failed for s in streams),
    }
    if target.pid:
        relay = used.get("fastllm-relay", 0.0)
        out["loop_us_per_token"] = round(used["loop"] / made * 1e6, 2)
        out["relay_us_per_token"] = round(relay / made * 1e6, 2)
        out["loop_and_relay_us_per_event"] = round((used["loop"] + relay) / events * 1e6, 2)
    return out


def in_ms(seconds: list[float], quantiles: tuple[int, ...]) -> list[float]:
    return [round(percentile(seconds, q) * 1e3, 2) for q in quantiles]


_ENGINE = """
import json, sys, time
from fastllm_core import LLM, SamplingParams
folder, options, levels = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
llm = LLM(folder, **options)
for n, tokens in levels:
    prompts = [{"prompt_token_ids": [5 + i % 300, 6 + i // 300, 7]} for i in range(n)]
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    llm.generate(prompts[:8], params, use_tqdm=False)
    llm.reset_prefix_cache()
    start = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    print(time.perf_counter() - start)
"""


def engine_alone(folder: str, levels: list[tuple[int, int]]) -> list[float]:
    """Seconds for the tokens of each level without a server."""
    options = {"load_format": "dummy", "cpu_threads": 1, "num_gpu_blocks_override": 20000, "max_num_seqs": 1024}
    command = [sys.executable, "-c", _ENGINE, folder, json.dumps(options), json.dumps(levels)]
    return [float(line) for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]


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
    args = arguments()
    if args.write:
        folder = pathlib.Path(args.write)
        folder.mkdir(parents=True, exist_ok=True)
        write_tiny_model(folder, **PEERS_SHAPE)
        return
    levels = [(n, args.tokens or max(100, min(1000, 40000 // n))) for n in args.streams]
    lines = []

    def measure(target: Target, **what) -> None:
        asyncio.run(level(target, 8, 50, 1, False))  # warms up
        for n, (streams, tokens) in enumerate(levels):
            figures = asyncio.run(level(target, streams, tokens, args.rounds, args.long_text))
            if alone and target.pid:
                figures["added_ms"] = round(figures["e2e_ms"][1] - alone[n] * 1e3, 2)
            lines.append(json.dumps({**what, "tokens": tokens, "rounds": args.rounds, **figures}))
            print(lines[-1], flush=True)

    with tempfile.TemporaryDirectory() as made:
        if not args.model:
            write_tiny_model(pathlib.Path(made))
        folder = args.model or made
        alone = engine_alone(folder, levels) if args.rounds == 1 and not args.long_text else []
        for relay in args.relay:
            server = start(folder, relay, args.long_text)
            try:
                measure(Target(server.url, server.port, server.process.pid), relay=relay)
            finally:
                server.kill()
        for url in args.peer:
            measure(Target(url, int(url.rsplit(":", 1)[1])), peer=url)
    if args.json:
        pathlib.Path(args.json).write_text("\n".join(lines) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 512])
    parser.add_argument("--relay", nargs="+", choices=("on", "off"), default=["on"])
    parser.add_argument("--long-text", action="store_true")
    parser.add_argument("--tokens", type=int, help="Per request; by default 40,000 in all, 100 to 1000 each.")
    parser.add_argument("--rounds", type=int, default=1, help="Requests of each client, one after another.")
    parser.add_argument("--model", help="Folder of the model; a fresh one by default.")
    parser.add_argument("--peer", nargs="+", default=[], metavar="URL", help="http://HOST:PORT of other servers.")
    parser.add_argument("--write", metavar="FOLDER", help="Write a model that peers can serve, and end.")
    parser.add_argument("--json", help="File for the figures, a line each.")
    return parser.parse_args()


if __name__ == "__main__":
    main()
