// The extra keys of a block as bytes. They are part of the chained hash and of the compared identity, so prefixes that
// differ in them are never shared.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fastllm/extra_keys.h"

namespace fastllm {

// Appends the keys of block `block` of a sequence (block_size tokens each) as bytes, each part with its kind and
// length: LoRA (block 0), every media item that overlaps the block with its offset from the block's first token, cache
// salt (block 0), embedding digest. Nothing is appended for a block without keys.
void AppendExtraKeys(const ExtraKeys& keys, int32_t block, int32_t block_size, std::string* out);

// The extra keys of block 0 of a sequence that has a cache salt only; "" for no salt.
std::string CacheSaltKey(std::string_view cache_salt);

}  // namespace fastllm
