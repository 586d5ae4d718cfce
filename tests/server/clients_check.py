"""lm-eval and guidellm against the server: clients_check.py BIN [SECONDS], where BIN is the folder of their programs.

Not among the tests that `make test` runs, for their packages are large; `make test-clients` installs them into an
environment of their own and runs this. A small task of local data goes through lm-eval's local-completions (generated
text, and log probabilities of choices through echo) and local-chat-completions; guidellm sends load for SECONDS.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from server_support import TINY_ARGS, RunningServer, write_tiny_model

QUESTIONS = [
    ("The capital of France is", " Paris", [" Paris", " bread", " seven", " green"]),
    ("Water freezes at zero degrees", " Celsius", [" Celsius", " banana", " Monday", " loudly"]),
    ("The opposite of hot is", " cold", [" cold", " table", " seven", " Paris"]),
    ("One, two, three,", " four", [" four", " apple", " blue", " run"]),
    ("The sun rises in the", " east", [" east", " soup", " shoe", " idea"]),
    ("A dog has four", " legs", [" legs", " songs", " moons", " laws"]),
]
_COMMON = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
doc_to_text: "{{{{question}}}}"
"""
_GENERATE = """output_type: generate_until
doc_to_target: "{{answer.strip()}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 12, do_sample: false}
filter_list:
  - name: first_word
    filter:
      - {function: regex, regex_pattern: "([A-Za-z]+)"}
      - {function: take_first}
metric_list:
  - metric: exact_match
"""
_CHOOSE = """output_type: multiple_choice
doc_to_target: "{{gold}}"
doc_to_choice: "{{choices}}"
target_delimiter: ""
metric_list:
  - metric: acc
"""


def write_tasks(folder: pathlib.Path) -> None:
    data = folder / "questions.jsonl"
    rows = [{"question": q, "answer": a, "choices": c, "gold": c.index(a)} for q, a, c in QUESTIONS]
    data.write_text("\n".join(map(json.dumps, rows)) + "\n")
    for name, rest in (("local_generate", _GENERATE), ("local_choose", _CHOOSE)):
        (folder / f"{name}.yaml").write_text(_COMMON.format(name=name, data=data).lstrip() + rest)


def lm_eval(program: str, folder: pathlib.Path, backend: str, task: str, *options: str, **model_args) -> dict:
    """The results of one task; fails when the program does."""
    out = folder / f"out-{backend}-{task}"
    given = ",".join(f"{k}={v}" for k, v in model_args.items())
    command = [program, "--model", backend, "--model_args", given, "--tasks", task, "--include_path", str(folder)]
    env = {**os.environ, "OPENAI_API_KEY": "none", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    env["HF_HOME"] = str(folder / "hf")
    done = subprocess.run([*command, "--output_path", str(out), *options], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = list(out.rglob("results*.json"))
    assert found, done.stdout[-2000:]
    return json.loads(found[0].read_text())["results"][task]


def check_lm_eval(program: str, folder: pathlib.Path, server: RunningServer, tiny: RunningServer, tiny_folder: str):
    write_tasks(folder)
    plain = {"num_concurrent": 4, "tokenized_requests": False, "tokenizer_backend": "None", "max_retries": 1}
    results = {
        "local-completions generate": lm_eval(
            program,
            folder,
            "local-completions",
            "local_generate",
            model="smollm2",
            base_url=server.url + "/v1/completions",
            **plain,
        ),
        "local-chat-completions generate": lm_eval(
            program,
            folder,
            "local-chat-completions",
            "local_generate",
            "--apply_chat_template",
            model="smollm2",
            base_url=server.url + "/v1/chat/completions",
            **plain,
        ),
        # The choices' log probabilities need the tokenizer on the client's side, which the tiny model has as a folder.
        "local-completions choose": lm_eval(
            program,
            folder,
            "local-completions",
            "local_choose",
            model="tiny",
            base_url=tiny.url + "/v1/completions",
            tokenizer=tiny_folder,
            num_concurrent=4,
            max_length=1024,
        ),
    }
    for name, result in results.items():
        print(name, {k: v for k, v in result.items() if isinstance(v, float)})
        assert any(isinstance(v, float) for v in result.values()), result
    assert results["local-completions generate"]["exact_match,first_word"] > 0.5


def check_guidellm(program: str, folder: pathlib.Path, tiny: RunningServer, tiny_folder: str, seconds: int) -> None:
    out = folder / "guidellm.json"
    command = [program, "run", "--backend", f"kind=openai_http,target={tiny.url},model=tiny"]
    command += ["--profile", "kind=concurrent,streams=16", "--constraint", f"kind=max_duration,seconds={seconds}"]
    command += ["--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=64"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={tiny_folder}", "--output", f"kind=json,path={out}"]
    command += ["--disable-console-interactive"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    totals = json.loads(out.read_text())["benchmarks"][0]["metrics"]["request_totals"]
    print("guidellm", seconds, "s:", totals)
    assert totals["successful"] > 0
    assert totals["errored"] == 0


def main() -> None:
    programs = pathlib.Path(sys.argv[1]).resolve()
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 30
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "model").mkdir()
        tiny_folder = write_tiny_model(folder / "model")
        tiny = RunningServer(tiny_folder, *TINY_ARGS, "--access-log", "off")
        server = RunningServer("smollm2", "--max-model-len", "1024", "--access-log", "off")
        try:
            check_lm_eval(str(programs / "lm_eval"), folder, server, tiny, tiny_folder)
            check_guidellm(str(programs / "guidellm"), folder, tiny, tiny_folder, seconds)
            tiny.wait_idle()
        finally:
            tiny.kill()
            server.kill()
    print("4 passed, 0 failed")


if __name__ == "__main__":
    main()
