#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>

#include "core/config/field_access.h"
#include "core/config/number_text.h"

namespace fastllm {
namespace {

constexpr size_t kMaxShownChars = 200;

std::string Quoted(std::string_view text) {
  size_t end = std::min(text.size(), kMaxShownChars);
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // whole chars
  std::string out = "'";
  out += text.substr(0, end);
  out += end < text.size() ? "...'" : "'";
  return out;
}

template <typename T, typename Show>
std::string FormatList(const std::vector<T>& list, Show show) {
  std::string out = "[";
  for (size_t i = 0; i < list.size(); ++i) {
    if (out.size() > kMaxShownChars) return out + ", ...]";
    if (i > 0) out += ", ";
    out += show(list[i]);
  }
  return out + "]";
}

std::string Normalized(std::string_view name) {
  std::string out(name);
  for (char& c : out) {
    if (c == '-') c = '_';
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

Status BadText(const FieldDescription& field, std::string_view expected, std::string_view text) {
  return Status::InvalidArgument(field.name + " must be " + std::string(expected) + ", got " + Quoted(text));
}

template <typename T>
std::optional<T> ParseNumber(std::string_view text) {
  T value{};
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Result<FieldValue> ParseBool(const FieldDescription& field, std::string_view text) {
  const std::string word = Normalized(text);
  for (std::string_view yes : {"true", "1", "yes", "on"}) {
    if (word == yes) return FieldValue(true);
  }
  for (std::string_view no : {"false", "0", "no", "off"}) {
    if (word == no) return FieldValue(false);
  }
  return BadText(field, "true or false", text);
}

Result<FieldValue> ParseIntList(const FieldDescription& field, std::string_view text) {
  std::vector<int64_t> list;
  if (text.empty()) return FieldValue(std::move(list));
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const auto item = ParseNumber<int64_t>(text.substr(at, comma - at));
    if (!item) return BadText(field, "integers with commas between", text);
    list.push_back(*item);
    at = comma + 1;
  }
  return FieldValue(std::move(list));
}

Result<FieldValue> ParseIntLists(const FieldDescription& field, std::string_view text) {
  std::vector<std::vector<int64_t>> lists;
  for (size_t at = 0; !text.empty() && at <= text.size();) {
    const size_t end = std::min(text.find(';', at), text.size());
    FASTLLM_ASSIGN_OR_RETURN(FieldValue list, ParseIntList(field, text.substr(at, end - at)));
    lists.push_back(std::get<std::vector<int64_t>>(std::move(list)));
    at = end + 1;
  }
  return FieldValue(std::move(lists));
}

Result<FieldValue> ParseBiases(const FieldDescription& field, std::string_view text) {
  std::vector<std::pair<int64_t, double>> biases;
  for (size_t at = 0; !text.empty() && at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view item = text.substr(at, comma - at);
    const size_t colon = item.find(':');
    if (colon == std::string_view::npos) return BadText(field, "id:bias pairs with commas between", text);
    FASTLLM_ASSIGN_OR_RETURN(const int64_t id, ParseTokenKey(field.name, item.substr(0, colon)));
    const auto bias = ParseNumber<double>(item.substr(colon + 1));
    if (!bias) return BadText(field, "id:bias pairs with commas between", text);
    biases.emplace_back(id, *bias);
    at = comma + 1;
  }
  return FieldValue(std::move(biases));
}

}  // namespace

Result<int64_t> ParseTokenKey(std::string_view name, std::string_view text) {
  if (const auto id = ParseNumber<int64_t>(text)) return *id;
  std::string message(name);
  message += " keys must be token ids, got ";
  message += Quoted(text);
  return Status::InvalidArgument(std::move(message));
}

std::string BoundsText(double lo, double hi, bool lo_open) {
  if (std::isfinite(lo) && std::isfinite(hi)) {
    return "in " + std::string(lo_open ? "(" : "[") + NumberText(lo) + ", " + NumberText(hi) + "]";
  }
  if (std::isfinite(lo)) return (lo_open ? "greater than " : "at least ") + NumberText(lo);
  if (std::isfinite(hi)) return "at most " + NumberText(hi);
  return "finite";
}

std::string FormatFieldValue(const FieldValue& value) {
  struct Formatter {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(int64_t v) const { return NumberText(v); }
    std::string operator()(double v) const { return NumberText(v); }
    std::string operator()(const std::string& v) const { return Quoted(v); }
    std::string operator()(const std::vector<int64_t>& v) const { return FormatList(v, NumberText<int64_t>); }
    std::string operator()(const std::vector<std::vector<int64_t>>& v) const {
      return FormatList(v, [](const auto& list) { return FormatList(list, NumberText<int64_t>); });
    }
    std::string operator()(const std::vector<std::pair<int64_t, double>>& v) const {
      std::string out = FormatList(v, [](const auto& b) { return NumberText(b.first) + ": " + NumberText(b.second); });
      out.front() = '{';
      out.back() = '}';
      return out;
    }
    std::string operator()(const JsonText& v) const { return Quoted(v.text); }
    std::string operator()(const std::vector<std::string>& v) const {
      return FormatList(v, [](const std::string& s) { return Quoted(s); });
    }
  };
  return std::visit(Formatter(), value);
}

Result<FieldValue> ParseFieldText(const FieldDescription& field, std::string_view text) {
  if (field.optional && (Normalized(text) == "none" || Normalized(text) == "null")) return FieldValue();
  if (field.type == "bool") return ParseBool(field, text);
  if (field.type == "int32" || field.type == "int64") {
    if (const auto v = ParseNumber<int64_t>(text)) return FieldValue(*v);
    return BadText(field, "an integer", text);
  }
  if (field.type == "float") {
    if (const auto v = ParseNumber<double>(text)) return FieldValue(*v);
    return BadText(field, "a number", text);
  }
  if (field.type == "list[int32]") return ParseIntList(field, text);
  if (field.type == "list[list[int32]]") return ParseIntLists(field, text);
  if (field.type == "map[int32,float]") return ParseBiases(field, text);
  if (field.type == "json") return FieldValue(JsonText{std::string(text)});
  if (field.type == "list[string]") return FieldValue(std::vector<std::string>{std::string(text)});
  return FieldValue(std::string(text));
}

int EditDistance(std::string_view a, std::string_view b) {
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

namespace {

// The words of a normalized name, "__max_num_seqs" -> max, num, seqs.
std::set<std::string_view> Words(std::string_view name) {
  std::set<std::string_view> words;
  for (size_t at = 0; at < name.size();) {
    const size_t end = std::min(name.find('_', at), name.size());
    if (end > at) words.insert(name.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

// Letters of the words that are in both.
size_t SharedLetters(std::string_view a, std::string_view b) {
  const std::set<std::string_view> words = Words(a);
  size_t letters = 0;
  for (const std::string_view word : Words(b)) letters += words.contains(word) ? word.size() : 0;
  return letters;
}

// The one that a user who typed `wanted` may have meant; null when none is near. A slip of the fingers first, then the
// one with the most in common that is not just a filler word.
const std::string* Nearest(const std::string& wanted, const std::vector<std::string>& known) {
  constexpr size_t kFiller = 3;
  const std::string* best = nullptr;
  int best_distance = std::max<int>(2, static_cast<int>(wanted.size()) / 3) + 1;
  const std::string* related = nullptr;
  size_t most_shared = kFiller;
  for (const std::string& candidate : known) {
    const std::string name = Normalized(candidate);
    const int distance = EditDistance(wanted, name);
    if (distance < best_distance && distance < static_cast<int>(name.size())) {
      best = &candidate;
      best_distance = distance;
    }
    if (const size_t shared = SharedLetters(wanted, name); shared > most_shared) {
      related = &candidate;
      most_shared = shared;
    }
  }
  return best != nullptr ? best : related;
}

}  // namespace

Status UnknownOption(std::string_view name, const std::vector<std::string>& known) {
  const std::string wanted = Normalized(name.substr(0, kMaxShownChars));
  const std::string* best = Nearest(wanted, known);
  std::string message = "unknown option " + Quoted(name);
  if (best != nullptr) return Status::NotFound(message + "; did you mean '" + *best + "'?");
  message += "; known options: ";
  for (size_t i = 0; i < known.size(); ++i) {
    if (i > 0) message += ", ";
    message += known[i];
  }
  return Status::NotFound(message);
}

}  // namespace fastllm
