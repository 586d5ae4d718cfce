// HMAC with SHA-256 (RFC 2104): what only those who share a key can compute from a message.
#pragma once

#include <string_view>

#include "core/base/sha256.h"

namespace fastllm {

Sha256Digest HmacSha256(std::string_view key, std::string_view message);

// Whether two digests are equal, in a time that does not tell where they differ.
bool SameDigest(const Sha256Digest& a, const Sha256Digest& b);

}  // namespace fastllm
