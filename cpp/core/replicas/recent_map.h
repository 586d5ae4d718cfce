// RecentMap: the most recently used of a stream of keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>

namespace fastllm {

// A map from 64-bit keys that holds at most `capacity` of them: the least recently used goes first.
template <typename Value>
class RecentMap {
 public:
  explicit RecentMap(size_t capacity) : capacity_(capacity) {}

  // Null when the key is not there. Does not count as a use.
  Value* Find(uint64_t key) {
    const auto found = places_.find(key);
    return found == places_.end() ? nullptr : &found->second->value;
  }
  // Adds or overwrites; the key is the most recent one now.
  void Put(uint64_t key, Value value) {
    if (const auto found = places_.find(key); found != places_.end()) {
      found->second->value = value;
      entries_.splice(entries_.begin(), entries_, found->second);
      return;
    }
    if (capacity_ == 0) return;
    if (places_.size() == capacity_) {
      places_.erase(entries_.back().key);
      entries_.pop_back();
    }
    entries_.push_front({key, value});
    places_[key] = entries_.begin();
  }
  void Clear() {
    places_.clear();
    entries_.clear();
  }
  size_t size() const { return places_.size(); }

 private:
  struct Entry {
    uint64_t key;
    Value value;
  };
  size_t capacity_;
  std::list<Entry> entries_;  // the most recent first
  std::unordered_map<uint64_t, typename std::list<Entry>::iterator> places_;
};

}  // namespace fastllm
