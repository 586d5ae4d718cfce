"""Servers as subprocesses, for the tests and the checks beside them."""

import json
import os
import pathlib
import queue
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading

import httpx
import openai

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


_TLS = ssl.create_default_context()  # made once: it takes longer than most requests


class RunningServer:
    """`fastllm serve` in a process of its own; `lines` are what it has written to standard error."""

    def __init__(self, *args: str, env: dict | None = None, launcher: tuple[str, ...] = ()):
        command = [sys.executable, *launcher, "-m", "fastllm_core", "serve", *args, "--port", "0"]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env={**os.environ, **(env or {})}
        )
        self.lines: list[str] = []
        self._news: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        found = re.search(r"on (https?)://(\S+):(\d+)$", self.wait_line(r"ready in .* on http"))
        self.port = int(found[3])
        self.url = f"{found[1]}://127.0.0.1:{self.port}"

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            self._news.put(self.lines[-1])
        self._news.put(None)

    def wait_line(self, pattern: str, timeout: float = 120) -> str:
        """The next line that matches; fails with the whole log when the process ends without it."""
        while True:
            try:
                line = self._news.get(timeout=timeout)
            except queue.Empty:
                line = None
            assert line is not None, f"no line {pattern!r} in:\n" + "\n".join(self.lines)
            if re.search(pattern, line):
                return line

    def http(self, **options) -> httpx.Client:
        options = {"base_url": self.url, "timeout": 120, "trust_env": False, "verify": _TLS, **options}
        return httpx.Client(**options)

    def get(self, path: str, **options) -> httpx.Response:
        with self.http() as http:
            return http.get(path, **options)

    def post(self, path: str, body=None, **options) -> httpx.Response:
        with self.http() as http:
            return http.post(path, json=body, **options)

    def delete(self, path: str) -> httpx.Response:
        with self.http() as http:
            return http.delete(path)

    def metric(self, name: str, **labels) -> float:
        """The sum of a family's samples with these labels."""
        total = 0.0
        for line in self.get("/metrics").text.splitlines():
            found = re.fullmatch(rf"fastllm_{name}\{{(.*)\}} (\S+)", line)
            if found and all(f'{k}="{v}"' in found[1] for k, v in labels.items()):
                total += float(found[2])
        return total

    def wait_for(self, name: str, wanted: float, **labels) -> None:
        """Returns when a family's sum is at least this. Each look is a request, so that time passes by the server's."""
        for _ in range(20_000):
            if self.metric(name, **labels) >= wanted:
                return
        raise AssertionError(f"{name} is {self.metric(name, **labels)}, never {wanted}")

    def wait_idle(self) -> None:
        """Returns when the engine holds nothing. Each round asks for one token, so that time passes by its steps."""
        for _ in range(5000):
            self.complete([7], 1)
            if self.metric("num_requests_running") == 0 == self.metric("num_requests_waiting"):
                break
        assert self.metric("num_requests_running") == 0
        assert self.metric("kv_cache_usage_perc") == 0
        assert self.get("/load").json() == {"server_load": 0}

    def complete(self, prompt, max_tokens: int, **more) -> dict:
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more}
        answer = self.post("/v1/completions", body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def client(self, **options) -> openai.OpenAI:
        """The official client; every answer is validated against its models."""
        options = {"api_key": "none", "max_retries": 0, "_strict_response_validation": True, **options}
        return openai.OpenAI(base_url=self.url + "/v1", timeout=120, **options)

    def async_client(self, **options) -> openai.AsyncOpenAI:
        options = {"api_key": "none", "max_retries": 0, "_strict_response_validation": True, **options}
        return openai.AsyncOpenAI(base_url=self.url + "/v1", timeout=120, **options)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """The exit status after a signal."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self, timeout: float = 120) -> int:
        return self.process.wait(timeout)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stderr.close()


def write_tiny_model(folder: pathlib.Path, mark_beginning: bool = False, **config) -> str:
    """A 0.1 M parameter Llama for load_format="dummy", with a tokenizer of single bytes and a chat template.

    mark_beginning: texts begin with a special token. config: values of config.json that differ."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    specials = ["<unk>", "<|im_start|>", "<|im_end|>"]
    vocab = {t: i for i, t in enumerate([*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    vocab.update({f"<|pad{i}|>": i for i in range(len(vocab), 320)})
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in specials])
    if mark_beginning:
        tokenizer.post_processor = processors.TemplateProcessing("<unk> $A", special_tokens=[("<unk>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    start = json.loads((pathlib.Path(__file__).parents[1] / "tiny_llama.json").read_text())
    (folder / "config.json").write_text(json.dumps({**start, **config}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": TEMPLATE})
    )
    return str(folder)


TINY_ARGS = ("--load-format", "dummy", "--cpu-threads", "1", "--served-model-name", "tiny", "--max-stop", "8")


ENDLESS_LEN = 1 << 18
ENDLESS_ARGS = ("--num-gpu-blocks-override", str(ENDLESS_LEN // 16 + 1000))
ENDLESS = {"max_tokens": ENDLESS_LEN - 1000, "ignore_eos": True, "temperature": 0}


def open_request(server: RunningServer, body: dict) -> socket.socket:
    """A connection on which a completion has been asked for and nothing was read."""
    data = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    sock.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return sock


def begun(sock: socket.socket) -> socket.socket:
    """Returns when the answer has begun. A stream's does as soon as its request is on its way to the engine."""
    assert sock.recv(12) == b"HTTP/1.1 200"
    return sock


def events(response: httpx.Response) -> list:
    """The data of a stream's events: JSON values, and the word [DONE]."""
    out = []
    for line in response.iter_lines():
        if line.startswith("data: "):
            data = line[6:]
            out.append(data if data == "[DONE]" else json.loads(data))
        else:
            assert line == "" or line.startswith((": ", "event: ")), line
    return out
