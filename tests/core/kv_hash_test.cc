#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "core/kv/block_hash.h"
#include "core/kv/extra_keys.h"
#include "core/kv/kv_manager.h"

namespace fastllm {
namespace {

using Tokens = std::vector<TokenId>;

Tokens Range(TokenId first, int32_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// The expected digests were computed with xxhash 4.1.0 (pip) and hashlib over the message that block_hash.h describes.
TEST(HashBlock, XxHashEqualsTheReference) {
  const BlockHashSpec spec{PrefixHashAlgo::kXxHash, 7};
  const BlockHash first = HashBlock(kChainSeed, Range(1, 16), CacheSaltKey("blue"), spec);
  EXPECT_EQ(first, (BlockHash{0x33dfd70da593075e, 0xac581a3c24eb58b0, {}}));
  EXPECT_EQ(HashBlock(first, Range(17, 16), "", spec), (BlockHash{0x66aebc803ea32a44, 0x3c9457bdbbe495a1, {}}));
  // A block whose message is larger than the buffer on the stack.
  EXPECT_EQ(HashBlock(kChainSeed, Range(0, 300), "", spec), (BlockHash{0xd8c6d4159a414b7a, 0x29b23e39aef2c909, {}}));
}

TEST(HashBlock, Sha256EqualsTheReference) {
  const BlockHashSpec spec{PrefixHashAlgo::kSha256, 7};
  const BlockHash first = HashBlock(kChainSeed, Range(1, 16), CacheSaltKey("blue"), spec);
  EXPECT_EQ(first, (BlockHash{0x4d78effcdab71cf7, 0x3c95016245431b14, {0xd8e7d0a0a6e84dd7, 0xf5d405fcfd2e2174}}));
  EXPECT_EQ(HashBlock(first, Range(17, 16), "", spec),
            (BlockHash{0x07ffb9cee7684018, 0x6fc7d6595e569bc2, {0x682e41d8e145ea00, 0xfde85cd46fc91abc}}));
}

TEST(HashBlock, TheSeedChangesXxHashAndNotSha256) {
  const Tokens tokens = Range(1, 16);
  for (PrefixHashAlgo algo : {PrefixHashAlgo::kXxHash, PrefixHashAlgo::kSha256}) {
    const bool same = HashBlock(kChainSeed, tokens, "", {algo, 1}) == HashBlock(kChainSeed, tokens, "", {algo, 2});
    EXPECT_EQ(same, algo == PrefixHashAlgo::kSha256);
  }
}

std::string Keys(const ExtraKeys& keys, int32_t block) {
  std::string out;
  AppendExtraKeys(keys, block, 4, &out);
  return out;
}

std::string Number(char low, bool negative = false) {
  return std::string(1, low) + std::string(7, negative ? '\xff' : '\0');
}

TEST(ExtraKeys, SaltAndLoraAreInTheFirstBlockOnly) {
  ExtraKeys keys;
  EXPECT_EQ(Keys(keys, 0), "");
  keys.cache_salt = "ab";
  EXPECT_EQ(Keys(keys, 0), "S" + Number(2) + "ab");
  EXPECT_EQ(Keys(keys, 0), CacheSaltKey("ab"));
  EXPECT_EQ(CacheSaltKey(""), "");
  keys.lora_name = "n";
  keys.lora_path = "/p";
  EXPECT_EQ(Keys(keys, 0), "L" + Number(1) + "n" + Number(2) + "/p" + "S" + Number(2) + "ab");
  EXPECT_EQ(Keys(keys, 1), "");
  EXPECT_FALSE(keys.vary());
}

TEST(ExtraKeys, MediaItemsAreInEveryBlockThatTheyOverlap) {
  ExtraKeys keys;
  keys.media = {{"x", 2, 3}, {"yy", 5, 7}, {"z", 16, 1}};  // tokens 2..4, 5..11, 16; blocks of 4
  EXPECT_TRUE(keys.vary());
  EXPECT_EQ(Keys(keys, 0), "M" + Number(1) + "x" + Number(2));
  EXPECT_EQ(Keys(keys, 1), "M" + Number(1) + "x" + Number('\xfe', true) + "M" + Number(2) + "yy" + Number(1));
  EXPECT_EQ(Keys(keys, 2), "M" + Number(2) + "yy" + Number('\xfd', true));
  EXPECT_EQ(Keys(keys, 3), "");
  EXPECT_EQ(Keys(keys, 4), "M" + Number(1) + "z" + Number(0));
}

TEST(ExtraKeys, EmbeddingDigestsBelongToTheirBlock) {
  ExtraKeys keys;
  keys.embedding_digests = {"", "d"};
  EXPECT_TRUE(keys.vary());
  EXPECT_EQ(Keys(keys, 0), "");
  EXPECT_EQ(Keys(keys, 1), "E" + Number(1) + "d");
  EXPECT_EQ(Keys(keys, 2), "");
}

TEST(ExtraKeys, NoTwoKindsAreConfused) {
  ExtraKeys salt, lora, media;
  salt.cache_salt = "n";
  lora.lora_name = "n";
  media.media = {{"n", 0, 4}};
  EXPECT_NE(Keys(salt, 0), Keys(lora, 0));
  EXPECT_NE(Keys(salt, 0), Keys(media, 0));
  // The boundary between two texts is part of the key.
  ExtraKeys a, b;
  a.lora_name = "ab";
  a.lora_path = "c";
  b.lora_name = "a";
  b.lora_path = "bc";
  EXPECT_NE(Keys(a, 0), Keys(b, 0));
}

class ExtraKeysCache : public ::testing::TestWithParam<PrefixHashAlgo> {
 protected:
  static KvConfig Config() {
    KvConfig config;
    config.num_blocks = 100;
    config.block_size = 4;
    config.prefix_hash_algo = GetParam();
    return config;
  }
  // Hit of a sequence of 13 tokens with these keys; it is cached afterwards.
  int32_t Hit(const ExtraKeys& keys) {
    const Tokens tokens = Range(1, 13);
    const KvSlot slot = next_++;
    kv_.Open(slot, keys);
    const int32_t hit = kv_.FindPrefix(slot, tokens);
    EXPECT_EQ(kv_.CountCachedTokens(tokens, keys), hit);
    EXPECT_TRUE(kv_.Admit(slot, tokens, hit, 13 - hit));
    return hit;
  }

  KvManager kv_{Config()};
  KvSlot next_ = 0;
};

TEST_P(ExtraKeysCache, EveryKindSeparatesPrefixes) {
  ExtraKeys none, salt, lora, other_path;
  salt.cache_salt = "s";
  lora.lora_name = "l";
  lora.lora_path = "/a";
  other_path = lora;
  other_path.lora_path = "/b";
  for (const ExtraKeys& keys : {none, salt, lora, other_path}) {
    EXPECT_EQ(Hit(keys), 0);
    EXPECT_EQ(Hit(keys), 12);
  }
}

TEST_P(ExtraKeysCache, MediaAndEmbeddingsCountFromTheirBlockOn) {
  ExtraKeys image, other_image, moved, digest, other_digest;
  image.media = {{"cat", 5, 2}};  // block 1
  other_image.media = {{"dog", 5, 2}};
  moved.media = {{"cat", 4, 2}};
  digest.embedding_digests = {"", "", "d"};  // block 2
  other_digest.embedding_digests = {"", "", "e"};
  EXPECT_EQ(Hit(image), 0);
  EXPECT_EQ(Hit(image), 12);
  EXPECT_EQ(Hit(other_image), 4);
  EXPECT_EQ(Hit(moved), 4);
  EXPECT_EQ(Hit(other_image), 12);
  EXPECT_EQ(Hit(digest), 4);
  EXPECT_EQ(Hit(other_digest), 8);
  EXPECT_EQ(Hit(digest), 12);
  EXPECT_EQ(Hit({}), 8);
}

INSTANTIATE_TEST_SUITE_P(Algos, ExtraKeysCache, ::testing::Values(PrefixHashAlgo::kXxHash, PrefixHashAlgo::kSha256));

}  // namespace
}  // namespace fastllm
