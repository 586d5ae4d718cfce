// SHA-256 (FIPS 180-4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace fastllm {

using Sha256Digest = std::array<unsigned char, 32>;

// Feed the message in any pieces, then take the digest once. One thread.
class Sha256 {
 public:
  Sha256();
  void Update(std::span<const unsigned char> data);
  // Ends the message; the object is of no use afterwards.
  Sha256Digest Finish();

 private:
  std::array<uint32_t, 8> state_;
  std::array<unsigned char, 64> pending_;  // the first size_ % 64 bytes are of the message
  uint64_t size_ = 0;                      // bytes of the message so far
};

Sha256Digest Sha256Hash(std::span<const unsigned char> data);

// The two forms of the compression function, over `blocks` blocks of 64 bytes. Both give the same state; Sha256 takes
// the second where the CPU has the instructions.
void Sha256CompressPlain(uint32_t* state, const unsigned char* data, size_t blocks);
bool Sha256HasInstructions();
// Only when Sha256HasInstructions().
void Sha256CompressInstructions(uint32_t* state, const unsigned char* data, size_t blocks);

}  // namespace fastllm
