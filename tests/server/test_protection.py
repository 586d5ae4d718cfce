"""Keys, origins, sizes, times, queues: what keeps strangers out and one client from harming another."""

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse

import pytest
from server_support import ENDLESS, ENDLESS_ARGS, events

KEY, OTHER = "first-key", "second-key"
AUTH = {"authorization": f"Bearer {KEY}"}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SHORT = {"prompt": [5, 6], "max_tokens": 2}


@pytest.fixture(scope="module")
def strict(start_server, endless_folder):
    """Every protection at a small size; one request runs at a time and one waits."""
    return start_server(
        *("--api-key", KEY, OTHER, "--allowed-origins", "https://good.example"),
        *("--max-body-bytes", "20000", "--body-timeout-s", "2", "--max-header-bytes", "4096"),
        *("--max-num-seqs", "1", "--max-num-queued-reqs", "1", "--retry-after-s", "7"),
        *("--sse-keep-alive-s", "0.02", "--trust-request-chat-template", "--chat-template-timeout-s", "1"),
        *ENDLESS_ARGS,
        model=endless_folder,
    )


class Raw:
    """A connection that says what it likes."""

    def __init__(self, server):
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=60)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_all(self) -> bytes:
        """Everything until the server closes."""
        out = b""
        while part := self.socket.recv(65536):
            out += part
        return out

    def read_until(self, word: bytes) -> bytes:
        out = b""
        while word not in out:
            part = self.socket.recv(65536)
            assert part, out
            out += part
        return out

    def close(self) -> None:
        self.socket.close()


def post_head(path: str, length: int, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {KEY}", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {length}", *more, "", ""]).encode()


def test_every_route_needs_a_key(strict):
    """A80: each route of openapi.json, and odd spellings of them."""
    routes = strict.get("/openapi.json", headers=AUTH).json()["paths"]
    assert {COMPLETIONS, CHAT, "/v1/models", "/metrics", "/tokenize", "/abort_requests"} <= set(routes)
    free = {"/health", "/ping", "/version"}
    with strict.http() as http:
        for path, methods in routes.items():
            for method in methods:
                for spelled in (path, "/" + path, path + "/", path.upper(), path.replace("s", "%73", 1)):
                    status = http.request(method, strict.url + spelled.replace("{model}", "tiny")).status_code
                    if urllib.parse.unquote(spelled) not in free:
                        assert status == 401, (method, spelled)
        for path in free:
            assert http.get(path).status_code == 200
        assert http.get("/openapi.json").status_code == 401


def test_any_of_the_keys_and_no_other(strict):
    for good in (AUTH, {"authorization": f"bearer {OTHER}"}, {"x-api-key": KEY}):
        assert strict.get("/v1/models", headers=good).status_code == 200
    for bad in ("", "Bearer", f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", KEY, "Bearer é"):
        answer = strict.get("/v1/models", headers={"authorization": bad.encode()})
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "AuthenticationError"
    assert strict.client(api_key=OTHER).models.list().data[0].id == "tiny"


def test_origins(strict, tiny):
    """A85: closed by default; only the named origin otherwise, and never a wildcard."""
    ask = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    with tiny.http() as http:
        assert not [k for k in http.options(COMPLETIONS, headers=ask).headers if k.startswith("access-control")]
        assert not [k for k in http.get("/health", headers=ask).headers if k.startswith("access-control")]
    with strict.http() as http:
        assert "access-control-allow-origin" not in http.options(COMPLETIONS, headers=ask).headers
        good = http.options(COMPLETIONS, headers={**ask, "origin": "https://good.example"})
        assert good.headers["access-control-allow-origin"] == "https://good.example"
        assert "access-control-allow-credentials" not in good.headers


@pytest.mark.parametrize(
    "args",
    [
        ("--allowed-origins", "*", "--allow-credentials"),
        ("--ssl-certfile", "x.pem"),
        ("--ssl-cert-required",),
        ("--port", "70000"),
        ("--access-log", "xml"),
        ("--max-body-bytes", "0"),
        ("--no-such-flag",),
    ],
)
def test_flags_that_make_no_sense(args, tiny_folder):
    done = subprocess.run([sys.executable, "-m", "fastllm_core", "serve", tiny_folder, *args], capture_output=True)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_long_bodies(strict):
    big = {"prompt": [5] * 20_000}
    declared = strict.post(COMPLETIONS, big, headers=AUTH)
    assert declared.status_code == 413
    assert "20000" in declared.json()["error"]["message"]

    def parts():
        yield from (b" " * 1000 for _ in range(50))

    headers = {**AUTH, "content-type": "application/json"}
    with strict.http() as http:
        assert http.post(COMPLETIONS, content=parts(), headers=headers).status_code == 413


def test_slow_bodies_and_heads(strict):
    """A client that sends a byte now and then does not hold a connection for ever."""
    body, nothing, head = Raw(strict), Raw(strict), Raw(strict)
    body.send(post_head(COMPLETIONS, 100) + b'{"prompt"')
    head.send(b"GET /heal")
    assert body.read_until(b"}").startswith(b"HTTP/1.1 408")
    body.close()
    for raw in (nothing, head):
        assert raw.read_all().startswith(b"HTTP/1.1 408")


def test_long_heads(strict):
    for head in (b"GET /" + b"x" * 10_000, b"GET / HTTP/1.1\r\nA: " + b"x" * 10_000):
        raw = Raw(strict)
        raw.send(head)
        assert raw.read_all().startswith(b"HTTP/1.1 431")
    raw = Raw(strict)
    raw.send(b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 5000 + b"\r\n")
    assert raw.read_all()[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 431")


def test_what_is_no_http(strict):
    for junk in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x00" * 100, b"hello\r\n\r\n"):
        raw = Raw(strict)
        raw.send(junk)
        assert raw.read_all().startswith(b"HTTP/1.1 400")
    assert strict.get("/health").status_code == 200


def test_queue_is_bounded(strict):
    """One runs, one waits, the next is told to come back; a stream that waits gets comments meanwhile."""
    endless = {**ENDLESS, "prompt": [5, 6], "stream": True}
    with strict.http(headers=AUTH) as http, http.stream("POST", COMPLETIONS, json=endless) as running:
        lines = running.iter_lines()
        next(lines)
        waiting: list[str] = []
        begun = threading.Event()

        def wait_in_line():
            with (
                strict.http(headers=AUTH) as other,
                other.stream("POST", COMPLETIONS, json={**SHORT, "stream": True}) as r,
            ):
                for line in r.iter_lines():
                    waiting.append(line)
                    begun.set()

        thread = threading.Thread(target=wait_in_line)
        thread.start()
        assert begun.wait(60)
        assert waiting[0] == ": keep-alive"
        with strict.http(headers=AUTH) as third:
            full = third.post(COMPLETIONS, json=SHORT)
        assert full.status_code == 503, full.text
        assert full.headers["retry-after"] == "7"
        assert full.json()["error"]["type"] == "ServiceUnavailableError"
        running.close()
    thread.join(60)
    assert waiting[-2:] == ["data: [DONE]", ""]


def test_request_template_has_a_time_limit(strict):
    """A83: trusted templates are sandboxed, and stopped when they take too long; others go on meanwhile."""
    text = "x" * 3000
    loops = "{% for a in s %}{% for b in s %}{% for c in s %}{% endfor %}{% endfor %}{% endfor %}"
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "chat_template": loops,
        "chat_template_kwargs": {"s": text},
    }
    answer = strict.post(CHAT, body, headers=AUTH)
    assert answer.status_code == 400
    assert "1 s" in answer.json()["error"]["message"]
    for evil in ("{{ ''.__class__.__mro__ }}", "{{ messages.__init__.__globals__ }}", "{{ 'x' * 999999999 }}", "{{"):
        assert strict.post(CHAT, {**body, "chat_template": evil}, headers=AUTH).status_code == 400
    fine = {**body, "chat_template": "{{ messages[0].content }}", "max_tokens": 1, "return_token_ids": True}
    assert len(strict.post(CHAT, fine, headers=AUTH).json()["prompt_token_ids"]) == 2


def test_request_timeout(start_server, endless_folder):
    server = start_server("--request-timeout-s", "1", *ENDLESS_ARGS, model=endless_folder)
    long = {**ENDLESS, "prompt": [5, 6], "stream": True}
    slow = server.post(COMPLETIONS, {**long, "stream": False})
    assert slow.status_code == 504
    assert "1 s" in slow.json()["error"]["message"]
    with server.http() as http, http.stream("POST", COMPLETIONS, json=long) as r:
        got = events(r)
    assert got[-1] == "[DONE]"
    assert got[-2]["error"]["code"] == 504
    server.wait_idle()
    server.kill()


def test_tls(start_server, tmp_path):
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
        + ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )
    server = start_server("--ssl-certfile", cert, "--ssl-keyfile", key)
    assert server.url.startswith("https://")
    with server.http(verify=ssl.create_default_context(cafile=cert)) as http:
        assert http.get("/health").status_code == 200
        with http.stream("POST", COMPLETIONS, json={**SHORT, "stream": True}) as r:
            assert events(r)[-1] == "[DONE]"
    server.kill()


def test_only_one_port_listens(tiny):
    """A82"""
    with open(f"/proc/{tiny.process.pid}/net/tcp") as table:
        inodes = {line.split()[9] for line in table if line.split()[3] == "0A"}
    held = set()
    for fd in os.listdir(f"/proc/{tiny.process.pid}/fd"):
        try:
            held.add(os.readlink(f"/proc/{tiny.process.pid}/fd/{fd}"))
        except FileNotFoundError:
            continue
    assert len({i for i in inodes if f"socket:[{i}]" in held}) == 1


def test_nothing_is_fetched(tiny):
    """A81: parts that name an address are refused, and nobody is asked for them."""
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(0)
        port = trap.getsockname()[1]
        for url in (
            f"http://127.0.0.1:{port}/a",
            f"http://[::1]:{port}",
            f"http://2130706433:{port}",
            "file:///etc/hostname",
        ):
            parts = [
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "video_url", "video_url": {"url": url}},
                {"type": "audio_url", "audio_url": {"url": url}},
                {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                {"type": "file", "file": {"file_id": url}},
            ]
            for part in parts:
                body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
                answer = tiny.post(CHAT, body)
                assert answer.status_code == 400
                assert part["type"] in answer.json()["error"]["message"]
        with pytest.raises(BlockingIOError):
            trap.accept()


def test_long_work_does_not_stop_the_loop(tiny):
    """A44: health answers while long texts are tokenized; the longest wait is bounded by far less than their work."""
    text = "word " * 150_000  # as long as the context could hold, in the best case, is refused; this is tokenized
    stop, waits = threading.Event(), []

    def watch():
        with tiny.http() as http:
            while not stop.is_set():
                start = time.perf_counter()
                assert http.get("/health").status_code == 200
                waits.append(time.perf_counter() - start)

    thread = threading.Thread(target=watch)
    thread.start()
    for _ in range(3):
        assert tiny.post("/tokenize", {"prompt": text}).status_code in (200, 400)
    stop.set()
    thread.join()
    assert len(waits) > 3


def test_access_log_holds_no_content(strict):
    body = {**SHORT, "user": "u-1", "cache_salt": "s3cret-salt"}
    answer = strict.post(COMPLETIONS + "?token=s3cret", body, headers={**AUTH, "x-request-id": "logged-1"})
    assert answer.status_code == 200
    line = json.loads(strict.wait_line("logged-1"))
    assert (line["path"], line["status"], line["user"], line["prompt_tokens"]) == (COMPLETIONS, 200, "u-1", 2)
    log = "\n".join(strict.lines)
    assert "s3cret" not in log
    assert KEY not in log
