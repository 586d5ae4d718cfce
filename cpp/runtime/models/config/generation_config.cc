#include "runtime/models/config/generation_config.h"

#include <array>
#include <string>
#include <utility>

#include "core/config/field_access.h"

namespace fastllm::runtime {
namespace {

using Names = std::pair<const char*, const char*>;  // in the file, of the field

constexpr std::array<Names, 6> kHfNames = {{
    {"temperature", "temperature"},
    {"top_k", "top_k"},
    {"top_p", "top_p"},
    {"min_p", "min_p"},
    {"repetition_penalty", "repetition_penalty"},
    {"max_new_tokens", "max_tokens"},
}};

constexpr std::array<Names, 7> kGgufNames = {{
    {"general.sampling.temp", "temperature"},
    {"general.sampling.top_k", "top_k"},
    {"general.sampling.top_p", "top_p"},
    {"general.sampling.min_p", "min_p"},
    {"general.sampling.xtc_probability", "xtc_probability"},
    {"general.sampling.xtc_threshold", "xtc_threshold"},
    {"general.sampling.penalty_repeat", "repetition_penalty"},
}};

void Read(const ConfigReader& r, const Names& names, SamplingDefaults* out) {
  const nlohmann::json* v = r.Find(names.first);
  if (v == nullptr) return;
  Status status;
  if (!v->is_number()) {
    status = Status::InvalidArgument(std::string("must be a number, got ") + v->type_name());
  } else if (v->is_number_float()) {
    status = SetField(out->params, names.second, FieldValue(v->get<double>()));
  } else {
    status = SetField(out->params, names.second, FieldValue(v->get<int64_t>()));
  }
  if (status.ok()) {
    out->stated.emplace_back(names.second);
  } else {
    r.Fail(Status::InvalidArgument(r.where() + ": " + names.first + ": " + status.message()));
  }
}

}  // namespace

void ReadHfSampling(const ConfigReader& reader, SamplingDefaults* out) {
  for (const Names& names : kHfNames) Read(reader, names, out);
}

void ReadGgufSampling(const ConfigReader& reader, SamplingDefaults* out) {
  for (const Names& names : kGgufNames) Read(reader, names, out);
}

}  // namespace fastllm::runtime
