// WireWriter and WireReader: fields as little-endian bytes, for the step codec and for recordings. Vectors and strings
// are a u32 count and the elements; float is its bits; an optional is a bool and the value.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "fastllm/output.h"
#include "fastllm/sampling_params.h"

namespace fastllm {

template <typename T>
void StoreLittle(char* to, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<char>(value >> (8 * i));
}

template <typename T>
T LoadLittle(const char* from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(static_cast<unsigned char>(from[i])) << (8 * i)));
  }
  return value;
}

// A struct is written and read member by member: its VisitMembers(s, v), found by its namespace or by that of the
// caller, calls v(members...).
class WireWriter {
 public:
  explicit WireWriter(size_t header_bytes = 0) : out_(header_bytes, '\0') {}

  void Field(bool v) { out_.push_back(v ? 1 : 0); }
  void Field(float v) { Put(std::bit_cast<uint32_t>(v)); }
  void Field(int32_t v) { Put(static_cast<uint32_t>(v)); }
  void Field(uint32_t v) { Put(v); }
  void Field(uint64_t v) { Put(v); }
  void Field(int64_t v) { Put(static_cast<uint64_t>(v)); }
  template <typename T>
    requires std::is_enum_v<T>
  void Field(T v) {
    Put(static_cast<uint8_t>(v));
  }
  template <typename T>
  void Field(const std::optional<T>& v) {
    Field(v.has_value());
    if (v) Field(*v);
  }
  void Field(const std::string& v) {
    Count(v.size());
    out_ += v;
  }
  template <typename T>
  void Field(const std::vector<T>& v) {
    Count(v.size());
    if constexpr (std::is_same_v<T, int32_t>) {
      const size_t at = out_.size();
      out_.resize(at + v.size() * sizeof(T));
      for (size_t i = 0; i < v.size(); ++i) StoreLittle(&out_[at + i * sizeof(T)], static_cast<uint32_t>(v[i]));
    } else {
      for (const T& element : v) Field(element);
    }
  }
  template <typename T>
    requires std::is_class_v<T>
  void Field(const T& v) {
    VisitMembers(v, [this](const auto&... member) { (this->Field(member), ...); });
  }

  // All that was written, behind the header bytes, which are zero.
  std::string Take() && { return std::move(out_); }

 private:
  void Count(size_t n) { Put(static_cast<uint32_t>(n)); }
  template <typename T>
  void Put(T v) {
    char bytes[sizeof(T)];
    StoreLittle(bytes, v);
    out_.append(bytes, sizeof(T));
  }

  std::string out_;
};

// Reads fields until the first failure, after which every read gives zero and ok() is false.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : left_(bytes) {}

  bool ok() const { return ok_; }
  bool at_end() const { return left_.empty(); }

  void Field(bool& v) {
    const uint8_t byte = Get<uint8_t>();
    ok_ = ok_ && byte <= 1;
    v = byte == 1;
  }
  void Field(float& v) { v = std::bit_cast<float>(Get<uint32_t>()); }
  void Field(int32_t& v) { v = static_cast<int32_t>(Get<uint32_t>()); }
  void Field(uint64_t& v) { v = Get<uint64_t>(); }
  void Field(uint32_t& v) { v = Get<uint32_t>(); }
  void Field(int64_t& v) { v = static_cast<int64_t>(Get<uint64_t>()); }
  template <typename T>
    requires std::is_enum_v<T>
  void Field(T& v) {
    v = static_cast<T>(Get<uint8_t>());
  }
  template <typename T>
  void Field(std::optional<T>& v) {
    bool has = false;
    Field(has);
    if (has) Field(v.emplace());
  }
  void Field(std::string& v) {
    const size_t n = Count(1);
    v = left_.substr(0, n);
    left_.remove_prefix(n);
  }
  template <typename T>
  void Field(std::vector<T>& v) {
    // Elements that are not plain integers start with a count or a 64-bit id: four bytes at least.
    const size_t n = Count(4);
    if constexpr (std::is_same_v<T, int32_t>) {
      v.resize(n);
      for (size_t i = 0; i < n; ++i) v[i] = static_cast<int32_t>(LoadLittle<uint32_t>(&left_[i * sizeof(T)]));
      left_.remove_prefix(n * sizeof(T));
    } else {
      v.clear();  // a default of the struct may have filled it
      for (size_t i = 0; i < n && ok_; ++i) Field(v.emplace_back());
    }
  }
  template <typename T>
    requires std::is_class_v<T>
  void Field(T& v) {
    VisitMembers(v, [this](auto&... member) { (this->Field(member), ...); });
  }

 private:
  template <typename T>
  T Get() {
    if (left_.size() < sizeof(T)) ok_ = false;
    if (!ok_) return 0;
    const T v = LoadLittle<T>(left_.data());
    left_.remove_prefix(sizeof(T));
    return v;
  }
  // A count whose elements of at least `element_bytes` can still be there; 0 and not ok otherwise.
  size_t Count(size_t element_bytes) {
    const size_t n = Get<uint32_t>();
    if (n > left_.size() / element_bytes) ok_ = false;
    return ok_ ? n : 0;
  }

  std::string_view left_;
  bool ok_ = true;
};

// Members of the public structs that messages and recordings share.
template <typename S, typename T>
concept WiredAs = std::is_same_v<std::remove_const_t<S>, T>;

template <WiredAs<LogitBias> S>
void VisitMembers(S& s, auto&& v) {
  v(s.id, s.bias);
}
template <WiredAs<JsonText> S>
void VisitMembers(S& s, auto&& v) {
  v(s.text);
}
template <WiredAs<TokenLogprob> S>
void VisitMembers(S& s, auto&& v) {
  v(s.token_id, s.logprob, s.rank);
}
template <WiredAs<SamplingParams> S>
void VisitMembers(S& s, auto&& v) {
  VisitFields(s, [&v](const FieldInfo&, auto& field) { v(field); });
}

}  // namespace fastllm
