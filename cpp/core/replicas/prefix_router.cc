#include "core/replicas/prefix_router.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"
#include "core/base/xxh3.h"

namespace fastllm {
namespace {

uint64_t Hash(const void* data, size_t size, uint64_t seed) {
  return Xxh3Hash128({static_cast<const unsigned char*>(data), size}, seed).lo;
}

constexpr double kSlack = 2;  // outputs above the mean that are nobody's concern

// What makes two equal prompts different to the prefix caches, as bytes.
std::string KeyBytes(const ExtraKeys* keys) {
  std::string out;
  if (keys == nullptr) return out;
  const auto add = [&out](std::string_view part) {
    out += std::to_string(part.size());
    out += ':';
    out += part;
  };
  add(keys->cache_salt);
  add(keys->lora_name);
  for (const MediaSpan& span : keys->media) {
    add(span.hash);
    add(std::to_string(span.offset));
  }
  for (const std::string& digest : keys->embedding_digests) add(digest);
  return out;
}

}  // namespace

PrefixRouter::PrefixRouter(const RouterOptions& options) : options_(options), sessions_(options.sessions) {
  FASTLLM_CHECK(options.num_replicas > 0 && options.block_size > 0, "a router needs replicas and a block size");
  caches_.assign(static_cast<size_t>(options.num_replicas), RecentMap<bool>(static_cast<size_t>(options.blocks)));
}

std::vector<uint64_t> PrefixRouter::BlockHashes(const RouteQuery& query) const {
  const auto size = static_cast<size_t>(options_.block_size);
  // The last token is computed in any case.
  const size_t count = query.tokens.empty() ? 0 : (query.tokens.size() - 1) / size;
  std::vector<uint64_t> hashes(std::min(count, static_cast<size_t>(options_.blocks)));
  const std::string keys = KeyBytes(query.extra_keys);
  uint64_t parent = Hash(keys.data(), keys.size(), 0);
  for (size_t i = 0; i < hashes.size(); ++i) {
    parent = Hash(query.tokens.data() + i * size, size * sizeof(int32_t), parent);
    hashes[i] = parent;
  }
  return hashes;
}

int32_t PrefixRouter::CachedBlocks(int32_t replica, const std::vector<uint64_t>& hashes) {
  RecentMap<bool>& cache = caches_[static_cast<size_t>(replica)];
  const auto miss = std::ranges::find_if(hashes, [&cache](uint64_t hash) { return cache.Find(hash) == nullptr; });
  return static_cast<int32_t>(miss - hashes.begin());
}

RouteChoice PrefixRouter::Choose(const RouteQuery& query, std::span<const ReplicaLoad> replicas) {
  const auto count = static_cast<int32_t>(replicas.size());
  FASTLLM_CHECK(count == options_.num_replicas, "the router has another number of replicas");
  double open = 0, total = query.outputs;
  for (const ReplicaLoad& replica : replicas) {
    if (!replica.open) continue;
    open += 1;
    total += static_cast<double>(replica.live);
  }
  RouteChoice best;
  if (open == 0) return best;
  const double mean = total / open;
  const double limit = std::max(options_.balance * mean, mean + kSlack);
  const auto has_room = [&](int32_t r) {
    return static_cast<double>(replicas[static_cast<size_t>(r)].live + query.outputs) <= limit;
  };
  const std::vector<uint64_t> hashes = options_.by_prefix ? BlockHashes(query) : std::vector<uint64_t>{};
  if (options_.by_prefix && !query.session.empty()) {
    const int32_t* at = sessions_.Find(Hash(query.session.data(), query.session.size(), 0));
    if (at != nullptr && replicas[static_cast<size_t>(*at)].open && has_room(*at)) {
      return {*at, RouteReason::kSession, CachedBlocks(*at, hashes) * options_.block_size};
    }
  }
  for (int32_t i = 0; i < count; ++i) {
    const int32_t r = (turn_ + i) % count;
    if (!replicas[static_cast<size_t>(r)].open) continue;
    if (!options_.by_prefix) {
      best = {r, RouteReason::kTurn, 0};
      break;
    }
    const int32_t hit = has_room(r) ? CachedBlocks(r, hashes) * options_.block_size : 0;
    const bool better = best.replica < 0 || hit > best.expected_hit_tokens ||
                        (hit == best.expected_hit_tokens &&
                         replicas[static_cast<size_t>(r)].live < replicas[static_cast<size_t>(best.replica)].live);
    if (better) best = {r, hit > 0 ? RouteReason::kPrefix : RouteReason::kLoad, hit};
  }
  turn_ = (best.replica + 1) % count;
  return best;
}

void PrefixRouter::Sent(const RouteQuery& query, int32_t replica) {
  if (!options_.by_prefix) return;
  const std::vector<uint64_t> hashes = BlockHashes(query);
  // The end first: it is of least use to others, and the caches give it up first.
  for (size_t i = hashes.size(); i-- > 0;) caches_[static_cast<size_t>(replica)].Put(hashes[i], true);
  if (!query.session.empty()) sessions_.Put(Hash(query.session.data(), query.session.size(), 0), replica);
}

void PrefixRouter::Forget(int32_t replica) { caches_[static_cast<size_t>(replica)].Clear(); }

}  // namespace fastllm
