// BlockPool and PrefixIndex, for pytest. Block ids are checked here: inside the core they come from the pool itself.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "bindings/bind.h"
#include "bindings/errors.h"
#include "core/kv/block_hash.h"
#include "core/kv/block_pool.h"
#include "core/kv/extra_keys.h"
#include "core/kv/prefix_index.h"

namespace py = pybind11;

namespace fastllm::bindings {
namespace {

void CheckBlock(BlockId block, int32_t num_blocks) {
  if (block >= 0 && block < num_blocks) return;
  throw StatusError(Status::InvalidArgument("block " + std::to_string(block) + " is outside [0, " +
                                            std::to_string(num_blocks) + ")"));
}

void CheckBlocks(const BlockPool& pool, const std::vector<BlockId>& blocks) {
  for (BlockId block : blocks) CheckBlock(block, pool.num_blocks());
}

void BindPool(py::module_& m) {
  py::class_<BlockPool>(m, "BlockPool")
      .def(py::init<int32_t, PrefixIndex*>(), py::arg("num_blocks"),
           py::arg("index") = static_cast<PrefixIndex*>(nullptr), py::keep_alive<1, 3>())
      .def(
          "allocate",
          [](BlockPool& pool, int32_t count) -> py::object {
            std::vector<BlockId> out;
            if (!pool.Allocate(count, &out)) return py::none();
            return py::cast(out);
          },
          py::arg("count"), "Block ids, or None when too few are free.")
      .def("touch",
           [](BlockPool& pool, const std::vector<BlockId>& blocks) {
             CheckBlocks(pool, blocks);
             pool.Touch(blocks);
           })
      .def("free",
           [](BlockPool& pool, const std::vector<BlockId>& table) {
             CheckBlocks(pool, table);
             pool.Free(table);
           })
      .def("reset_prefix_cache", &BlockPool::ResetPrefixCache)
      .def_property_readonly("num_blocks", &BlockPool::num_blocks)
      .def_property_readonly("num_free_blocks", &BlockPool::num_free_blocks)
      .def_property_readonly("num_used_blocks", &BlockPool::num_used_blocks)
      .def("ref_count",
           [](const BlockPool& pool, BlockId block) {
             CheckBlock(block, pool.num_blocks());
             return pool.ref_count(block);
           })
      .def("free_blocks", &BlockPool::FreeBlocks, "The free list, next to be taken first.");
}

}  // namespace

void BindTestingKv(py::module_& m) {
  py::class_<BlockHash>(m, "BlockHash")
      .def_readonly("lo", &BlockHash::lo)
      .def_readonly("hi", &BlockHash::hi)
      .def("__eq__", [](const BlockHash& a, const BlockHash& b) { return a == b; })
      .def("__hash__", [](const BlockHash& h) { return h.lo; });
  m.attr("CHAIN_SEED") = kChainSeed;
  m.attr("ROOT_NODE") = kRootNode;
  m.attr("NO_NODE") = kNoNode;
  m.def(
      "hash_block",
      [](const BlockHash& parent, const std::vector<TokenId>& tokens, const std::string& extra) {
        return HashBlock(parent, tokens, extra);
      },
      py::arg("parent"), py::arg("tokens"), py::arg("extra_keys") = "");
  m.def("cache_salt_key", [](const std::string& salt) { return py::bytes(CacheSaltKey(salt)); });

  using Tokens = std::vector<TokenId>;
  py::class_<PrefixIndex>(m, "PrefixIndex")
      .def(py::init<int32_t, int32_t, int32_t>(), py::arg("num_blocks"), py::arg("block_size"),
           py::arg("num_groups") = 1)
      .def(
          "find",
          [](const PrefixIndex& index, PrefixNode parent, const BlockHash& hash, const Tokens& tokens,
             const std::string& extra) { return index.Find(parent, hash, tokens, extra); },
          py::arg("parent"), py::arg("hash"), py::arg("tokens"), py::arg("extra_keys") = "")
      .def(
          "insert",
          [](PrefixIndex& index, PrefixNode parent, const BlockHash& hash, const Tokens& tokens,
             const std::vector<BlockId>& blocks,
             const std::string& extra) { return index.Insert(parent, hash, tokens, extra, blocks); },
          py::arg("parent"), py::arg("hash"), py::arg("tokens"), py::arg("blocks"), py::arg("extra_keys") = "")
      .def("erase", &PrefixIndex::Erase, py::arg("block"))
      .def("contains", &PrefixIndex::Contains, py::arg("block"))
      .def("node_of", &PrefixIndex::NodeOf, py::arg("block"))
      .def("any_block", &PrefixIndex::AnyBlock, py::arg("node"), py::arg("group") = 0)
      .def("clear", &PrefixIndex::Clear)
      .def_property_readonly("block_size", &PrefixIndex::block_size)
      .def_property_readonly("num_cached_blocks", &PrefixIndex::num_cached_blocks)
      .def_property_readonly("num_nodes", &PrefixIndex::num_nodes);
  BindPool(m);
}

}  // namespace fastllm::bindings
