// PrefixRouter: which of several replicas of a model takes a request.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/replicas/recent_map.h"
#include "fastllm/extra_keys.h"

namespace fastllm {

struct RouterOptions {
  int32_t num_replicas = 1;
  int32_t block_size = 16;     // tokens, of the replicas' prefix caches
  int64_t blocks = 0;          // of the prefix cache of one replica
  double balance = 1.25;       // most load of a replica, by the mean of all that take requests
  bool by_prefix = true;       // false: in turn
  size_t sessions = 1u << 16;  // most sessions that are remembered
};

struct RouteQuery {
  std::span<const int32_t> tokens;
  const ExtraKeys* extra_keys = nullptr;  // prefixes are shared only under equal keys; null: none
  std::string_view session = {};          // requests of one session stay together; empty: none
  int32_t outputs = 1;
};

// What the router is told about a replica when it chooses.
struct ReplicaLoad {
  bool open = true;  // takes requests
  int64_t live = 0;  // outputs that have been sent to it and have not ended
};

// Why a replica was taken.
enum class RouteReason : uint8_t { kLoad = 0, kPrefix, kSession, kTurn };

struct RouteChoice {
  int32_t replica = -1;  // -1: no replica is open
  RouteReason reason = RouteReason::kLoad;
  int32_t expected_hit_tokens = 0;
};

// Keeps, for each replica, what it was sent lately, as hashes of whole blocks: its own picture of the prefix caches,
// which it forgets in the order in which they do. A request goes to its session's replica, or else to the one with the
// longest prefix of it, unless that one is past its share of the load: live + outputs > balance * mean, and 2 above the
// mean. Then the next longest, and among equals the one with the least load, in turn. Not thread-safe.
class PrefixRouter {
 public:
  explicit PrefixRouter(const RouterOptions& options);

  // `replicas`: one for each.
  RouteChoice Choose(const RouteQuery& query, std::span<const ReplicaLoad> replicas);
  // The request has been taken by the replica.
  void Sent(const RouteQuery& query, int32_t replica);
  // The replica's prefix cache is empty.
  void Forget(int32_t replica);

 private:
  std::vector<uint64_t> BlockHashes(const RouteQuery& query) const;
  int32_t CachedBlocks(int32_t replica, const std::vector<uint64_t>& hashes);

  const RouterOptions options_;
  std::vector<RecentMap<bool>> caches_;  // by replica: block hashes
  RecentMap<int32_t> sessions_;          // hash of the session -> replica
  int32_t turn_ = 0;                     // where ties are looked at first
};

}  // namespace fastllm
