// ExtraKeys: what besides its tokens decides the KV of a prompt. Cached prefixes are shared only under equal keys.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fastllm {

// A multimodal item (image, audio, ...) that stands for tokens offset .. offset + length - 1 of the prompt.
struct MediaSpan {
  std::string hash;  // of the item's content, not empty
  int32_t offset = 0;
  int32_t length = 0;
};

// Keys only: they keep prefixes apart, they load and apply nothing.
struct ExtraKeys {
  std::string cache_salt;
  std::string lora_name;  // empty: no LoRA
  std::string lora_path;
  std::vector<MediaSpan> media;                // by offset, not overlapping
  std::vector<std::string> embedding_digests;  // [block], of prompt embeddings; empty: the block has token ids only

  // Whether blocks after the first have keys of their own. What block 0 carries reaches the others through the chain.
  bool vary() const { return !media.empty() || !embedding_digests.empty(); }
};

}  // namespace fastllm
