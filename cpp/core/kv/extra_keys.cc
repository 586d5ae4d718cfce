#include "core/kv/extra_keys.h"

#include <algorithm>

namespace fastllm {
namespace {

enum class KeyKind : char { kLora = 'L', kMedia = 'M', kSalt = 'S', kEmbedding = 'E' };

void AppendNumber(uint64_t value, std::string* out) {
  for (int i = 0; i < 8; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

void AppendText(std::string_view text, std::string* out) {
  AppendNumber(text.size(), out);
  out->append(text);
}

void AppendMedia(const std::vector<MediaSpan>& media, int64_t begin, int64_t end, std::string* out) {
  auto item = std::ranges::partition_point(
      media, [begin](const MediaSpan& m) { return int64_t{m.offset} + m.length <= begin; });
  for (; item != media.end() && item->offset < end; ++item) {
    out->push_back(static_cast<char>(KeyKind::kMedia));
    AppendText(item->hash, out);
    AppendNumber(static_cast<uint64_t>(item->offset - begin), out);
  }
}

void AppendSalt(std::string_view cache_salt, std::string* out) {
  if (cache_salt.empty()) return;
  out->push_back(static_cast<char>(KeyKind::kSalt));
  AppendText(cache_salt, out);
}

}  // namespace

void AppendExtraKeys(const ExtraKeys& keys, int32_t block, int32_t block_size, std::string* out) {
  if (block == 0 && !keys.lora_name.empty()) {
    out->push_back(static_cast<char>(KeyKind::kLora));
    AppendText(keys.lora_name, out);
    AppendText(keys.lora_path, out);
  }
  if (!keys.media.empty()) {
    const int64_t begin = int64_t{block} * block_size;
    AppendMedia(keys.media, begin, begin + block_size, out);
  }
  if (block == 0) AppendSalt(keys.cache_salt, out);
  if (static_cast<size_t>(block) < keys.embedding_digests.size() && !keys.embedding_digests[block].empty()) {
    out->push_back(static_cast<char>(KeyKind::kEmbedding));
    AppendText(keys.embedding_digests[block], out);
  }
}

std::string CacheSaltKey(std::string_view cache_salt) {
  std::string out;
  AppendSalt(cache_salt, &out);
  return out;
}

}  // namespace fastllm
