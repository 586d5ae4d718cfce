"""What the server adds: CPU time of its event loop per streamed token, requests/s, and how /health answers under load.

server_load.py [STREAMS ...]: starts `fastllm serve` on a tiny random model, so that the server is the cost, and drives
it from this process. The figure per token is the CPU time of the server's main thread, so that other work on the
machine does not count.
"""

import asyncio
import json
import os
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "server"))

from server_support import TINY_ARGS, RunningServer, write_tiny_model

from fastllm_core.bench.datasets import Sample
from fastllm_core.bench.load import Load, run_load
from fastllm_core.bench.report import percentile, summary
from fastllm_core.http_client import HttpClient


class _Quiet:
    def update(self, n: int) -> None:
        pass


def main_thread_cpu(pid: int) -> float:
    with open(f"/proc/{pid}/task/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def probe(client: HttpClient, stop: asyncio.Event) -> list[float]:
    waits = []
    while not stop.is_set():
        start = time.perf_counter()
        await client.get_json("/health")
        waits.append(time.perf_counter() - start)
        await asyncio.sleep(0.02)
    return waits


async def level(server: RunningServer, streams: int, tokens: int) -> dict:
    client = HttpClient(server.url)
    samples = [Sample([5 + n % 300, 6 + n // 300, 7], tokens) for n in range(streams)]
    load = Load("/v1/completions", "tiny", None, None, 0, {})
    stop = asyncio.Event()
    probing = asyncio.create_task(probe(client, stop))
    before = main_thread_cpu(server.process.pid)
    seen, seconds = await run_load(client, samples, load, _Quiet())
    used = main_thread_cpu(server.process.pid) - before
    stop.set()
    waits = await probing
    figures = summary(seen, seconds, {})
    chunks = sum(len(s.itl) + 1 for s in seen)
    return {
        "streams": streams,
        "output_tok_s": round(figures["output_throughput"]),
        "us_per_token": round(used / figures["output_tokens"] * 1e6, 2),
        "us_per_chunk": round(used / chunks * 1e6, 2),
        "tokens_per_chunk": round(figures["output_tokens"] / chunks, 2),
        "itl_p99_ms": round(figures["itl_ms"]["p99"], 2),
        "health_p99_ms": round(percentile(waits, 99) * 1e3, 1),
        "failed": figures["failed"],
    }


def main() -> None:
    levels = [int(word) for word in sys.argv[1:]] or [1, 64, 512]
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_model(pathlib.Path(folder))
        server = RunningServer(model, *TINY_ARGS, "--num-gpu-blocks-override", "20000", "--access-log", "off")
        try:
            asyncio.run(level(server, 8, 50))  # warms up
            for streams in levels:
                print(json.dumps(asyncio.run(level(server, streams, max(1000, 40000 // streams)))), flush=True)
        finally:
            server.kill()


if __name__ == "__main__":
    main()
