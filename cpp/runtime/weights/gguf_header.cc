#include "runtime/weights/gguf_header.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "runtime/weights/gguf_cursor.h"
#include "runtime/weights/quoted.h"
#include "runtime/weights/tensor_list.h"

namespace fastllm::runtime {
namespace {

constexpr char kMagic[4] = {'G', 'G', 'U', 'F'};
constexpr uint32_t kMaxDims = 4;
constexpr int64_t kDefaultAlignment = 32;
// Bytes of the smallest metadata pair (empty key, one-byte value) and tensor entry (empty name, one dimension).
constexpr uint64_t kMinPairBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

struct GgmlType {
  uint32_t id = 0;
  const char* name;
  std::optional<WeightType> type;  // empty: known by name, not read
};

constexpr GgmlType kGgmlTypes[] = {
    {0, "F32", WeightType::kF32},    {1, "F16", WeightType::kF16},    {2, "Q4_0", WeightType::kQ4_0},
    {3, "Q4_1", WeightType::kQ4_1},  {6, "Q5_0", WeightType::kQ5_0},  {7, "Q5_1", WeightType::kQ5_1},
    {8, "Q8_0", WeightType::kQ8_0},  {9, "Q8_1", std::nullopt},       {10, "Q2_K", WeightType::kQ2_K},
    {11, "Q3_K", WeightType::kQ3_K}, {12, "Q4_K", WeightType::kQ4_K}, {13, "Q5_K", WeightType::kQ5_K},
    {14, "Q6_K", WeightType::kQ6_K}, {15, "Q8_K", std::nullopt},      {16, "IQ2_XXS", std::nullopt},
    {17, "IQ2_XS", std::nullopt},    {18, "IQ3_XXS", std::nullopt},   {19, "IQ1_S", std::nullopt},
    {20, "IQ4_NL", std::nullopt},    {21, "IQ3_S", std::nullopt},     {22, "IQ2_S", std::nullopt},
    {23, "IQ4_XS", std::nullopt},    {24, "I8", std::nullopt},        {25, "I16", std::nullopt},
    {26, "I32", std::nullopt},       {27, "I64", std::nullopt},       {28, "F64", std::nullopt},
    {29, "IQ1_M", std::nullopt},     {30, "BF16", WeightType::kBF16}, {34, "TQ1_0", std::nullopt},
    {35, "TQ2_0", std::nullopt},     {39, "MXFP4", std::nullopt},
};

Result<WeightType> WeightTypeOf(uint32_t id, const std::string& tensor) {
  std::string name = "number " + std::to_string(id);
  for (const GgmlType& entry : kGgmlTypes) {
    if (entry.id != id) continue;
    if (entry.type.has_value()) return *entry.type;
    name = entry.name;
  }
  return Status::Unimplemented("tensor " + Quoted(tensor) + " is of type " + name +
                               "; the types read are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, "
                               "Q5_K, Q6_K");
}

Status WithContext(const std::string& context, const Status& status) {
  return Status(status.code(), context + ": " + status.message());
}

// Magic and version. A big-endian file has the same magic, and its version's bytes reversed.
Status ReadPreamble(GgufCursor& cursor) {
  char magic[4];
  FASTLLM_RETURN_IF_ERROR(cursor.Read(&magic, "the magic"));
  if (!std::equal(magic, magic + 4, kMagic)) return Status::DataLoss("the file does not start with 'GGUF'");
  uint32_t version = 0;
  FASTLLM_RETURN_IF_ERROR(cursor.Read(&version, "the version"));
  if (version == 2 || version == 3) return Status::Ok();
  if (version != 0 && (version & 0xFFFFFFu) == 0) {
    return Status::Unimplemented("GGUF version " + std::to_string(version >> 24) +
                                 " in big-endian byte order; only little-endian files are read");
  }
  return Status::Unimplemented("GGUF version " + std::to_string(version) + "; versions 2 and 3 are read");
}

Status ReadMetadata(GgufCursor& cursor, uint64_t count, GgufMetadata* metadata) {
  if (count > cursor.remaining() / kMinPairBytes) {
    return Status::DataLoss("metadata count " + std::to_string(count) + " does not fit the file");
  }
  for (uint64_t i = 0; i < count; ++i) {
    std::string key;
    FASTLLM_RETURN_IF_ERROR(cursor.ReadString(&key, "a metadata key"));
    GgufValue value;
    if (Status status = cursor.ReadValue(&value); !status.ok()) return WithContext("metadata " + Quoted(key), status);
    if (metadata->contains(key)) return Status::DataLoss("metadata key " + Quoted(key) + " comes twice");
    metadata->emplace(std::move(key), std::move(value));
  }
  return Status::Ok();
}

// An integer key; `fallback` where the file has none.
Result<int64_t> IntegerKey(const GgufMetadata& metadata, const std::string& key, int64_t fallback) {
  const auto it = metadata.find(key);
  if (it == metadata.end()) return fallback;
  if (const int64_t* value = std::get_if<int64_t>(&it->second)) return *value;
  return Status::DataLoss("metadata " + Quoted(key) + " is not an integer");
}

Result<int64_t> Alignment(const GgufMetadata& metadata) {
  FASTLLM_ASSIGN_OR_RETURN(const int64_t value, IntegerKey(metadata, "general.alignment", kDefaultAlignment));
  if (value < 1 || value > std::numeric_limits<uint32_t>::max() || (value & (value - 1)) != 0) {
    return Status::DataLoss("general.alignment is " + std::to_string(value) + "; it must be a power of two below 2^32");
  }
  return value;
}

Status RefuseSplit(const GgufMetadata& metadata) {
  FASTLLM_ASSIGN_OR_RETURN(const int64_t count, IntegerKey(metadata, "split.count", 0));
  if (count <= 1) return Status::Ok();
  return Status::Unimplemented("the file is one of " + std::to_string(count) +
                               " parts of a split model; merge the parts into one GGUF file first");
}

Status ReadShape(GgufCursor& cursor, const std::string& name, std::vector<int64_t>* shape) {
  uint32_t dims = 0;
  FASTLLM_RETURN_IF_ERROR(cursor.Read(&dims, "a tensor's dimension count"));
  if (dims < 1 || dims > kMaxDims) {
    return Status::DataLoss("tensor " + Quoted(name) + " has " + std::to_string(dims) +
                            " dimensions; 1 to 4 are allowed");
  }
  shape->resize(dims);
  for (uint32_t i = 0; i < dims; ++i) {
    uint64_t dim = 0;
    FASTLLM_RETURN_IF_ERROR(cursor.Read(&dim, "a tensor's dimensions"));
    if (dim < 1 || dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Status::DataLoss("tensor " + Quoted(name) + " has a dimension of " + std::to_string(dim));
    }
    (*shape)[dims - 1 - i] = static_cast<int64_t>(dim);
  }
  return Status::Ok();
}

// One entry of the tensor table. *offset is relative to the data section.
Status ReadTensor(GgufCursor& cursor, TensorInfo* tensor, uint64_t* offset) {
  FASTLLM_RETURN_IF_ERROR(cursor.ReadString(&tensor->name, "a tensor name"));
  FASTLLM_RETURN_IF_ERROR(ReadShape(cursor, tensor->name, &tensor->shape));
  uint32_t id = 0;
  FASTLLM_RETURN_IF_ERROR(cursor.Read(&id, "a tensor's type"));
  FASTLLM_RETURN_IF_ERROR(cursor.Read(offset, "a tensor's offset"));
  FASTLLM_ASSIGN_OR_RETURN(tensor->type, WeightTypeOf(id, tensor->name));
  const int64_t block = WeightBlockElements(tensor->type);
  if (tensor->shape.back() % block != 0) {
    return Status::DataLoss("tensor " + Quoted(tensor->name) + ": rows of " + std::to_string(tensor->shape.back()) +
                            " values are not whole " + WeightTypeName(tensor->type) + " blocks of " +
                            std::to_string(block));
  }
  const std::optional<int64_t> bytes = CheckedBytes(tensor->shape, block, WeightBlockBytes(tensor->type));
  if (!bytes) {
    return Status::DataLoss("tensor " + Quoted(tensor->name) + ": shape " + ShapeText(tensor->shape) + " overflows");
  }
  tensor->nbytes = static_cast<size_t>(*bytes);
  return Status::Ok();
}

// The data section starts at the first aligned byte after the table; every tensor lies in it, apart from the others.
Status PlaceTensors(const uint8_t* data, size_t size, size_t table_end, uint64_t alignment,
                    const std::vector<uint64_t>& offsets, std::vector<TensorInfo>* tensors) {
  const uint64_t begin = (static_cast<uint64_t>(table_end) + alignment - 1) / alignment * alignment;
  const uint64_t section = begin <= size ? size - begin : 0;
  for (size_t i = 0; i < offsets.size(); ++i) {
    TensorInfo& tensor = (*tensors)[i];
    if (offsets[i] % alignment != 0) {
      return Status::DataLoss("tensor " + Quoted(tensor.name) + ": offset " + std::to_string(offsets[i]) +
                              " is not a multiple of the alignment " + std::to_string(alignment));
    }
    if (offsets[i] > section || tensor.nbytes > section - offsets[i]) {
      return Status::DataLoss("tensor " + Quoted(tensor.name) + ": " + std::to_string(tensor.nbytes) +
                              " bytes at offset " + std::to_string(offsets[i]) + " pass the " +
                              std::to_string(section) + " bytes of tensor data in the file");
    }
    tensor.data = data + begin + offsets[i];
  }
  std::vector<const TensorInfo*> by_address;
  by_address.reserve(tensors->size());
  for (const TensorInfo& tensor : *tensors) by_address.push_back(&tensor);
  std::sort(by_address.begin(), by_address.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->data < b->data; });
  for (size_t i = 1; i < by_address.size(); ++i) {
    if (by_address[i - 1]->data + by_address[i - 1]->nbytes > by_address[i]->data) {
      return Status::DataLoss("tensors " + Quoted(by_address[i - 1]->name) + " and " + Quoted(by_address[i]->name) +
                              " overlap");
    }
  }
  return Status::Ok();
}

}  // namespace

Result<GgufHeader> ParseGguf(const uint8_t* data, size_t size) {
  GgufCursor cursor(data, size);
  FASTLLM_RETURN_IF_ERROR(ReadPreamble(cursor));
  uint64_t tensor_count = 0;
  uint64_t metadata_count = 0;
  FASTLLM_RETURN_IF_ERROR(cursor.Read(&tensor_count, "the tensor count"));
  FASTLLM_RETURN_IF_ERROR(cursor.Read(&metadata_count, "the metadata count"));
  GgufHeader header;
  FASTLLM_RETURN_IF_ERROR(ReadMetadata(cursor, metadata_count, &header.metadata));
  FASTLLM_RETURN_IF_ERROR(RefuseSplit(header.metadata));
  FASTLLM_ASSIGN_OR_RETURN(const int64_t alignment, Alignment(header.metadata));
  if (tensor_count > cursor.remaining() / kMinTensorBytes) {
    return Status::DataLoss("tensor count " + std::to_string(tensor_count) + " does not fit the file");
  }
  header.tensors.resize(tensor_count);
  std::vector<uint64_t> offsets(tensor_count);
  for (uint64_t i = 0; i < tensor_count; ++i) {
    FASTLLM_RETURN_IF_ERROR(ReadTensor(cursor, &header.tensors[i], &offsets[i]));
  }
  FASTLLM_RETURN_IF_ERROR(
      PlaceTensors(data, size, cursor.position(), static_cast<uint64_t>(alignment), offsets, &header.tensors));
  return header;
}

}  // namespace fastllm::runtime
