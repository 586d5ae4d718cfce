"""ServerConfig: everything that may be set about the server, as opposed to the engine."""
# ruff: noqa: RUF009  _option() returns dataclasses.field()

import argparse
import dataclasses
import os
from dataclasses import dataclass, field

from fastllm_core.errors import InvalidArgumentError

MIB = 1 << 20


def _option(default, help_text: str, lo: float | None = None, choices: tuple | None = None):
    """One field of ServerConfig: its default, help, least value and allowed values."""
    metadata = {"help": help_text, "lo": lo, "choices": choices}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class ServerConfig:
    """Options of `fastllm serve`. The flag of a field is its name with dashes. 0 seconds means no limit."""

    host: str = _option("127.0.0.1", "Address to listen on. Loopback only unless another one is given.")
    port: int = _option(8000, "Port to listen on; 0 takes a free one.", lo=0)
    served_model_name: list[str] = _option([], "Names that requests may use; the model as it was given by default.")
    api_key: list[str] = _option(
        [], "Keys, one of which every request must bring, but for /health, /ping, /version and the web page's files."
    )
    allowed_origins: list[str] = _option([], "Origins that browsers may call from; none by default.")
    allowed_methods: list[str] = _option(["GET", "POST", "DELETE"], "Methods for allowed origins.")
    allowed_headers: list[str] = _option(["authorization", "content-type"], "Headers for allowed origins.")
    allow_credentials: bool = _option(False, "Let browsers of allowed origins send cookies.")
    ssl_certfile: str | None = _option(None, "TLS certificate (PEM).")
    ssl_keyfile: str | None = _option(None, "TLS private key (PEM).")
    ssl_ca_certs: str | None = _option(None, "CA file for client certificates.")
    ssl_cert_required: bool = _option(False, "Refuse clients without a certificate of ssl_ca_certs.")
    root_path: str = _option("", "Path prefix that a proxy in front strips.")

    max_body_bytes: int = _option(32 * MIB, "Longest request body.", lo=1)
    max_buffered_bytes: int = _option(512 * MIB, "Bytes of all bodies that are read at one time.", lo=1)
    max_header_bytes: int = _option(64 << 10, "Longest request head: request line and headers.", lo=1024)
    max_json_depth: int = _option(64, "Deepest nesting of a request body.", lo=1)
    max_prompts: int = _option(1024, "Most prompts of one completion request.", lo=1)
    max_choices: int = _option(16384, "Most choices of one request: prompts times n.", lo=1)
    max_stop: int = _option(4, "Most stop strings of one request.", lo=0)
    max_list_items: int = _option(1024, "Most elements of any other list that sets an option.", lo=1)
    max_tokens_cap: int | None = _option(None, "Most tokens that any request gets, whatever it asks for.", lo=1)
    request_timeout_s: float = _option(0.0, "Time for one request, from its body to its last byte.", lo=0)
    body_timeout_s: float = _option(60.0, "Time for a client to send a whole request.", lo=0)
    keep_alive_s: int = _option(5, "Time that an idle connection stays open.", lo=1)
    sse_keep_alive_s: float = _option(15.0, "A stream that says nothing for so long gets a comment line.", lo=0)
    stream_relay: bool = _option(
        True, "Let a thread of the engine write what Python has nothing to add to; off: Python writes every event."
    )
    stream_round_us: int = _option(
        1500,
        "Microseconds in which the news of shorter steps is joined to one event of a stream (with stream_relay).",
        lo=0,
    )
    retry_after_s: int = _option(1, "Retry-After of a refusal for want of room.", lo=0)
    drain_timeout_s: float = _option(30.0, "Time for running requests after SIGTERM; then they are aborted.", lo=0)
    exit_on_engine_death: bool = _option(
        True, "End the process with status 5 when the engine is dead or stalled and is not made anew."
    )

    chat_template: str | None = _option(None, "File with a chat template to use instead of the model's.")
    trust_request_chat_template: bool = _option(False, "Render chat templates that requests bring.")
    chat_template_timeout_s: float = _option(30.0, "Time for rendering one chat template.", lo=0.001)
    response_role: str = _option("assistant", "Role of the answers of chat completions.")
    enable_prompt_tokens_details: bool = _option(False, "Say in usage how many prompt tokens came from the cache.")
    enable_force_include_usage: bool = _option(False, "Give usage in every stream, running and final.")
    enable_response_store: bool = _option(False, "Keep answers of /v1/responses in memory, for GET and for chaining.")
    max_stored_responses: int = _option(1000, "Most answers kept; the oldest go first.", lo=1)
    enable_replica_admin: bool = _option(
        False, "Let clients with a key drain, resume and restart replicas (data_parallel_size > 1); needs api_key."
    )
    return_request_id: bool = _option(True, "Answer with an x-request-id header.")
    metrics_prefix: str = _option(
        "fastllm", "Prefix of the Prometheus families; vllm gives vLLM's names.", choices=("fastllm", "vllm")
    )
    access_log: str = _option("json", "Access log on standard error.", choices=("json", "text", "off"))
    log_requests: str = _option(
        "off", "What is logged of a request: off, params (no content), or full.", choices=("off", "params", "full")
    )
    otlp_traces_endpoint: str | None = _option(None, "OTLP/HTTP endpoint for traces; needs the extra `tracing`.")
    web_ui: bool = _option(True, "Serve the web page at /.")

    def check(self) -> None:
        """InvalidArgumentError for values outside their limits and for combinations that make no sense."""
        for f in dataclasses.fields(self):
            value, lo, choices = getattr(self, f.name), f.metadata["lo"], f.metadata["choices"]
            if lo is not None and value is not None and not value >= lo:
                raise InvalidArgumentError(f"{f.name} must be at least {lo}, got {value}")
            if choices and value not in choices:
                raise InvalidArgumentError(f"{f.name} must be one of {', '.join(choices)}, got {value!r}")
        if self.port > 65535:
            raise InvalidArgumentError(f"port must be at most 65535, got {self.port}")
        if self.allow_credentials and "*" in self.allowed_origins:
            raise InvalidArgumentError("allow_credentials cannot go with allowed_origins '*': name the origins")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise InvalidArgumentError("ssl_certfile and ssl_keyfile go together")
        if self.ssl_cert_required and self.ssl_ca_certs is None:
            raise InvalidArgumentError("ssl_cert_required needs ssl_ca_certs")
        if self.enable_replica_admin and not self.api_key:
            raise InvalidArgumentError("enable_replica_admin needs api_key: it lets clients take replicas away")
        if any(not key for key in self.api_key):
            raise InvalidArgumentError("api_key must not be empty")


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """One flag per field of ServerConfig. Lists take several words or the flag several times."""
    group = parser.add_argument_group("server")
    for f in dataclasses.fields(ServerConfig):
        default = f.default if f.default is not dataclasses.MISSING else f.default_factory()
        shown = " ".join(default) if isinstance(default, list) else default
        shown = {None: "none", "": "none", True: "on", False: "off"}.get(shown, shown) if shown != 0 else shown
        options = {
            "dest": "server:" + f.name,
            "default": argparse.SUPPRESS,
            "help": f"{f.metadata['help']} (default: {shown})".replace("%", "%%"),
        }
        name = "--" + f.name.replace("_", "-")
        if isinstance(default, bool):
            parser_action = argparse.BooleanOptionalAction
            group.add_argument(name, action=parser_action, **options)
        elif isinstance(default, list):
            group.add_argument(name, action="extend", nargs="+", metavar="WORD", **options)
        else:
            kind = float if "float" in str(f.type) else int if "int" in str(f.type) else str
            group.add_argument(name, type=kind, choices=f.metadata["choices"], **options)


def server_config(args: argparse.Namespace) -> ServerConfig:
    """ServerConfig from the flags that were given, and FASTLLM_API_KEY (several keys are separated by commas)."""
    given = {k.removeprefix("server:"): v for k, v in vars(args).items() if k.startswith("server:")}
    config = ServerConfig(**given)
    if not config.api_key and (keys := os.environ.get("FASTLLM_API_KEY")):
        config.api_key = [key for key in keys.split(",") if key]
    config.check()
    return config
