#include "support.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>

#include "ops/cpu/fp8.h"

namespace fastllm::cuda_check {

void Must(int cuda_error, const char* what) {
  if (cuda_error == 0) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(static_cast<cudaError_t>(cuda_error)));
}

Buffer::Buffer(size_t bytes) : bytes_(bytes) {
  Must(cudaMalloc(&data_, bytes == 0 ? 16 : bytes), "cudaMalloc");
  Poison();
}
Buffer::~Buffer() { cudaFree(data_); }
Buffer::Buffer(Buffer&& o) noexcept : data_(std::exchange(o.data_, nullptr)), bytes_(o.bytes_) {}
Buffer& Buffer::operator=(Buffer&& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(bytes_, o.bytes_);
  return *this;
}
void Buffer::Poison() { Must(cudaMemset(data_, 0xff, bytes_), "cudaMemset"); }
void Buffer::Zero() { Must(cudaMemset(data_, 0, bytes_), "cudaMemset"); }

void CopyIn(void* device, const void* host, size_t bytes) {
  Must(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "copy to the device");
}
void CopyOut(void* host, const void* device, size_t bytes) {
  Must(cudaDeviceSynchronize(), "kernel");
  Must(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "copy from the device");
}

namespace {

uint16_t ToBits(float x, DType t) {
  return t == DType::kF16 ? std::bit_cast<uint16_t>(__float2half_rn(x))
                          : std::bit_cast<uint16_t>(__float2bfloat16_rn(x));
}

float FromBits(uint16_t bits, DType t) {
  return t == DType::kF16 ? __half2float(std::bit_cast<__half>(bits))
                          : __bfloat162float(std::bit_cast<__nv_bfloat16>(bits));
}

}  // namespace

Buffer UploadAs(const std::vector<float>& v, DType t) {
  if (t == DType::kF32) return Upload(v);
  if (t == DType::kF8E4M3) {
    std::vector<uint8_t> codes(v.size());
    std::transform(v.begin(), v.end(), codes.begin(), ops::cpu::FloatToFp8);
    return Upload(codes);
  }
  std::vector<uint16_t> bits(v.size());
  for (size_t i = 0; i < v.size(); ++i) bits[i] = ToBits(v[i], t);
  return Upload(bits);
}

std::vector<float> DownloadAs(const void* device, size_t n, DType t) {
  if (t == DType::kF32) return Download<float>(device, n);
  if (t == DType::kF8E4M3) {
    const auto codes = Download<uint8_t>(device, n);
    std::vector<float> v(n);
    std::transform(codes.begin(), codes.end(), v.begin(), ops::cpu::Fp8ToFloat);
    return v;
  }
  const auto bits = Download<uint16_t>(device, n);
  std::vector<float> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = FromBits(bits[i], t);
  return v;
}

void Round(std::vector<float>& v, DType t) {
  if (t == DType::kF32) return;
  if (t == DType::kF8E4M3) {
    for (float& x : v) x = ops::cpu::Fp8ToFloat(ops::cpu::FloatToFp8(x));
    return;
  }
  for (float& x : v) x = FromBits(ToBits(x, t), t);
}

std::vector<float> Normal(size_t n, uint64_t seed, float scale) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> d(0.0f, scale);
  std::vector<float> v(n);
  for (float& x : v) x = d(rng);
  return v;
}

const char* Name(DType t) { return t == DType::kF32 ? "f32" : t == DType::kF16 ? "f16" : "bf16"; }

double RelativeError(const std::vector<float>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double diff = 0.0, norm = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    diff += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm > 0.0 ? std::sqrt(diff / norm) : std::sqrt(diff);
}

void Parallel(int64_t n, const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next{0};
  std::vector<std::jthread> threads;
  const unsigned count = std::max(1u, std::thread::hardware_concurrency());
  for (unsigned t = 0; t < count; ++t) {
    threads.emplace_back([&] {
      for (int64_t i = next++; i < n; i = next++) body(i);
    });
  }
}

double Tolerance(DType t) { return t == DType::kF32 ? 1e-6 : t == DType::kF16 ? 4e-4 : 3e-3; }

bool Checks::Has(ops::Backend backend) const {
  return std::any_of(table_.entries().begin(), table_.entries().end(),
                     [backend](const ops::OpEntry& e) { return e.backend == backend; });
}

ops::AnyFn Checks::Find(OpId op, DType t, int32_t head_dim, uint32_t features, ops::Backend backend) {
  auto r = table_.Find({op, ops::Device::kCuda, t, head_dim, features, backend});
  if (!r.ok()) throw std::runtime_error(r.status().ToString());
  used_.insert(r.value()->name);
  return r.value()->fn;
}

void Checks::Expect(const std::string& what, double error, double limit) {
  ++checks_;
  if (error <= limit) return;
  ++failures_;
  std::printf("FAILED %s: error %.3g, limit %.3g\n", what.c_str(), error, limit);
  std::fflush(stdout);
}

std::vector<std::string> Checks::Unused() const {
  std::vector<std::string> out;
  for (const auto& e : table_.entries()) {
    if (used_.count(e.name) == 0) out.push_back(e.name);
  }
  return out;
}

}  // namespace fastllm::cuda_check
