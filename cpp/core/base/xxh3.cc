#include "core/base/xxh3.h"

#include <bit>
#include <cstddef>
#include <cstring>

namespace fastllm {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read in the byte order of the machine");

constexpr uint64_t kPrime32x1 = 0x9E3779B1u;
constexpr uint64_t kPrime32x2 = 0x85EBCA77u;
constexpr uint64_t kPrime32x3 = 0xC2B2AE3Du;
constexpr uint64_t kPrime64x1 = 0x9E3779B185EBCA87ull;
constexpr uint64_t kPrime64x2 = 0xC2B2AE3D27D4EB4Full;
constexpr uint64_t kPrime64x3 = 0x165667B19E3779F9ull;
constexpr uint64_t kPrime64x4 = 0x85EBCA77C2B2AE63ull;
constexpr uint64_t kPrime64x5 = 0x27D4EB2F165667C5ull;
constexpr uint64_t kPrimeMx1 = 0x165667919E3779F9ull;
constexpr uint64_t kPrimeMx2 = 0x9FB21C651E98DF25ull;

constexpr size_t kSecretSize = 192;
constexpr size_t kSecretSizeMin = 136;
constexpr size_t kStripe = 64;
constexpr size_t kLanes = 8;
constexpr size_t kStripesPerBlock = (kSecretSize - kStripe) / 8;

// The default secret of the specification.
constexpr unsigned char kSecret[kSecretSize] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
    0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
    0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
    0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
    0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
    0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
    0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16,
    0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

uint32_t Read32(const unsigned char* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

uint64_t Read64(const unsigned char* p) {
  uint64_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

uint32_t Swap32(uint32_t v) { return __builtin_bswap32(v); }
uint64_t Swap64(uint64_t v) { return __builtin_bswap64(v); }

__extension__ using Wide = unsigned __int128;

Xxh3Digest Multiply(uint64_t a, uint64_t b) {
  const Wide product = Wide{a} * b;
  return {static_cast<uint64_t>(product), static_cast<uint64_t>(product >> 64)};
}

uint64_t MultiplyFold(uint64_t a, uint64_t b) {
  const Xxh3Digest product = Multiply(a, b);
  return product.lo ^ product.hi;
}

uint64_t Avalanche(uint64_t h) {
  h = (h ^ (h >> 37)) * kPrimeMx1;
  return h ^ (h >> 32);
}

uint64_t Avalanche64(uint64_t h) {  // the final mix of XXH64
  h = (h ^ (h >> 33)) * kPrime64x2;
  h = (h ^ (h >> 29)) * kPrime64x3;
  return h ^ (h >> 32);
}

Xxh3Digest Hash0(uint64_t seed) {
  return {Avalanche64(seed ^ Read64(kSecret + 64) ^ Read64(kSecret + 72)),
          Avalanche64(seed ^ Read64(kSecret + 80) ^ Read64(kSecret + 88))};
}

Xxh3Digest Hash1To3(const unsigned char* in, size_t size, uint64_t seed) {
  const uint32_t lo =
      (uint32_t{in[0]} << 16) | (uint32_t{in[size >> 1]} << 24) | in[size - 1] | static_cast<uint32_t>(size << 8);
  const uint32_t hi = std::rotl(Swap32(lo), 13);
  const uint64_t flip_lo = uint64_t{Read32(kSecret) ^ Read32(kSecret + 4)} + seed;
  const uint64_t flip_hi = uint64_t{Read32(kSecret + 8) ^ Read32(kSecret + 12)} - seed;
  return {Avalanche64(lo ^ flip_lo), Avalanche64(hi ^ flip_hi)};
}

Xxh3Digest Hash4To8(const unsigned char* in, size_t size, uint64_t seed) {
  seed ^= uint64_t{Swap32(static_cast<uint32_t>(seed))} << 32;
  const uint64_t word = Read32(in) + (uint64_t{Read32(in + size - 4)} << 32);
  const uint64_t flip = (Read64(kSecret + 16) ^ Read64(kSecret + 24)) + seed;
  Xxh3Digest m = Multiply(word ^ flip, kPrime64x1 + (size << 2));
  m.hi += m.lo << 1;
  m.lo ^= m.hi >> 3;
  m.lo = (m.lo ^ (m.lo >> 35)) * kPrimeMx2;
  m.lo ^= m.lo >> 28;
  m.hi = Avalanche(m.hi);
  return m;
}

Xxh3Digest Hash9To16(const unsigned char* in, size_t size, uint64_t seed) {
  const uint64_t flip_lo = (Read64(kSecret + 32) ^ Read64(kSecret + 40)) - seed;
  const uint64_t flip_hi = (Read64(kSecret + 48) ^ Read64(kSecret + 56)) + seed;
  const uint64_t lo = Read64(in);
  uint64_t hi = Read64(in + size - 8);
  Xxh3Digest m = Multiply(lo ^ hi ^ flip_lo, kPrime64x1);
  m.lo += uint64_t{size - 1} << 54;
  hi ^= flip_hi;
  m.hi += hi + (hi & 0xFFFFFFFFu) * (kPrime32x2 - 1);
  m.lo ^= Swap64(m.hi);
  Xxh3Digest h = Multiply(m.lo, kPrime64x2);
  h.hi += m.hi * kPrime64x2;
  return {Avalanche(h.lo), Avalanche(h.hi)};
}

uint64_t Mix16(const unsigned char* in, const unsigned char* secret, uint64_t seed) {
  return MultiplyFold(Read64(in) ^ (Read64(secret) + seed), Read64(in + 8) ^ (Read64(secret + 8) - seed));
}

void Mix32(Xxh3Digest* acc, const unsigned char* a, const unsigned char* b, const unsigned char* secret,
           uint64_t seed) {
  acc->lo = (acc->lo + Mix16(a, secret, seed)) ^ (Read64(b) + Read64(b + 8));
  acc->hi = (acc->hi + Mix16(b, secret + 16, seed)) ^ (Read64(a) + Read64(a + 8));
}

Xxh3Digest FinishMid(const Xxh3Digest& acc, size_t size, uint64_t seed) {
  const uint64_t lo = acc.lo + acc.hi;
  const uint64_t hi = acc.lo * kPrime64x1 + acc.hi * kPrime64x4 + (size - seed) * kPrime64x2;
  return {Avalanche(lo), uint64_t{0} - Avalanche(hi)};
}

Xxh3Digest Hash17To128(const unsigned char* in, size_t size, uint64_t seed) {
  Xxh3Digest acc{size * kPrime64x1, 0};
  for (size_t i = (size - 1) / 32 + 1; i-- > 0;) {
    Mix32(&acc, in + 16 * i, in + size - 16 * (i + 1), kSecret + 32 * i, seed);
  }
  return FinishMid(acc, size, seed);
}

Xxh3Digest Hash129To240(const unsigned char* in, size_t size, uint64_t seed) {
  constexpr size_t kStart = 3, kLast = 17;
  Xxh3Digest acc{size * kPrime64x1, 0};
  for (size_t i = 0; i < 128; i += 32) Mix32(&acc, in + i, in + i + 16, kSecret + i, seed);
  acc = {Avalanche(acc.lo), Avalanche(acc.hi)};
  for (size_t i = 128; i + 32 <= size; i += 32) Mix32(&acc, in + i, in + i + 16, kSecret + kStart + i - 128, seed);
  Mix32(&acc, in + size - 16, in + size - 32, kSecret + kSecretSizeMin - kLast - 16, uint64_t{0} - seed);
  return FinishMid(acc, size, seed);
}

void Accumulate(uint64_t* acc, const unsigned char* in, const unsigned char* secret) {
  for (size_t i = 0; i < kLanes; ++i) {
    const uint64_t word = Read64(in + 8 * i);
    const uint64_t key = word ^ Read64(secret + 8 * i);
    acc[i ^ 1] += word;
    acc[i] += (key & 0xFFFFFFFFu) * (key >> 32);
  }
}

void Scramble(uint64_t* acc, const unsigned char* secret) {
  for (size_t i = 0; i < kLanes; ++i) {
    acc[i] = (acc[i] ^ (acc[i] >> 47) ^ Read64(secret + 8 * i)) * kPrime32x1;
  }
}

uint64_t MergeLanes(const uint64_t* acc, const unsigned char* secret, uint64_t start) {
  for (size_t i = 0; i < kLanes; i += 2) {
    start += MultiplyFold(acc[i] ^ Read64(secret + 8 * i), acc[i + 1] ^ Read64(secret + 8 * i + 8));
  }
  return Avalanche(start);
}

Xxh3Digest HashLong(const unsigned char* in, size_t size, uint64_t seed) {
  unsigned char secret[kSecretSize];
  for (size_t i = 0; i < kSecretSize; i += 16) {
    const uint64_t words[2] = {Read64(kSecret + i) + seed, Read64(kSecret + i + 8) - seed};
    std::memcpy(secret + i, words, sizeof(words));
  }
  uint64_t acc[kLanes] = {kPrime32x3, kPrime64x1, kPrime64x2, kPrime64x3,
                          kPrime64x4, kPrime32x2, kPrime64x5, kPrime32x1};
  const size_t num_stripes = (size - 1) / kStripe;  // the last, perhaps overlapping one is apart
  for (size_t i = 0; i < num_stripes; ++i) {
    Accumulate(acc, in + i * kStripe, secret + 8 * (i % kStripesPerBlock));
    if (i % kStripesPerBlock == kStripesPerBlock - 1) Scramble(acc, secret + kSecretSize - kStripe);
  }
  Accumulate(acc, in + size - kStripe, secret + kSecretSize - kStripe - 7);
  return {MergeLanes(acc, secret + 11, size * kPrime64x1),
          MergeLanes(acc, secret + kSecretSize - kStripe - 11, ~(size * kPrime64x2))};
}

}  // namespace

Xxh3Digest Xxh3Hash128(std::span<const unsigned char> data, uint64_t seed) {
  const unsigned char* in = data.data();
  const size_t size = data.size();
  if (size == 0) return Hash0(seed);
  if (size <= 3) return Hash1To3(in, size, seed);
  if (size <= 8) return Hash4To8(in, size, seed);
  if (size <= 16) return Hash9To16(in, size, seed);
  if (size <= 128) return Hash17To128(in, size, seed);
  if (size <= 240) return Hash129To240(in, size, seed);
  return HashLong(in, size, seed);
}

}  // namespace fastllm
