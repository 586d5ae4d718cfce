// EngineConfig: everything a user may set when an engine is made. Plain data; see field.h for the lists.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "fastllm/field.h"

namespace fastllm {

#define FASTLLM_FIELD(type, name, def, check, help) type name = def;
struct ModelOptions {
#include "fastllm/fields/model_options.def"
};
struct CacheOptions {
#include "fastllm/fields/cache_options.def"
};
struct SchedulerOptions {
#include "fastllm/fields/scheduler_options.def"
};
struct RuntimeOptions {
#include "fastllm/fields/runtime_options.def"
};
struct ParallelOptions {
#include "fastllm/fields/parallel_options.def"
};
#undef FASTLLM_FIELD

// The rooms of an engine. Keys are flat for users ("block_size", not "cache.block_size"): no two rooms share one.
struct EngineConfig {
  ModelOptions model;
  CacheOptions cache;
  SchedulerOptions scheduler;
  RuntimeOptions runtime;
  ParallelOptions parallel;
};

// Calls v(FieldInfo, field&) for every field in declaration order. S is the struct or a const of it.
#define FASTLLM_FIELD(type, name, def, check, help) v(FieldInfo{#name, help, kRoom, check}, s.name);
template <typename S, typename V>
  requires std::is_same_v<std::remove_const_t<S>, ModelOptions>
void VisitFields(S& s, V&& v) {
  constexpr std::string_view kRoom = "model";
#include "fastllm/fields/model_options.def"
}
template <typename S, typename V>
  requires std::is_same_v<std::remove_const_t<S>, CacheOptions>
void VisitFields(S& s, V&& v) {
  constexpr std::string_view kRoom = "cache";
#include "fastllm/fields/cache_options.def"
}
template <typename S, typename V>
  requires std::is_same_v<std::remove_const_t<S>, SchedulerOptions>
void VisitFields(S& s, V&& v) {
  constexpr std::string_view kRoom = "scheduler";
#include "fastllm/fields/scheduler_options.def"
}
template <typename S, typename V>
  requires std::is_same_v<std::remove_const_t<S>, RuntimeOptions>
void VisitFields(S& s, V&& v) {
  constexpr std::string_view kRoom = "runtime";
#include "fastllm/fields/runtime_options.def"
}
template <typename S, typename V>
  requires std::is_same_v<std::remove_const_t<S>, ParallelOptions>
void VisitFields(S& s, V&& v) {
  constexpr std::string_view kRoom = "parallel";
#include "fastllm/fields/parallel_options.def"
}
#undef FASTLLM_FIELD
template <typename S, typename V>
  requires std::is_same_v<std::remove_const_t<S>, EngineConfig>
void VisitFields(S& s, V&& v) {
  VisitFields(s.model, v);
  VisitFields(s.cache, v);
  VisitFields(s.scheduler, v);
  VisitFields(s.runtime, v);
  VisitFields(s.parallel, v);
}

}  // namespace fastllm
