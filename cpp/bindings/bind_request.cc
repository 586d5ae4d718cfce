// GenerationRequest and ExtraKeys.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/errors.h"
#include "bindings/field_value.h"
#include "bindings/token_ids.h"
#include "fastllm/engine.h"

namespace py = pybind11;

namespace fastllm::bindings {

namespace {

// None stands for 0.
template <typename T>
T Integer(const char* name, py::handle object) {
  if (object.is_none()) return 0;
  const FieldValue value = FromPython(name, "int64", object);
  const auto* number = std::get_if<int64_t>(&value);
  if (number == nullptr) {
    throw py::type_error(std::string(name) + " must be an int or None, got " + Py_TYPE(object.ptr())->tp_name);
  }
  if (*number < std::numeric_limits<T>::min() || *number > std::numeric_limits<T>::max()) {
    throw StatusError(Status::InvalidArgument(
        std::string(name) + " must be in [" + std::to_string(std::numeric_limits<T>::min()) + ", " +
        std::to_string(std::numeric_limits<T>::max()) + "], got " + std::to_string(*number)));
  }
  return static_cast<T>(*number);
}

ExtraKeys MakeExtraKeys(const py::str& salt, const py::str& lora_name, const py::str& lora_path,
                        const std::vector<std::tuple<std::string, int32_t, int32_t>>& media,
                        std::vector<std::string> embedding_digests) {
  ExtraKeys keys;
  keys.cache_salt = Utf8Text("cache_salt", salt);
  keys.lora_name = Utf8Text("lora_name", lora_name);
  keys.lora_path = Utf8Text("lora_path", lora_path);
  keys.media.reserve(media.size());
  for (const auto& [hash, offset, length] : media) keys.media.push_back({hash, offset, length});
  keys.embedding_digests = std::move(embedding_digests);
  return keys;
}

}  // namespace

void BindRequest(py::module_& m) {
  py::class_<ExtraKeys>(
      m, "ExtraKeys",
      "What besides its tokens decides the KV of a prompt: prefixes are shared only under equal keys. "
      "media: (hash, offset, length) of each item, in order; embedding_digests: one per block.")
      .def(py::init(&MakeExtraKeys), py::kw_only(), py::arg("cache_salt") = "", py::arg("lora_name") = "",
           py::arg("lora_path") = "", py::arg("media") = std::vector<std::tuple<std::string, int32_t, int32_t>>{},
           py::arg("embedding_digests") = std::vector<std::string>{})
      .def_readonly("cache_salt", &ExtraKeys::cache_salt)
      .def_readonly("lora_name", &ExtraKeys::lora_name)
      .def_readonly("lora_path", &ExtraKeys::lora_path);
  py::class_<GenerationRequest>(m, "GenerationRequest", "One prompt to continue, and how.")
      .def(py::init([](py::handle ids, const SamplingParams& sampling, const ExtraKeys& keys, py::handle priority,
                       py::handle timeout_ms, py::handle max_queue_time_ms, py::handle data_parallel_rank,
                       const py::str& session_id) {
             return GenerationRequest{
                 TokenIds(ids),
                 sampling,
                 keys,
                 Integer<int32_t>("priority", priority),
                 Integer<int64_t>("timeout_ms", timeout_ms),
                 Integer<int64_t>("max_queue_time_ms", max_queue_time_ms),
                 data_parallel_rank.is_none() ? -1 : Integer<int32_t>("data_parallel_rank", data_parallel_rank),
                 Utf8Text("session_id", session_id)};
           }),
           py::arg("prompt_token_ids"), py::arg("sampling_params"), py::arg("extra_keys") = ExtraKeys{}, py::kw_only(),
           py::arg("priority") = 0, py::arg("timeout_ms") = py::none(), py::arg("max_queue_time_ms") = py::none(),
           py::arg("data_parallel_rank") = py::none(), py::arg("session_id") = "")
      .def(
          "without_text",
          [](GenerationRequest request) {
            request.sampling.detokenize = false;
            request.sampling.stop.clear();
            return request;
          },
          "The same without text and stop strings, for text that Python makes.")
      .def(
          "set_prompt_of",
          [](GenerationRequest& request, const GenerationRequest& other) {
            request.prompt_token_ids = other.prompt_token_ids;
          },
          py::arg("other"), "Takes over the prompt of another request, as validate() left it.")
      .def_readonly("prompt_token_ids", &GenerationRequest::prompt_token_ids)
      .def_readonly("sampling_params", &GenerationRequest::sampling)
      .def_readonly("extra_keys", &GenerationRequest::extra_keys)
      .def_readonly("priority", &GenerationRequest::priority)
      .def_readonly("timeout_ms", &GenerationRequest::timeout_ms)
      .def_readonly("max_queue_time_ms", &GenerationRequest::max_queue_time_ms)
      .def_readonly("data_parallel_rank", &GenerationRequest::data_parallel_rank)
      .def_readonly("session_id", &GenerationRequest::session_id);
}

}  // namespace fastllm::bindings
