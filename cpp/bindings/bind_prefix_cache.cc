// KvEvent, KvEventBatch, and what the engine says of its prefix cache.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings/engine_class.h"
#include "bindings/errors.h"
#include "bindings/token_ids.h"
#include "fastllm/kv_events.h"

namespace py = pybind11;

namespace fastllm::bindings {
namespace {

const char* KindName(KvEventKind kind) {
  switch (kind) {
    case KvEventKind::kStored: return "stored";
    case KvEventKind::kRemoved: return "removed";
    case KvEventKind::kCleared: return "cleared";
  }
  return "";
}

int32_t CountCachedTokens(Engine& engine, py::handle ids, const ExtraKeys& keys) {
  std::vector<int32_t> tokens = TokenIds(ids);
  py::gil_scoped_release release;
  return ValueOrThrow(engine.CountCachedTokens(std::move(tokens), keys));
}

int32_t PinPrefix(Engine& engine, py::handle ids, const ExtraKeys& keys, int32_t priority, int64_t ttl_ms) {
  std::vector<int32_t> tokens = TokenIds(ids);
  py::gil_scoped_release release;
  return ValueOrThrow(engine.PinPrefix(std::move(tokens), keys, priority, ttl_ms));
}

KvEventBatch DrainKvEvents(Engine& engine, int64_t most) {
  if (most < 0) throw StatusError(Status::InvalidArgument("most must be at least 0, got " + std::to_string(most)));
  py::gil_scoped_release release;
  return engine.DrainKvEvents(static_cast<size_t>(most));
}

}  // namespace

void BindPrefixCache(py::module_& m, EngineClass* engine) {
  py::class_<KvEvent>(m, "KvEvent", "A block of a prefix entered the cache or left it, or the cache was cleared.")
      .def_readonly("sequence", &KvEvent::sequence, "0, 1, 2, ...; a number that is left out was lost.")
      .def_property_readonly(
          "kind", [](const KvEvent& e) { return KindName(e.kind); }, "'stored', 'removed' or 'cleared'.")
      .def_readonly("group", &KvEvent::group)
      .def_readonly("block_hash", &KvEvent::hash, "Low 64 bits of the block's hash.")
      .def_property_readonly(
          "parent_block_hash",
          [](const KvEvent& e) -> py::object {
            return e.has_parent ? py::object(py::int_(e.parent_hash)) : py::none();
          },
          "Of a stored block: the hash of the block before, None for the first of a prompt.")
      .def_readonly("token_ids", &KvEvent::tokens, "Of a stored block.")
      .def_property_readonly("block_size", &KvEvent::block_size);
  py::class_<KvEventBatch>(m, "KvEventBatch")
      .def_readonly("events", &KvEventBatch::events, "Oldest first.")
      .def_readonly("num_lost", &KvEventBatch::num_lost,
                    "Lost since the engine's start; when it grows, forget what you know of this cache.");
  (*engine)
      .def("count_cached_tokens", &CountCachedTokens, py::arg("prompt_token_ids"), py::arg("extra_keys") = ExtraKeys{},
           "How many tokens of a prompt a request would find in the prefix cache now.")
      .def("pin_prefix", &PinPrefix, py::arg("prompt_token_ids"), py::arg("extra_keys") = ExtraKeys{}, py::kw_only(),
           py::arg("priority"), py::arg("ttl_ms"),
           "Keeps what is cached of a prefix longer than what has a lower priority; its tokens.")
      .def("drain_kv_events", &DrainKvEvents, py::arg("most"), "The oldest KV events, `most` at most.");
}

}  // namespace fastllm::bindings
