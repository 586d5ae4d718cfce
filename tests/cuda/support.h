// What the CUDA checks share: device memory, data in the three types, the list of failures.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "ops/table/op_table.h"

namespace fastllm::cuda_check {

using ops::DType;
using ops::OpId;

// Throws std::runtime_error with `what` when a CUDA call failed (its cudaError_t).
void Must(int cuda_error, const char* what);

// Device memory, freed at the end. New memory is filled with 0xff bytes: a NaN in every type.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(Buffer&& o) noexcept;
  Buffer& operator=(Buffer&& o) noexcept;

  void* get() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }
  void Poison();
  void Zero();

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

void CopyIn(void* device, const void* host, size_t bytes);
void CopyOut(void* host, const void* device, size_t bytes);

template <typename T>
Buffer Upload(const std::vector<T>& v) {
  Buffer b(v.size() * sizeof(T));
  CopyIn(b.get(), v.data(), v.size() * sizeof(T));
  return b;
}

template <typename T>
std::vector<T> Download(const void* device, size_t n) {
  std::vector<T> v(n);
  CopyOut(v.data(), device, n * sizeof(T));
  return v;
}

// Host float32 <-> device memory of type t. Round() is what Upload keeps of a value.
Buffer UploadAs(const std::vector<float>& v, DType t);
std::vector<float> DownloadAs(const void* device, size_t n, DType t);
void Round(std::vector<float>& v, DType t);

std::vector<float> Normal(size_t n, uint64_t seed, float scale = 1.0f);
const char* Name(DType t);

// ||a - b|| / ||b||; NaN and missing elements never pass.
double RelativeError(const std::vector<float>& a, const std::vector<double>& b);

// body(i) for i in [0, n), over the processor's threads.
void Parallel(int64_t n, const std::function<void(int64_t)>& body);

// What is wanted of one type: relative error of a result rounded to it once.
double Tolerance(DType t);

class Checks {
 public:
  Checks(bool small_shapes, bool tiny_shapes) : small(small_shapes), tiny(tiny_shapes) { ops::RegisterCudaOps(table_); }

  // The CUDA function of an op; remembers that its entry was used.
  template <typename Fn>
  Fn Get(OpId op, DType t, int32_t head_dim = 0, uint32_t features = 0, ops::Backend backend = ops::Backend::kAny) {
    return reinterpret_cast<Fn>(Find(op, t, head_dim, features, backend));
  }
  // Whether this build has an entry of the backend.
  bool Has(ops::Backend backend) const;
  void Expect(const std::string& what, double error, double limit);
  void ExpectTrue(const std::string& what, bool ok) { Expect(what, ok ? 0.0 : 1.0, 0.0); }
  // Entries of the table that no check used.
  std::vector<std::string> Unused() const;

  int checks() const { return checks_; }
  int failures() const { return failures_; }
  const bool small;
  const bool tiny;  // for racecheck: few rows of few shapes, where a group has such; small as well

 private:
  ops::AnyFn Find(OpId op, DType t, int32_t head_dim, uint32_t features, ops::Backend backend);

  ops::OpTable table_;
  std::set<std::string> used_;
  int checks_ = 0;
  int failures_ = 0;
};

void CheckRows(Checks& c);
void CheckRope(Checks& c);
void CheckPlan(Checks& c);
void CheckAttention(Checks& c);
void CheckSanitized(Checks& c);  // attention in a few seconds under a sanitizer
void CheckSample(Checks& c);
void CheckStep(Checks& c);
void CheckFusedLinear(Checks& c);
void CheckFp8(Checks& c);
void CheckDenseLinear(Checks& c);
void CheckPeers(Checks& c);

inline constexpr DType kAllTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

}  // namespace fastllm::cuda_check
