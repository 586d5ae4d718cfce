"""The shape of the source, enforced. Each check is a pure function of (path, text); the planted violations at the end
prove that each of them can fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
import budgets  # noqa: E402
import edges  # noqa: E402
import hygiene  # noqa: E402

RULES = edges.parse_rules((HERE / "allowed_edges.txt").read_text())


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def own_files() -> list[Path]:
    """Every source and build file of the project: code, tests, benchmarks, CMake, Makefile."""
    tops = ("cpp", "cuda", "python", "tests", "bench", "third_party", ".ci")
    suffixes = {".h", ".cc", ".cpp", ".def", ".cu", ".cuh", ".py", ".cmake", ".in"}
    found = [p for top in tops for p in (ROOT / top).rglob("*") if p.is_file()]
    named = [p for p in found if p.suffix in suffixes or p.name == "CMakeLists.txt" or p.parent.name == ".ci"]
    return sorted([*named, ROOT / "CMakeLists.txt", ROOT / "Makefile"])


def report(offences: list[str]) -> None:
    assert not offences, "\n" + "\n".join(offences)


def test_edges_have_no_cycle():
    assert edges.cycle(RULES) is None


def test_includes():
    files = edges.source_files(ROOT)
    assert files, "no C++ source found: the check looks in the wrong place"
    report([o for p in files for o in edges.check_text(relative(p), p.read_text(), RULES)])


def test_budgets():
    files = [p for p in own_files() if p.suffix in {".h", ".cc", ".cpp", ".cu", ".cuh", ".py"}]
    sizes = [s for p in files for s in budgets.file_sizes(relative(p), p.read_text())]
    assert any(s.what.startswith("function:") for s in sizes)
    report(budgets.over_budget(sizes, budgets.parse_exceptions((HERE / "exceptions.txt").read_text())))


def test_hygiene():
    report([o for p in own_files() for o in hygiene.check_text(relative(p), p.read_text())])


def test_package_imports_no_torch():
    files = sorted((ROOT / "python").rglob("*.py"))
    report([o for p in files for o in hygiene.eager_imports(relative(p), p.read_text())])


# ---- self-test: planted violations ----


@pytest.mark.parametrize(
    ("path", "line", "word"),
    [
        ("cpp/core/kv/x.cc", '#include "core/request/request.h"', "core/request"),
        ("cpp/core/step/x.h", '#include "core/sched/scheduler.h"', "core/sched"),
        ("cpp/core/sched/x.cc", "#include <ATen/ops/add.h>", "<ATen/ops/add.h>"),
        ("cpp/core/text/x.cc", "#include <nlohmann/json.hpp>", "nlohmann"),
        ("cpp/ops/cpu/x.cc", "#include <torch/types.h>", "torch/types.h"),
        ("cpp/ops/contract/x.h", '#include "ops/table/op_table.h"', "ops/table"),
        ("cpp/runtime/weights/x.cc", "#include <c10/core/Device.h>", "c10"),
        ("cpp/runtime/nn/x.cc", "#include <torch/torch.h>", "banned"),
        ("cpp/runtime/nn/x.cc", "  #  include <ATen/ATen.h>", "banned"),
        ("cpp/runtime/nn/x.cc", "#include <ATen/ops/linear.h>", "ATen/ops/linear.h"),
        ("cpp/runtime/comm/x.cc", "#include <torch/csrc/distributed/c10d/TCPStore.hpp>", "torch/csrc"),
        ("cpp/runtime/nn/x.cc", '#include "runtime/models/registry.h"', "runtime/models"),
        ("cpp/runtime/runner/x.cc", '#include "core/sched/scheduler.h"', "core/sched"),
        ("cpp/runtime/executor/x.cc", '#include "core/engine/engine_core.h"', "core/engine"),
        ("cpp/runtime/executor/x.cc", "#include <pybind11/pybind11.h>", "pybind11"),
        ("cpp/bindings/x.cc", "#include <ATen/ops/add.h>", "ATen"),
        ("cpp/tools/x.cc", '#include "core/base/check.h"', "core/base"),
        ("cpp/include/fastllm/x.h", "#include <unistd.h>", "unistd.h"),
        ("cpp/include/fastllm/x.h", '#include "core/base/ids.h"', "core/base"),
        ("cpp/core/kv/x.cc", '#include "../request/request.h"', "from cpp/"),
        ("cpp/core/newroom/x.cc", '#include "core/base/check.h"', "not in allowed_edges.txt"),
        ("cuda/norm/x.cu", "#include <torch/types.h>", "torch"),
        ("cuda/norm/x.cu", '#include "runtime/tensor/view.h"', "runtime/tensor"),
    ],
)
def test_planted_include(path, line, word):
    (offence,) = edges.check_text(path, f"#include <vector>\n{line}\n" if "cpp" in path else line, RULES)
    assert path in offence
    assert word in offence


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("cpp/core/kv/x.cc", '#include "core/base/check.h"'),
        ("cpp/core/kv/x.cc", '#include "core/kv/block_pool.h"'),
        ("cpp/core/config/x.h", '#include "fastllm/engine.h"'),
        ("cpp/runtime/executor/x.cc", '#include "core/engine/executor.h"'),
        ("cpp/runtime/nn/x.cc", "#include <ATen/core/Tensor.h>"),
        ("cpp/runtime/c10d/x.cc", "#include <torch/csrc/distributed/c10d/TCPStore.hpp>"),
        ("cpp/bindings/x.cc", "#include <pybind11/pybind11.h>"),
        ("cpp/tools/x.cc", '#include "fastllm/engine.h"'),
        ("cuda/norm/x.cu", '#include "ops/contract/rms_norm.h"'),
        ("cuda/launch/x.cu", "#include <cuda_runtime.h>"),
    ],
)
def test_permitted_include(path, line):
    assert edges.check_text(path, line, RULES) == []


def test_planted_cycle():
    rules = edges.parse_rules("a: b\nb: c\nc: a\n")
    assert edges.cycle(rules) == ["a", "b", "c", "a"]
    assert edges.cycle(edges.parse_rules("a: b\nb: a/one.h\n")) is None
    with pytest.raises(ValueError, match="twice"):
        edges.parse_rules("a:\na: b\n")


CPP = """\
// class Comment { int a; };
namespace fastllm {
namespace {
const char* kText = "void f() { class X {";
constexpr int kTable[] = {1, 2, 3};
}  // namespace
template <typename T>
class Box : public Base<T> {
 public:
  explicit Box(int a) : a_(a), b_{a}, c_(a) {
    Run([&] { return a; });
  }
  int size() const { return a_; }
  struct Inner { int x; int y; };
  static constexpr int kLimit = 3;
  using V = std::vector<int>;

 private:
  int a_ = 0;
  std::vector<int> b_{1, 2};
  std::function<void(int, int)> c_;
  std::map<int, std::pair<int, int>> d_, e_;
  mutable std::mutex mu_;
};
struct Point make(int a) noexcept {
  if (a) {
    return {a};
  }
  return {};
}
}  // namespace fastllm
"""


def test_measures_of_cpp():
    sizes = {s.what: s.size for s in budgets.cpp_sizes("x.cc", CPP)}
    assert sizes == {"function:Box": 3, "function:size": 1, "members:Box": 6, "function:make": 6}


def function_of(lines: int) -> str:
    return "namespace a {\nint Long(int a) {\n" + "  ++a;\n" * (lines - 2) + "}\n}\n"


def test_planted_budgets():
    def offences(path, text, accepted=None):
        return budgets.over_budget(budgets.file_sizes(path, text), accepted or {})

    assert offences("x.cc", "\n" * 400) == []
    assert "lines is 401" in offences("x.cc", "\n" * 401)[0]
    assert "lines is 201" in offences("x.h", "\n" * 201)[0]
    assert "lines is 401" in offences("x.py", "\n" * 401)[0]
    assert offences("x.cc", function_of(60)) == []
    assert "function:Long is 61" in offences("x.cc", function_of(61))[0]
    body = "def long():\n" + "    pass\n" * 60
    assert "function:long is 61" in offences("x.py", body)[0]
    assert offences("x.py", "def short():\n" + "    pass\n" * 59) == []
    members = "".join(f"  int m{i}_;\n" for i in range(13))
    assert "members:Big is 13" in offences("x.h", "class Big final {\n" + members + "};\n")[0]
    # An exception covers the size it names and no more, and must be needed.
    assert offences("x.cc", "\n" * 401, {("x.cc", "lines"): 401}) == []
    assert "budget is 401" in offences("x.cc", "\n" * 402, {("x.cc", "lines"): 401})[0]
    assert "no longer needed" in offences("x.cc", "\n", {("x.cc", "lines"): 401})[0]


def test_planted_exceptions():
    assert budgets.parse_exceptions("# c\na/b.cc lines 500 generated table\n") == {("a/b.cc", "lines"): 500}
    with pytest.raises(ValueError, match="hard limit"):
        budgets.parse_exceptions("a/b.cc lines 801 too much\n")
    with pytest.raises(ValueError, match="reason"):
        budgets.parse_exceptions("a/b.cc lines 500\n")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("cpp/core/kv/x.cc", "  // TO" + "DO: later"),
        ("python/x.py", "# FIX" + "ME"),
        ("Makefile", "# HA" + "CK around"),
        ("tests/CMakeLists.txt", "# fastllm_test(core_test SOURCES a.cc)"),
        ("tests/CMakeLists.txt", "  #add_subdirectory(core)"),
        ("tests/core/x.cc", "// TEST" + "(Pool, Frees) {"),
        ("tests/core/x.cc", "GTEST_" + 'SKIP() << "no";'),
        ("tests/core/x.cc", "TEST(Pool, DIS" + "ABLED_Frees) {"),
        ("tests/x.py", "# def test_" + "pool():"),
        ("tests/x.py", "@pytest.mark." + "skip"),
    ],
)
def test_planted_hygiene(path, line):
    assert len(hygiene.check_text(path, "fine\n" + line + "\n")) == 1


def test_planted_eager_import():
    assert hygiene.eager_imports("x.py", "import torch\n")
    assert hygiene.eager_imports("x.py", "try:\n    from torch.nn import functional\nexcept ImportError:\n    pass\n")
    assert hygiene.eager_imports("x.py", "class A:\n    import torch.cuda\n")
    lazy = "if TYPE_CHECKING:\n    import torch\ndef f():\n    import torch\n"
    assert hygiene.eager_imports("x.py", lazy) == []
    assert hygiene.eager_imports("x.py", "import torchlike\nfrom . import torch_free\n") == []
