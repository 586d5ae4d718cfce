#include "core/text/byte_run.h"

namespace fastllm {

void ByteRun::Append(char byte, std::string* out) {
  if (is_broken_) {
    out->append(kReplacementCharacter);
    return;
  }
  const bool goes_on = check_.is_holding();
  if (goes_on && !check_.Continues(byte)) {
    held_.push_back(byte);
    Break(out);
    return;
  }
  held_.push_back(byte);
  complete_.clear();
  check_.Append(std::string_view(&byte, 1), &complete_);
  if (complete_.empty()) return;
  if (!goes_on && complete_.front() != byte) {  // no lead byte: it was replaced
    Break(out);
    return;
  }
  ++num_held_chars_;
  if (held_.size() <= kMaxHeld) return;
  out->append(held_);
  held_.clear();
  num_held_chars_ = 0;
}

void ByteRun::End(std::string* out) {
  if (check_.is_holding()) Break(out);
  out->append(held_);
  held_.clear();
  num_held_chars_ = 0;
  is_broken_ = false;
}

// The run is not text: what is held of it becomes replacements.
void ByteRun::Break(std::string* out) {
  for (size_t i = 0; i < held_.size(); ++i) out->append(kReplacementCharacter);
  held_.clear();
  num_held_chars_ = 0;
  is_broken_ = true;
  check_ = Utf8Decoder();
}

}  // namespace fastllm
