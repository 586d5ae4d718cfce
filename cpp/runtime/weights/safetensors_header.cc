#include "runtime/weights/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

#include <nlohmann/json.hpp>

#include "runtime/weights/quoted.h"
#include "runtime/weights/tensor_list.h"

namespace fastllm::runtime {
namespace {

using Json = nlohmann::json;

// Parse events that are all refused; subclasses accept what their file may hold. The parser keeps no tree, so depth
// and memory are bounded by what a subclass accepts.
class StrictSax : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return Refuse("null"); }
  bool boolean(bool) override { return Refuse("a bool"); }
  bool number_integer(number_integer_t value) override { return Refuse("the number " + std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return Refuse("the number " + std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override {
    return Refuse("the number " + text.substr(0, 64));
  }
  bool string(string_t& text) override { return Refuse("the string " + Quoted(text)); }
  bool binary(binary_t&) override { return Refuse("binary"); }
  bool start_object(std::size_t) override { return Refuse("an object"); }
  bool start_array(std::size_t) override { return Refuse("an array"); }
  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) override {
    return Fail("invalid JSON at byte " + std::to_string(position) + ": " + Quoted(error.what()));
  }

  // Where the parser is, for messages.
  virtual std::string Place() const = 0;

  const std::string& error() const { return error_; }

 protected:
  bool Fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    return false;
  }
  bool Refuse(const std::string& what) { return Fail(Place() + ": unexpected " + what); }

 private:
  std::string error_;
};

struct Entry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

// {"name": {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}, .., "__metadata__": {"key": "text", ..}}.
class HeaderSax : public StrictSax {
 public:
  std::vector<Entry> entries;

  bool start_object(std::size_t) override {
    if (depth_ > 1) return Refuse("an object");
    if (++depth_ == 2 && !in_metadata_) entries.emplace_back().name = name_;
    return true;
  }
  bool end_object() override {
    if (depth_-- == 1 || in_metadata_) return true;
    const Entry& entry = entries.back();
    if (entry.dtype && entry.shape && entry.offsets) return true;
    return Fail(Place() + ": dtype, shape and data_offsets are all needed");
  }
  bool key(string_t& text) override {
    if (depth_ == 1) {
      if (!seen_.insert(text).second) return Fail(Quoted(text) + " comes twice in the header");
      in_metadata_ = text == "__metadata__";
      name_ = text;
    } else {
      field_ = text;
    }
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_) return Refuse("an array");
    std::optional<std::vector<uint64_t>>* target = nullptr;
    if (field_ == "shape") target = &entries.back().shape;
    if (field_ == "data_offsets") target = &entries.back().offsets;
    if (target == nullptr || target->has_value()) return Refuse("an array");
    numbers_ = &target->emplace();
    depth_ = 3;
    return true;
  }
  bool end_array() override {
    depth_ = 2;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ != 3) return StrictSax::number_unsigned(value);
    numbers_->push_back(value);
    return true;
  }
  bool string(string_t& text) override {
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ != 2 || field_ != "dtype" || entries.back().dtype) return StrictSax::string(text);
    entries.back().dtype = text;
    return true;
  }
  std::string Place() const override {
    if (depth_ == 0) return "header";
    return depth_ == 1 ? Quoted(name_) : Quoted(name_) + ", field " + Quoted(field_);
  }

 private:
  int depth_ = 0;  // 1: header, 2: one tensor or __metadata__, 3: an array of numbers
  bool in_metadata_ = false;
  std::string name_;
  std::string field_;
  std::vector<uint64_t>* numbers_ = nullptr;
  std::unordered_set<std::string> seen_;
};

// {"metadata": anything, "weight_map": {"tensor name": "shard file", ..}}.
class IndexSax : public StrictSax {
 public:
  std::vector<std::pair<std::string, std::string>> shard_of;
  bool has_map = false;

  bool null() override { return Other() || StrictSax::null(); }
  bool boolean(bool value) override { return Other() || StrictSax::boolean(value); }
  bool number_integer(number_integer_t value) override { return Other() || StrictSax::number_integer(value); }
  bool number_unsigned(number_unsigned_t value) override { return Other() || StrictSax::number_unsigned(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    return Other() || StrictSax::number_float(value, text);
  }
  bool string(string_t& text) override {
    if (Other()) return true;
    if (depth_ != 2) return StrictSax::string(text);
    shard_of.emplace_back(name_, text);
    return true;
  }
  bool start_object(std::size_t) override {
    if (!Other() && depth_ > (in_map_ ? 1 : 0)) return Refuse("an object");
    return Enter();
  }
  bool end_object() override { return --depth_ >= 0; }
  bool start_array(std::size_t) override { return Other() ? Enter() : Refuse("an array"); }
  bool end_array() override { return --depth_ >= 0; }
  bool key(string_t& text) override {
    if (depth_ == 1) {
      in_map_ = text == "weight_map";
      if (in_map_ && std::exchange(has_map, true)) return Fail("weight_map comes twice");
    } else if (in_map_ && !seen_.insert(text).second) {
      return Fail("tensor " + Quoted(text) + " comes twice in weight_map");
    }
    name_ = text;
    return true;
  }
  std::string Place() const override { return in_map_ ? "weight_map, " + Quoted(name_) : "index"; }

 private:
  static constexpr int kMaxDepth = 16;

  // Within a key other than weight_map, whose values are not looked at.
  bool Other() const { return depth_ >= 1 && !in_map_; }
  bool Enter() { return ++depth_ <= kMaxDepth || Fail("nested more than " + std::to_string(kMaxDepth) + " deep"); }

  int depth_ = 0;
  bool in_map_ = false;
  std::string name_;
  std::unordered_set<std::string> seen_;
};

Status Parse(const uint8_t* data, size_t size, StrictSax* sax) {
  const char* text = reinterpret_cast<const char*>(data);
  if (Json::sax_parse(text, text + size, sax)) return Status::Ok();
  return Status::DataLoss(sax->error());
}

struct Dtype {
  const char* name;
  int64_t bytes;
  std::optional<WeightType> type;  // empty: known by name, not read
};

constexpr Dtype kDtypes[] = {
    {"F32", 4, WeightType::kF32},   {"F16", 2, WeightType::kF16},
    {"BF16", 2, WeightType::kBF16}, {"F64", 8, std::nullopt},
    {"I64", 8, std::nullopt},       {"U64", 8, std::nullopt},
    {"I32", 4, std::nullopt},       {"U32", 4, std::nullopt},
    {"I16", 2, std::nullopt},       {"U16", 2, std::nullopt},
    {"I8", 1, std::nullopt},        {"U8", 1, std::nullopt},
    {"BOOL", 1, std::nullopt},      {"F8_E4M3", 1, WeightType::kF8E4M3},
    {"F8_E5M2", 1, std::nullopt},
};

Status CheckSize(const Entry& entry, const std::vector<int64_t>& shape, int64_t element_bytes) {
  const std::optional<int64_t> bytes = CheckedBytes(shape, 1, element_bytes);
  const std::string what = "tensor " + Quoted(entry.name) + ": shape " + ShapeText(shape);
  if (!bytes) return Status::DataLoss(what + " overflows");
  const uint64_t stored = (*entry.offsets)[1] - (*entry.offsets)[0];
  if (static_cast<uint64_t>(*bytes) == stored) return Status::Ok();
  return Status::DataLoss(what + " of " + *entry.dtype + " takes " + std::to_string(*bytes) + " bytes, the file has " +
                          std::to_string(stored));
}

// Checks one entry against the section of tensor data and files it under tensors or unread.
Status AddEntry(const Entry& entry, const uint8_t* section, uint64_t section_size, SafetensorsHeader* header) {
  const std::vector<uint64_t>& offsets = *entry.offsets;
  if (offsets.size() != 2) {
    return Status::DataLoss("tensor " + Quoted(entry.name) + ": data_offsets has " + std::to_string(offsets.size()) +
                            " numbers, not 2");
  }
  if (offsets[0] > offsets[1] || offsets[1] > section_size) {
    return Status::DataLoss("tensor " + Quoted(entry.name) + ": data_offsets [" + std::to_string(offsets[0]) + ", " +
                            std::to_string(offsets[1]) + "] are not a range in the " + std::to_string(section_size) +
                            " bytes of tensor data");
  }
  TensorInfo tensor;
  tensor.name = entry.name;
  for (uint64_t dim : *entry.shape) {
    if (dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Status::DataLoss("tensor " + Quoted(entry.name) + " has a dimension of " + std::to_string(dim));
    }
    tensor.shape.push_back(static_cast<int64_t>(dim));
  }
  const auto dtype = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                  [&](const Dtype& known) { return *entry.dtype == known.name; });
  if (dtype != std::end(kDtypes)) FASTLLM_RETURN_IF_ERROR(CheckSize(entry, tensor.shape, dtype->bytes));
  if (dtype == std::end(kDtypes) || !dtype->type) {
    header->unread.push_back({entry.name, *entry.dtype});
    return Status::Ok();
  }
  tensor.type = *dtype->type;
  tensor.data = section + offsets[0];
  tensor.nbytes = offsets[1] - offsets[0];
  header->tensors.push_back(std::move(tensor));
  return Status::Ok();
}

// The format allows neither overlaps nor holes: in order of offsets, the tensors cover the section exactly.
Status CheckCover(const std::vector<Entry>& entries, uint64_t section_size) {
  std::vector<const Entry*> order;
  order.reserve(entries.size());
  for (const Entry& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) { return *a->offsets < *b->offsets; });
  uint64_t end = 0;
  for (const Entry* entry : order) {
    const uint64_t begin = (*entry->offsets)[0];
    if (begin != end) {
      return Status::DataLoss("tensor " + Quoted(entry->name) + " starts at byte " + std::to_string(begin) +
                              " of the data, " + (begin < end ? "within the tensor before it" : "after a hole") +
                              ", which ends at " + std::to_string(end));
    }
    end = (*entry->offsets)[1];
  }
  if (end == section_size) return Status::Ok();
  return Status::DataLoss("the tensors take " + std::to_string(end) + " bytes, the file holds " +
                          std::to_string(section_size));
}

// A bare name of a .safetensors file: nothing that leads to another folder.
bool IsShardName(std::string_view name) {
  constexpr std::string_view kSuffix = ".safetensors";
  return name.size() > kSuffix.size() && name.ends_with(kSuffix) &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace

Result<SafetensorsHeader> ParseSafetensors(const uint8_t* data, size_t size) {
  uint64_t length = 0;
  if (size < sizeof(length)) return Status::DataLoss("a file of " + std::to_string(size) + " bytes has no header");
  std::memcpy(&length, data, sizeof(length));
  if (length > kMaxSafetensorsHeader) {
    return Status::DataLoss("header length " + std::to_string(length) + " is past the limit of " +
                            std::to_string(kMaxSafetensorsHeader));
  }
  if (length > size - sizeof(length)) {
    return Status::DataLoss("header length " + std::to_string(length) + " passes the end of the file");
  }
  HeaderSax sax;
  FASTLLM_RETURN_IF_ERROR(Parse(data + sizeof(length), length, &sax));
  const uint8_t* section = data + sizeof(length) + length;
  const uint64_t section_size = size - sizeof(length) - length;
  SafetensorsHeader header;
  for (const Entry& entry : sax.entries) {
    FASTLLM_RETURN_IF_ERROR(AddEntry(entry, section, section_size, &header));
  }
  FASTLLM_RETURN_IF_ERROR(CheckCover(sax.entries, section_size));
  return header;
}

Result<std::vector<std::pair<std::string, std::string>>> ParseSafetensorsIndex(const uint8_t* data, size_t size) {
  if (size > kMaxSafetensorsHeader) {
    return Status::DataLoss("index of " + std::to_string(size) + " bytes is past the limit of " +
                            std::to_string(kMaxSafetensorsHeader));
  }
  IndexSax sax;
  FASTLLM_RETURN_IF_ERROR(Parse(data, size, &sax));
  if (!sax.has_map) return Status::DataLoss("the index has no weight_map");
  for (const auto& [tensor, shard] : sax.shard_of) {
    if (IsShardName(shard)) continue;
    return Status::DataLoss("tensor " + Quoted(tensor) + ": shard name " + Quoted(shard) +
                            " is not the name of a .safetensors file in the same folder");
  }
  return std::move(sax.shard_of);
}

}  // namespace fastllm::runtime
