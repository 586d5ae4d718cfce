// Extra keys: what besides its tokens decides the KV of a block. They are part of the chained hash and of the compared
// identity, so prefixes that differ in them are never shared.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fastllm {

// A multimodal item (image, audio, ...) that stands for tokens offset .. offset + length - 1 of the sequence.
struct MediaSpan {
  std::string hash;  // of the item's content
  int32_t offset = 0;
  int32_t length = 0;
};

struct ExtraKeys {
  std::string cache_salt;
  std::string lora_name;  // empty: no LoRA
  std::string lora_path;
  std::vector<MediaSpan> media;                // by offset, not overlapping
  std::vector<std::string> embedding_digests;  // [block], of prompt embeddings; empty: the block has token ids only

  // Whether blocks after the first have keys of their own. What block 0 carries reaches the others through the chain.
  bool vary() const { return !media.empty() || !embedding_digests.empty(); }
};

// Appends the keys of block `block` of a sequence (block_size tokens each) as bytes, each part with its kind and
// length: LoRA (block 0), every media item that overlaps the block with its offset from the block's first token, cache
// salt (block 0), embedding digest. Nothing is appended for a block without keys.
void AppendExtraKeys(const ExtraKeys& keys, int32_t block, int32_t block_size, std::string* out);

// The extra keys of block 0 of a sequence that has a cache salt only; "" for no salt.
std::string CacheSaltKey(std::string_view cache_salt);

}  // namespace fastllm
