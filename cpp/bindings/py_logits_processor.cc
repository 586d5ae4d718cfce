#include "bindings/py_logits_processor.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

namespace py = pybind11;

namespace fastllm::bindings {
namespace {

using Logits = py::array_t<float, py::array::c_style | py::array::forcecast>;

py::list IdList(std::span<const int32_t> ids) {
  py::list list(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) list[i] = py::int_(ids[i]);
  return list;
}

// The exception's type and message; with the GIL, and no longer than it is held: the exception holds Python objects.
std::string TextOf(const py::error_already_set& error) {
  std::string text = py::str(error.type().attr("__name__")).cast<std::string>();
  text += ": ";
  text += py::str(error.value()).cast<std::string>();
  return text;
}

py::object Module() { return py::module_::import("fastllm_core.logits_processor"); }

}  // namespace

PyLogitsProcessor::PyLogitsProcessor(py::object object) : object_(std::move(object)) {
  name_ = py::str(py::type::of(object_).attr("__name__")).cast<std::string>();
  invariant_ = object_.attr("is_argmax_invariant")().cast<bool>();
  if (py::hasattr(object_, "arg_names")) {
    for (py::handle name : py::iter(object_.attr("arg_names"))) arg_names_.push_back(name.cast<std::string>());
  }
}

PyLogitsProcessor::~PyLogitsProcessor() {
  if (Py_IsInitialized() == 0) {  // the interpreter has gone, and the objects with it
    static_cast<void>(object_.release());
    for (Place& place : batch_) static_cast<void>(place.output_token_ids.release());
    return;
  }
  const py::gil_scoped_acquire gil;
  batch_.clear();
  object_ = py::object();
}

Status PyLogitsProcessor::ValidateParams(const SamplingParams& params) const {
  const py::gil_scoped_acquire gil;
  try {
    if (py::hasattr(object_, "validate_params")) object_.attr("validate_params")(params);
    return Status::Ok();
  } catch (const py::error_already_set& e) {
    return Status::InvalidArgument(name_ + ": " + TextOf(e));
  }
}

py::object PyLogitsProcessor::UpdateBatch(std::span<const ProcessorRow> rows, std::vector<size_t>* places) {
  std::unordered_map<uint64_t, size_t> row_of;
  for (size_t i = 0; i < rows.size(); ++i) row_of[rows[i].request_id + static_cast<uint64_t>(rows[i].index)] = i;
  places->assign(rows.size(), SIZE_MAX);
  std::vector<size_t> free;  // ascending
  for (size_t place = 0; place < batch_.size(); ++place) {
    const auto it = row_of.find(batch_[place].id);
    if (it == row_of.end()) {
      free.push_back(place);
    } else {
      (*places)[it->second] = place;
    }
  }
  py::list added, removed, moved;
  size_t num_taken = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const ProcessorRow& row = rows[i];
    if ((*places)[i] != SIZE_MAX) {
      py::list& output = batch_[(*places)[i]].output_token_ids;
      for (size_t n = output.size(); n < row.output_token_ids.size(); ++n) output.append(row.output_token_ids[n]);
      continue;
    }
    const size_t place = num_taken < free.size() ? free[num_taken++] : batch_.size();
    if (place == batch_.size()) batch_.emplace_back();
    batch_[place] = {row.request_id + static_cast<uint64_t>(row.index), IdList(row.output_token_ids)};
    (*places)[i] = place;
    added.append(py::make_tuple(place, *row.params, IdList(row.prompt_token_ids), batch_[place].output_token_ids));
  }
  std::vector<bool> is_free(batch_.size(), false);
  for (size_t i = num_taken; i < free.size(); ++i) {
    is_free[free[i]] = true;
    removed.append(free[i]);
  }
  const auto unidirectional = Module().attr("MoveDirectionality").attr("UNIDIRECTIONAL");
  for (size_t i = num_taken; i < free.size() && free[i] < rows.size(); ++i) {
    while (is_free[batch_.size() - 1]) batch_.pop_back();
    const size_t last = batch_.size() - 1;
    moved.append(py::make_tuple(last, free[i], unidirectional));
    *std::ranges::find(*places, last) = free[i];
    batch_[free[i]] = std::move(batch_.back());
    batch_.pop_back();
  }
  batch_.resize(rows.size());
  if (added.empty() && removed.empty()) return py::none();
  return Module().attr("BatchUpdate")(rows.size(), removed, added, moved);
}

void PyLogitsProcessor::TakeRowErrors(std::span<ProcessorRow> rows, const std::vector<size_t>& places) const {
  if (!py::hasattr(object_, "take_row_errors")) return;
  const py::dict errors = object_.attr("take_row_errors")();
  for (auto [place, error] : errors) {
    const auto at = std::ranges::find(places, place.cast<size_t>());
    if (at == places.end()) continue;
    std::string text = py::str(py::type::of(error).attr("__name__")).cast<std::string>();
    text += ": ";
    text += py::str(error).cast<std::string>();
    rows[at - places.begin()].status = Status::InvalidArgument(std::move(text));
  }
}

Status PyLogitsProcessor::Apply(std::span<ProcessorRow> rows) {
  const py::gil_scoped_acquire gil;
  try {
    std::vector<size_t> places;
    object_.attr("update_state")(UpdateBatch(rows, &places));
    const size_t vocab = rows.front().logits.size();
    // A copy that Python owns: it may be kept, and the engine's memory goes on to other steps.
    Logits logits({rows.size(), vocab});
    for (size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(logits.mutable_data(places[i], 0), rows[i].logits.data(), vocab * sizeof(float));
    }
    const py::object result = object_.attr("apply")(logits);
    const Logits out = result.is_none() ? logits : Logits::ensure(result);
    if (!out || out.ndim() != 2 || std::cmp_not_equal(out.shape(0), rows.size()) ||
        std::cmp_not_equal(out.shape(1), vocab)) {
      PyErr_Clear();
      return Status::InvalidArgument("apply() must return its logits or an array of the same shape, [" +
                                     std::to_string(rows.size()) + ", " + std::to_string(vocab) + "]");
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(rows[i].logits.data(), out.data(places[i], 0), vocab * sizeof(float));
    }
    TakeRowErrors(rows, places);
    return Status::Ok();
  } catch (const py::error_already_set& e) {
    return Status::InvalidArgument(TextOf(e));
  }
}

}  // namespace fastllm::bindings
