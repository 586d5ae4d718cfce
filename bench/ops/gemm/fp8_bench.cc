// fp8_bench [rows...]: products in 8-bit floats at the shapes of Llama-3.1-8B: cuBLASLt's choices and ours, checked
// against each other (bits against a second run) and timed in graphs over weights that come from memory. Prints the
// best of each kind, and all times to the file that FP8_BENCH_LOG names.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>

#include "bench/ops/gemm/cell.h"
#include "bench/ops/gemm/fp8_product.h"
#include "ops/contract/silu_mul.h"
#include "tests/cuda/support.h"

namespace fastllm::gemm_bench {
namespace {

using cuda_check::Buffer;
using cuda_check::Must;

constexpr double kTensor = 1400e12;  // operations a second

// Operands in 8-bit floats, and their scales.
struct Fp8Cell : Cell {
  Fp8Cell(const Shape& s, int rows_of, cudaStream_t stream) : Cell(s, rows_of, 1, 20) {
    FillFp8(weight.get(), weights * sets, 1, 90.0f, stream);
    FillFp8(x.get(), inputs * sets, 2, 90.0f, stream);
    auto scales = cuda_check::Normal(weight_rows, 3), rows_scales = cuda_check::Normal(rows, 4);
    for (float& v : scales) v = (1.0f + 0.1f * std::tanh(v)) * 1e-3f;
    for (float& v : rows_scales) v = (1.0f + 0.1f * std::tanh(v)) * 1e-3f;
    weight_scale = cuda_check::Upload(scales);
    x_scale = cuda_check::Upload(rows_scales);
  }
  ops::DenseFp8LinearParams Of(int set, bool gated, void* workspace) const {
    ops::DenseFp8LinearParams p;
    p.linear = {out_of(set),
                {reinterpret_cast<uint8_t*>(x_of(set)), x_scale.as<float>()},
                {reinterpret_cast<uint8_t*>(weight_of(set)), weight_scale.as<float>()},
                nullptr,
                rows,
                shape.n,
                shape.k};
    p.gated = gated;
    p.workspace = workspace;
    if (shape.gated && !gated) p.linear.n = weight_rows, p.linear.out = wide.get();
    return p;
  }

  Buffer weight_scale, x_scale;
};

class Program {
 public:
  Program() : workspace_(ops::kDenseWorkspaceBytes) {
    ops::RegisterCudaOps(table_);
    silu_ = *table_.Resolve<ops::SiluMulFn>({ops::OpId::kSiluMul, ops::Device::kCuda, ops::DType::kBF16});
    AddFp8Cublas(variants_);
    AddFp8Stream(variants_);
    AddFp8Dense(variants_);
    workspace_.Zero();
    if (const char* path = std::getenv("FP8_BENCH_LOG")) log_ = std::fopen(path, "w");
  }
  ~Program() {
    if (log_ != nullptr) std::fclose(log_);
  }
  int failures() const { return failures_; }

  void Rows(int rows) {
    for (const Shape& s : kShapes) {
      Fp8Cell c(s, rows, timer_.stream());
      std::map<std::string, std::vector<Timed>> kinds;
      bool first = true;
      for (const Fp8Variant& v : variants_) {
        if (v.gated && !s.gated) continue;
        if (s.gated && !v.gated && v.name != "cublas 0" && v.name.rfind("stream", 0) != 0) continue;
        if (rows < v.least_rows || rows > v.most_rows || !Run(v, c, 0) || !Check(v, c, first)) continue;
        first = false;
        Timed t;
        t.name = v.name;
        timer_.Capture(t, c.floor_us(kTensor), c.sets, [&](int set) { Run(v, c, set); });
        timer_.ReplayFirst(t);
        if (log_ != nullptr) std::fprintf(log_, "%s %d\t%s\t%.2f\n", s.name, rows, v.name.c_str(), t.Median());
        kinds[v.name.substr(0, v.name.find(' '))].push_back(std::move(t));
      }
      Best(c, kinds);
    }
  }

 private:
  bool Run(const Fp8Variant& v, Fp8Cell& c, int set) {
    if (!v.run(c.Of(set, v.gated, workspace_.get()), timer_.stream())) return false;
    if (!c.shape.gated || v.gated) return true;
    ops::SiluMulParams p;
    p.out = c.out_of(set);
    p.gate_up = c.wide.get();
    p.num_tokens = c.rows;
    p.n = c.shape.n;
    silu_(p, {timer_.stream(), 1});
    return true;
  }

  bool Check(const Fp8Variant& v, Fp8Cell& c, bool first) {
    timer_.Wait(v.name);
    c.out.Poison();
    Run(v, c, 0);
    timer_.Wait(v.name);
    if (first) Must(cudaMemcpy(c.expected.get(), c.out.get(), c.outputs * 2, cudaMemcpyDeviceToDevice), "copy");
    const double error = timer_.Differs(c, c.expected.get()).first;
    bool good = error < 8e-3;
    Buffer once(c.outputs * 2);
    Must(cudaMemcpy(once.get(), c.out.get(), c.outputs * 2, cudaMemcpyDeviceToDevice), "copy");
    Run(v, c, 0);
    good = good && timer_.Differs(c, once.get()).second == 0;
    if (log_ != nullptr) std::fprintf(log_, "# %s %d %s: %.2e\n", c.shape.name, c.rows, v.name.c_str(), error);
    if (good) return true;
    ++failures_;
    std::printf("FAILED %s %d %s: %.2e from the first, or other bits\n", c.shape.name, c.rows, v.name.c_str(), error);
    return false;
  }

  // The best of each kind again in turns, so at the same temperature and clock.
  void Best(Fp8Cell& c, std::map<std::string, std::vector<Timed>>& kinds) {
    std::vector<Timed*> turns;
    for (auto& [kind, list] : kinds) {
      std::sort(list.begin(), list.end(), [](Timed& a, Timed& b) { return a.Median() < b.Median(); });
      for (size_t i = 0; i < std::min<size_t>(3, list.size()); ++i) turns.push_back(&list[i]);
    }
    for (Timed* t : turns) t->us.clear();
    for (int round = 0; round < 12; ++round) {
      for (Timed* t : turns) {
        timer_.Replay(*t);
        if (round == 0) t->us.clear();
      }
    }
    std::printf("%-13s %5d floor %8.1f", c.shape.name, c.rows, c.floor_us(kTensor));
    for (Timed* t : turns) std::printf(" | %s %.1f", t->name.c_str(), t->Median());
    std::printf("\n");
    std::fflush(stdout);
    for (auto& [kind, list] : kinds) {
      for (Timed& t : list) cudaGraphExecDestroy(t.graph);
    }
  }

  Timer timer_;
  Buffer workspace_;
  ops::OpTable table_;
  Fp8Variants variants_;
  std::FILE* log_ = nullptr;
  int failures_ = 0;
  ops::SiluMulFn silu_ = nullptr;
};

}  // namespace
}  // namespace fastllm::gemm_bench

int main(int argc, char** argv) {
  try {
    fastllm::gemm_bench::Program program;
    for (int i = 1; i < argc; ++i) program.Rows(std::atoi(argv[i]));
    if (argc < 2) {
      for (const int rows : {1, 8, 32, 64, 128, 192, 256, 384, 512, 1024, 8192}) program.Rows(rows);
    }
    std::printf("%d failures\n", program.failures());
    return program.failures() > 0 ? 1 : 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fp8_bench: %s\n", e.what());
    return 1;
  }
}
