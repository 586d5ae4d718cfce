"""500 requests at once, 30 % cut off by their clients at random moments, 5 % invalid."""

import asyncio
import json
import os
import random

REQUESTS = 500
LENGTHS = (20, 60, 200)


class Client:
    """One HTTP exchange on a connection of its own, over plain sockets."""

    def __init__(self, port: int):
        self._port = port

    async def ask(self, body: dict, cut_after: int | None) -> tuple[int, bytes] | None:
        """Status and body; None when the connection was closed after `cut_after` bytes of the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            data = json.dumps(body).encode()
            head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
            writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            if cut_after is not None:
                if cut_after:
                    await reader.read(cut_after)
                return None
            answer = await reader.read()
        finally:
            writer.close()
        head, _, rest = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), _dechunked(rest) if b"chunked" in head.lower() else rest


def _dechunked(data: bytes) -> bytes:
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        out += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return out


def body_of(n: int, rng: random.Random) -> dict:
    ask = {"prompt": [5 + n % 300, 6 + n // 300, 7], "max_tokens": rng.choice(LENGTHS), "temperature": 0}
    return {**ask, "ignore_eos": True, "return_token_ids": True, "stream": rng.random() < 0.5}


def ids_in(body: dict, answer: bytes) -> list[int]:
    if not body["stream"]:
        return json.loads(answer)["choices"][0]["token_ids"]
    lines = [line[6:] for line in answer.decode().split("\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [i for line in lines for i in json.loads(line)["choices"][0]["token_ids"]]


def rss(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def handles(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def storm(port: int, seed: int) -> list[tuple[dict, str, tuple | None]]:
    rng = random.Random(seed)
    plan = []
    for n in range(REQUESTS):
        body, kind = body_of(n, rng), "whole"
        draw = rng.random()
        if draw < 0.05:
            body, kind = {**body, "prompt": rng.choice([[320], [], [[]], [1.5]])}, "invalid"
        elif draw < 0.35:
            kind = "cut"
        plan.append((body, kind, rng.randrange(0, 3000) if kind == "cut" else None))
    rng.shuffle(plan)
    answers = await asyncio.gather(*(Client(port).ask(body, cut) for body, _, cut in plan))
    return [(body, kind, answer) for (body, kind, _), answer in zip(plan, answers)]


def test_storm(start_server):
    """Every other request is answered right, and nothing is left: no block, no request, no handle, no memory."""
    server = start_server("--num-gpu-blocks-override", "2000", "--access-log", "off")
    for seed in range(10, 16):  # fill pools and caches
        asyncio.run(storm(server.port, seed))
        server.wait_idle()
    memory, files = rss(server.process.pid), handles(server.process.pid)
    for seed in (1, 2):
        kinds = {"whole": 0, "cut": 0, "invalid": 0}
        seen: dict[tuple, list[int]] = {}
        for body, kind, answer in asyncio.run(storm(server.port, seed)):
            kinds[kind] += 1
            if kind == "invalid":
                assert answer[0] == 400
            elif kind == "whole":
                assert answer[0] == 200, answer[1]
                ids = ids_in(body, answer[1])
                assert len(ids) == body["max_tokens"]
                seen[tuple(body["prompt"]), body["max_tokens"]] = ids
        assert min(kinds.values()) > 0
        server.wait_idle()
        for (prompt, length), ids in random.Random(seed).sample(sorted(seen.items()), 20):
            alone = server.complete(list(prompt), length, return_token_ids=True)
            assert alone["choices"][0]["token_ids"] == ids
    assert server.post("/reset_prefix_cache").json() == {"success": True}
    assert handles(server.process.pid) <= files + 1  # the connection that asks
    assert rss(server.process.pid) <= memory * 1.05
    assert server.stop() == 0
