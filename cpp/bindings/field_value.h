// Python objects <-> FieldValue, the currency of the field lists.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

#include "core/config/field_access.h"

namespace fastllm::bindings {

// None, bool, int, float, str, lists or tuples of int, of str or of such lists of int, and dicts for fields of the
// types map[int32,float] and json (FieldDescription::type); numbers of other libraries through __index__ and __float__;
// an enum's member stands for its name in lower case. Throws StatusError (kInvalidArgument) that names the field for
// anything else.
FieldValue FromPython(std::string_view field, std::string_view type, pybind11::handle object);

// The UTF-8 bytes of a Python str. Throws StatusError (kInvalidArgument) that names the field when it has none.
std::string Utf8Text(std::string_view field, pybind11::handle text);

pybind11::object ToPython(const FieldValue& value);

}  // namespace fastllm::bindings
