#include "runtime/weights/gguf_cursor.h"

#include <limits>
#include <type_traits>
#include <utility>

namespace fastllm::runtime {
namespace {

// The value types of the GGUF specification.
enum : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12
};

// Smallest bytes one value takes in the file; 0 for a type that is none of the scalars.
uint64_t MinimumBytes(uint32_t type) {
  switch (type) {
    case kUint8:
    case kInt8:
    case kBool: return 1;
    case kUint16:
    case kInt16: return 2;
    case kUint32:
    case kInt32:
    case kFloat32: return 4;
    case kUint64:
    case kInt64:
    case kFloat64:
    case kString: return 8;
    default: return 0;
  }
}

template <typename T, typename Wide>
Status ReadAs(GgufCursor& cursor, Wide* out) {
  T value{};
  FASTLLM_RETURN_IF_ERROR(cursor.Read(&value, "a metadata value"));
  if constexpr (std::is_same_v<T, uint64_t>) {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Status::DataLoss("metadata integer " + std::to_string(value) + " is past the largest int64");
    }
  }
  *out = static_cast<Wide>(value);
  return Status::Ok();
}

Status ReadBool(GgufCursor& cursor, int64_t* out) {
  uint8_t value = 0;
  FASTLLM_RETURN_IF_ERROR(cursor.Read(&value, "a metadata value"));
  if (value > 1) return Status::DataLoss("metadata bool has the value " + std::to_string(value));
  *out = value;
  return Status::Ok();
}

Status ReadInteger(GgufCursor& cursor, uint32_t type, int64_t* out) {
  switch (type) {
    case kUint8: return ReadAs<uint8_t>(cursor, out);
    case kInt8: return ReadAs<int8_t>(cursor, out);
    case kUint16: return ReadAs<uint16_t>(cursor, out);
    case kInt16: return ReadAs<int16_t>(cursor, out);
    case kUint32: return ReadAs<uint32_t>(cursor, out);
    case kInt32: return ReadAs<int32_t>(cursor, out);
    case kUint64: return ReadAs<uint64_t>(cursor, out);
    case kInt64: return ReadAs<int64_t>(cursor, out);
    default: return ReadBool(cursor, out);
  }
}

Status ReadFloat(GgufCursor& cursor, uint32_t type, double* out) {
  return type == kFloat32 ? ReadAs<float>(cursor, out) : ReadAs<double>(cursor, out);
}

// count values, each read by read_one(&value).
template <typename T, typename ReadOne>
Status ReadAll(uint64_t count, GgufValue* out, ReadOne read_one) {
  std::vector<T> values(count);
  for (T& value : values) FASTLLM_RETURN_IF_ERROR(read_one(&value));
  *out = std::move(values);
  return Status::Ok();
}

}  // namespace

Status GgufCursor::Truncated(const char* what, uint64_t need) const {
  return Status::DataLoss("the file ends within " + std::string(what) + ": " + std::to_string(need) +
                          " bytes wanted at byte " + std::to_string(position_) + ", " + std::to_string(remaining()) +
                          " left");
}

Status GgufCursor::ReadString(std::string* out, const char* what) {
  uint64_t length = 0;
  FASTLLM_RETURN_IF_ERROR(Read(&length, what));
  if (length > remaining()) return Truncated(what, length);
  out->assign(reinterpret_cast<const char*>(data_ + position_), length);
  position_ += length;
  return Status::Ok();
}

Status GgufCursor::ReadValue(GgufValue* out) {
  uint32_t type = 0;
  FASTLLM_RETURN_IF_ERROR(Read(&type, "a metadata value type"));
  return type == kArray ? ReadArray(out) : ReadScalar(type, out);
}

Status GgufCursor::ReadScalar(uint32_t type, GgufValue* out) {
  if (MinimumBytes(type) == 0) return Status::DataLoss("metadata value type " + std::to_string(type) + " is unknown");
  if (type == kString) return ReadString(&out->emplace<std::string>(), "a metadata string");
  if (type == kFloat32 || type == kFloat64) return ReadFloat(*this, type, &out->emplace<double>());
  int64_t value = 0;
  FASTLLM_RETURN_IF_ERROR(ReadInteger(*this, type, &value));
  if (type == kBool) {
    *out = value != 0;
  } else {
    *out = value;
  }
  return Status::Ok();
}

Status GgufCursor::ReadArray(GgufValue* out) {
  uint32_t type = 0;
  uint64_t count = 0;
  FASTLLM_RETURN_IF_ERROR(Read(&type, "an array's element type"));
  FASTLLM_RETURN_IF_ERROR(Read(&count, "an array's length"));
  if (type == kArray) return Status::Unimplemented("the metadata array holds arrays; nested arrays are not read");
  const uint64_t each = MinimumBytes(type);
  if (each == 0) return Status::DataLoss("array element type " + std::to_string(type) + " is unknown");
  // Before the allocation, so that a wrong count cannot ask for more memory than a small multiple of the file.
  if (count > remaining() / each) {
    return Status::DataLoss("an array of " + std::to_string(count) + " values does not fit the " +
                            std::to_string(remaining()) + " bytes left at byte " + std::to_string(position_));
  }
  if (type == kString) {
    return ReadAll<std::string>(count, out, [this](std::string* s) { return ReadString(s, "a metadata string"); });
  }
  if (type == kFloat32 || type == kFloat64) {
    return ReadAll<double>(count, out, [this, type](double* value) { return ReadFloat(*this, type, value); });
  }
  return ReadAll<int64_t>(count, out, [this, type](int64_t* value) { return ReadInteger(*this, type, value); });
}

}  // namespace fastllm::runtime
