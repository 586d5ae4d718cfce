#include "ops/cpu/dry.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>

namespace fastllm::ops::cpu {
namespace {

// The history read from its end: At(0) is the last token.
struct Backwards {
  const int32_t* last;
  int32_t size;

  int32_t At(int32_t i) const { return last[-i]; }
};

Backwards Window(const DryRow& row) {
  const int32_t n = row.range > 0 ? std::min(row.range, row.history.size) : row.history.size;
  return {row.history.data + row.history.size - 1, n};
}

bool IsBreaker(const DryRow& row, int32_t token) {
  return std::binary_search(row.breakers.data, row.breakers.data + row.breakers.size, token);
}

// match[i] = the length of the longest common prefix of h and h[i..), at most `limit`: the Z-function (Gusfield 1997),
// which copies what the match that reaches furthest has already compared.
void MatchLengths(const Backwards& h, int32_t limit, int32_t* match) {
  int32_t from = 0;
  int32_t to = 0;  // h[from, to) is known to equal h[0, to - from)
  for (int32_t i = 1; i < h.size; ++i) {
    int32_t z = i < to ? std::min(match[i - from], to - i) : 0;
    while (z < limit && i + z < h.size && h.At(z) == h.At(i + z)) ++z;
    match[i] = z;
    if (i + z > to) {
      from = i;
      to = i + z;
    }
  }
}

}  // namespace

void DryScratch::Reserve(const DryRow& row, int32_t vocab) {
  const auto n = static_cast<size_t>(row.history.size);
  match.resize(std::max(match.size(), n));
  touched.resize(std::max(touched.size(), n));
  longest.resize(std::max(longest.size(), static_cast<size_t>(vocab)));
}

void ApplyDry(const DryRow& row, float* x, int32_t vocab, DryScratch& scratch) {
  const Backwards h = Window(row);
  int32_t limit = 0;  // a match goes back to the last breaker at most
  while (limit < h.size && !IsBreaker(row, h.At(limit))) ++limit;
  const int32_t shortest = std::max(1, row.allowed_length);
  if (limit < shortest || h.size < 2) return;
  MatchLengths(h, limit, scratch.match.data());

  int32_t count = 0;
  for (int32_t i = 1; i < h.size; ++i) {
    const int32_t length = scratch.match[i];
    const int32_t next = h.At(i - 1);
    if (length < shortest || next < 0 || next >= vocab) continue;
    int32_t& longest = scratch.longest[next];
    if (longest == 0) scratch.touched[count++] = next;
    longest = std::max(longest, length);
  }
  for (int32_t i = 0; i < count; ++i) {
    const int32_t token = scratch.touched[i];
    const double exponent = scratch.longest[token] - row.allowed_length;
    scratch.longest[token] = 0;
    if (IsBreaker(row, token)) continue;
    const double penalty = static_cast<double>(row.multiplier) * std::pow(static_cast<double>(row.base), exponent);
    x[token] -= static_cast<float>(std::min(penalty, static_cast<double>(FLT_MAX)));
  }
}

}  // namespace fastllm::ops::cpu
