// The engine's TokenTable from GGUF tokenizer metadata (tokenizer.ggml.*).
#pragma once

#include "fastllm/token_table.h"
#include "runtime/weights/gguf.h"

namespace fastllm::runtime {

// Models "gpt2" (byte-level: the 256 printable stand-ins are mapped back to bytes; added tokens literal) and "llama"
// (SentencePiece: U+2581 is a space, byte tokens <0xNN> are that byte). kNotFound when the file has no tokenizer
// (none named, or "no_vocab" or "none"), kUnimplemented for another model, kDataLoss for arrays of wrong length.
Result<TokenTable> TokenTableFromGguf(const GgufMetadata& metadata);

}  // namespace fastllm::runtime
