// gemm_bench [what] [most rows]: dense bfloat16 products at the shapes of Llama-3.1-8B: cuBLASLt's choices, CUTLASS'
// kernels (where built) and ours. Each variant whose name contains `what` is checked, at odd shapes against float64 and
// at the timed ones against cuBLASLt, then timed in graphs over weights that come from memory; the best few again, in
// turns. Prints the best of each kind, and all times to the file that GEMM_BENCH_LOG names.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <stdexcept>

#include "bench/ops/gemm/cell.h"
#include "bench/ops/gemm/cublas.h"
#include "bench/ops/gemm/variants.h"
#include "ops/contract/silu_mul.h"
#include "tests/cuda/support.h"

namespace fastllm::gemm_bench {
namespace {

using cuda_check::Buffer;
using cuda_check::Must;

constexpr size_t kWorkspace = 64 << 20;
constexpr double kTensor = 790e12;  // operations a second
constexpr int kRows[] = {32, 64, 128, 256, 512, 1024, 8192};

// A variant and what it launches for each set of a cell.
struct Ready : Timed {
  std::vector<Launch> launches;
};

class Program {
 public:
  Program(std::string what, int most_rows) : what_(std::move(what)), most_rows_(most_rows), workspace_(kWorkspace) {
    ops::RegisterCudaOps(table_);
    AddCublas(variants_);
    AddVariants(variants_);
    if (const char* path = std::getenv("GEMM_BENCH_LOG")) log_ = std::fopen(path, "w");
  }
  ~Program() {
    if (log_ != nullptr) std::fclose(log_);
  }

  int Run() {
    for (const bool gated : {false, true}) CheckOdd(gated);
    for (const int rows : kRows) {
      if (rows > most_rows_) break;
      for (const Shape& s : kShapes) TimeCell(s, rows);
    }
    std::printf("%d variants failed\n", failures_);
    return failures_ > 0 ? 1 : 0;
  }

 private:
  bool Wanted(const Variant& v) const {
    return v.name.compare(0, 6, "cublas") == 0 || v.name.find(what_) != std::string::npos;
  }
  void Say(const std::string& line) {
    if (log_ == nullptr) return;
    std::fprintf(log_, "%s\n", line.c_str());
    std::fflush(log_);
  }
  void Fail(const std::string& line) {
    ++failures_;
    std::printf("FAILED %s\n", line.c_str());
    std::fflush(stdout);
  }

  Launch Prepare(const Variant& v, const Product& p) {
    workspace_.Zero();
    return v.prepare(p, workspace_.get(), kWorkspace, timer_.stream());
  }

  // Against float64 on the host.
  void CheckOdd(bool gated) {
    struct Odd {
      int rows, n, k;
    };
    for (const Odd o : {Odd{17, 400, 200}, Odd{130, 1040, 1000}, Odd{300, 2064, 328}}) {
      const auto x = Rounded(size_t{1} * o.rows * o.k, 3), w = Rounded(size_t{1} * o.n * o.k * (gated ? 2 : 1), 4);
      std::vector<double> want(size_t{1} * o.rows * o.n);
      cuda_check::Parallel(o.rows, [&](int64_t t) {
        for (int i = 0; i < o.n; ++i) {
          double sums[2] = {};
          for (int half = 0; half < (gated ? 2 : 1); ++half) {
            const float* row = &w[(size_t{1} * half * o.n + i) * o.k];
            for (int k = 0; k < o.k; ++k) sums[half] += static_cast<double>(x[t * o.k + k]) * row[k];
          }
          want[t * o.n + i] = gated ? sums[0] / (1.0 + std::exp(-sums[0])) * sums[1] : sums[0];
        }
      });
      const Buffer dx = cuda_check::UploadAs(x, ops::DType::kBF16), dw = cuda_check::UploadAs(w, ops::DType::kBF16);
      Buffer out(want.size() * 2 + 256);
      for (const Variant& v : variants_) {
        if (!Wanted(v) || v.gated != gated) continue;
        const std::string text =
            v.name + " at " + std::to_string(o.rows) + " x " + std::to_string(o.n) + " x " + std::to_string(o.k);
        Say("check " + text);
        const Launch launch = Prepare(v, {out.get(), dx.get(), dw.get(), o.rows, o.n, o.k});
        if (!launch) {
          Say("  not taken");
          continue;
        }
        for (int round = 0; round < 2; ++round) {
          out.Poison();
          launch(timer_.stream());
          timer_.Wait(text);
          const double error =
              cuda_check::RelativeError(cuda_check::DownloadAs(out.get(), want.size(), ops::DType::kBF16), want);
          if (!(error < 3e-3)) Fail(text + ": error " + std::to_string(error));
        }
      }
    }
  }
  static std::vector<float> Rounded(size_t n, uint64_t seed) {
    std::vector<float> v = cuda_check::Normal(n, seed, 0.3f);
    cuda_check::Round(v, ops::DType::kBF16);
    return v;
  }

  // The launches of a variant over a cell; empty where it does not take it. cuBLASLt is followed by SiLU-mul.
  std::vector<Launch> Launches(const Variant& v, Cell& c) {
    std::vector<Launch> all;
    for (int set = 0; set < c.sets; ++set) {
      Product p{c.out_of(set), c.x_of(set), c.weight_of(set), c.rows, c.shape.n, c.shape.k};
      if (!c.shape.gated || v.gated) {
        all.push_back(Prepare(v, p));
      } else {
        const ops::SiluMulParams silu = SiluMul(c, p.out);
        p.out = c.wide.get();
        p.n *= 2;
        const Launch product = Prepare(v, p);
        if (!product) return {};
        all.push_back([this, product, silu](cudaStream_t s) {
          product(s);
          silu_mul()(silu, {s, 1});
        });
      }
      if (!all.back()) return {};
    }
    return all;
  }
  ops::SiluMulFn silu_mul() {
    return *table_.Resolve<ops::SiluMulFn>({ops::OpId::kSiluMul, ops::Device::kCuda, ops::DType::kBF16});
  }
  ops::SiluMulParams SiluMul(const Cell& c, void* out) const {
    ops::SiluMulParams p;
    p.out = out;
    p.gate_up = c.wide.get();
    p.num_tokens = c.rows;
    p.n = c.shape.n;
    return p;
  }

  bool CheckCell(const Variant& v, Cell& c, const std::vector<Launch>& launches, bool first) {
    c.out.Poison();
    launches[0](timer_.stream());
    timer_.Wait(v.name);
    if (first) Must(cudaMemcpy(c.expected.get(), c.out.get(), c.outputs * 2, cudaMemcpyDeviceToDevice), "copy");
    const double error = timer_.Differs(c, c.expected.get()).first;
    if (!(error < 6e-3)) {
      Fail(v.name + " " + c.shape.name + " " + std::to_string(c.rows) + " rows: " + std::to_string(error) +
           " from cuBLASLt");
      return false;
    }
    if (v.name.compare(0, 3, "own") != 0) return true;
    Buffer once(c.outputs * 2);
    Must(cudaMemcpy(once.get(), c.out.get(), c.outputs * 2, cudaMemcpyDeviceToDevice), "copy");
    launches[0](timer_.stream());
    if (timer_.Differs(c, once.get()).second > 0) Fail(v.name + ": other bits the second time");
    return true;
  }

  void TimeCell(const Shape& s, int rows) {
    Cell c(s, rows, 2, 12);
    FillRandom(c.weight.get(), c.weights * c.sets, 1, 0.02f, timer_.stream());
    FillRandom(c.x.get(), c.inputs * c.sets, 2, 1.0f, timer_.stream());
    const std::string cell = std::string(s.name) + " rows " + std::to_string(rows);
    std::vector<std::unique_ptr<Ready>> all;
    bool first = true;
    for (const Variant& v : variants_) {
      if (!Wanted(v) || rows < v.least_rows || rows > v.most_rows || (v.gated && !s.gated)) continue;
      if (s.gated && !v.gated && v.name != "cublas 0" && v.name.compare(0, 6, "cublas") != 0) continue;
      Say("time " + v.name + " " + cell);
      auto r = std::make_unique<Ready>();
      r->name = v.name;
      r->launches = Launches(v, c);
      if (r->launches.empty() || !CheckCell(v, c, r->launches, first)) continue;
      first = false;
      timer_.Capture(*r, c.floor_us(kTensor), c.sets, [&](int set) { r->launches[set](timer_.stream()); });
      timer_.ReplayFirst(*r);
      Say(cell + "\t" + v.name + "\t" + std::to_string(r->Median()));
      all.push_back(std::move(r));
    }
    Best(cell, c.floor_us(kTensor), all);
    for (auto& r : all) cudaGraphExecDestroy(r->graph);
  }

  // The best few of each kind again, in turns, 21 times.
  void Best(const std::string& cell, double floor_us, std::vector<std::unique_ptr<Ready>>& all) {
    if (all.empty()) return;
    std::map<std::string, std::vector<Ready*>> kinds;
    for (auto& r : all) {
      const std::string kind = r->name == "cublas 0" ? "first" : r->name.substr(0, r->name.find(' '));
      kinds[kind].push_back(r.get());
    }
    std::vector<Ready*> final;
    for (auto& [kind, list] : kinds) {
      std::sort(list.begin(), list.end(), [](Ready* a, Ready* b) { return a->Median() < b->Median(); });
      if (list.size() > 2) list.resize(2);
      for (Ready* r : list) r->us.clear(), final.push_back(r);
    }
    for (int round = 0; round < 21; ++round) {
      for (Ready* r : final) timer_.Replay(*r);
    }
    const double first = kinds.count("first") ? kinds["first"][0]->Median() : 0.0;
    std::printf("%-22s floor %8.1f  cublas first %8.1f", cell.c_str(), floor_us, first);
    for (auto& [kind, list] : kinds) {
      if (kind == "first") continue;
      Ready* best =
          *std::min_element(list.begin(), list.end(), [](Ready* a, Ready* b) { return a->Median() < b->Median(); });
      std::printf(" | %s %8.1f x%.3f", best->name.c_str(), best->Median(), first / best->Median());
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  std::string what_;
  int most_rows_;
  Timer timer_;
  Buffer workspace_;
  ops::OpTable table_;
  Variants variants_;
  std::FILE* log_ = nullptr;
  int failures_ = 0;
};

}  // namespace
}  // namespace fastllm::gemm_bench

int main(int argc, char** argv) {
  try {
    return fastllm::gemm_bench::Program(argc > 1 ? argv[1] : "", argc > 2 ? std::atoi(argv[2]) : 8192).Run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gemm_bench: %s\n", e.what());
    return 1;
  }
}
