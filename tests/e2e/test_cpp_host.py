"""A C++ host outside this repository: find_package(fastllm), build, run; no Python in its process."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest
from smollm2_support import smollm2_gguf

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("FASTLLM_CPP_BUILD", ROOT / "build" / "dev"))
CLEAN_ENV = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}  # no LD_LIBRARY_PATH, no PYTHONPATH

PROJECT = """\
cmake_minimum_required(VERSION 3.25)
project(outside LANGUAGES CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
find_package(fastllm 0.1 REQUIRED)
add_executable(host example_host.cc every_header.cc)
target_link_libraries(host PRIVATE fastllm::engine)
"""


def call(*command, **options) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command} gave {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory) -> pathlib.Path:
    """An install prefix made from the dev build."""
    assert (BUILD / "CMakeCache.txt").is_file(), f"{BUILD} is not configured; `make test` does it before these tests"
    folder = tmp_path_factory.mktemp("prefix")
    call("cmake", "--build", BUILD, "--target", "engine", "fastllm_worker")
    call("cmake", "--install", BUILD, "--prefix", folder, "--component", "engine")
    return folder


@pytest.fixture(scope="module")
def host(prefix, tmp_path_factory) -> pathlib.Path:
    """The example host, built as an outside project."""
    folder = tmp_path_factory.mktemp("outside")
    shutil.copy(ROOT / "cpp" / "tools" / "example_host.cc", folder)
    headers = sorted(p.name for p in (prefix / "include" / "fastllm").glob("*.h"))
    (folder / "every_header.cc").write_text("".join(f'#include "fastllm/{name}"\n' for name in headers))
    (folder / "CMakeLists.txt").write_text(PROJECT)
    call("cmake", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}", env=CLEAN_ENV)
    assert "torch" not in (folder / "build" / "compile_commands.json").read_text()
    call("cmake", "--build", folder / "build", env=CLEAN_ENV)
    return folder / "build" / "host"


def run_host(host, *arguments) -> subprocess.CompletedProcess:
    command = [str(host), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=CLEAN_ENV, timeout=300)


def test_installed_files(prefix):
    headers = {p.relative_to(prefix / "include").as_posix() for p in (prefix / "include").rglob("*") if p.is_file()}
    assert {"fastllm/engine.h", "fastllm/version.h", "fastllm/fields/sampling_params.def"} <= headers
    assert not [h for h in headers if not h.endswith((".h", ".def"))]
    (library,) = [p for p in (prefix / "lib").rglob("libengine.so.*") if p.is_file() and not p.is_symlink()]
    symbols = call("nm", "-DC", "--defined-only", library).splitlines()
    names = [line.split(" ", 2)[2] for line in symbols if line]
    assert any(n.startswith("fastllm::Engine::Create") for n in names)
    assert any(n.startswith("fastllm::Status::ToString") for n in names)
    assert [n for n in names if not re.match(r"(typeinfo (name )?for |vtable for )?fastllm::", n)] == []
    assert [n for n in names if re.search(r"\b(EngineCore|Scheduler|ops::|runtime::)", n)] == []


def test_ids_equal_the_reference(host, golden):
    prompt = next(p for p in golden if p["name"] == "plain_en")
    done = run_host(host, "--float32", smollm2_gguf(), 48, *prompt["prompt_ids"])
    assert done.returncode == 0, done.stderr
    ids, text = done.stdout.split("\n", 1)
    assert [int(word) for word in ids.split()] == prompt["hf_fp32"]["ids"]
    assert text.startswith(" Paris.\n")


def test_no_python_in_the_process(host, golden):
    assert "libpython" not in call("ldd", host)
    command = [str(host), smollm2_gguf(), "2000", *map(str, golden[0]["prompt_ids"])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=CLEAN_ENV) as process:
        try:
            assert process.stdout.read(1) != ""  # the first id is out: everything it needs is loaded
            maps = pathlib.Path(f"/proc/{process.pid}/maps").read_text()
        finally:
            process.kill()
    assert "libengine.so" in maps
    assert "libc10.so" in maps
    assert "libtorch_cpu.so" not in maps  # 0.3 s and 120 MiB (cpp/docs/adr/0004-c10-alone.md)
    assert "libpython" not in maps


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "usage"),
        (["/nowhere/model.gguf", 4, 1], "/nowhere/model.gguf"),
        (["MODEL", "four", 1], "four"),
        (["MODEL", 4, "1x"], "1x"),
        (["MODEL", 4, 49152], "49152"),
        (["MODEL", 4, -1], "-1"),
        (["MODEL", 0, 1], "max_tokens"),
    ],
)
def test_errors(host, arguments, message):
    done = run_host(host, *[smollm2_gguf() if a == "MODEL" else a for a in arguments])
    assert done.returncode == 1
    assert done.stderr.startswith("example_host: ")
    assert message in done.stderr
