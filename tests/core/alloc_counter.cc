#include "alloc_counter.h"

#include <cstdlib>
#include <new>

namespace {

thread_local bool counting = false;
thread_local int64_t allocations = 0;

void* Take(std::size_t size) {
  if (counting) ++allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}

void* TakeAligned(std::size_t size, std::align_val_t align) {
  if (counting) ++allocations;
  const auto to = static_cast<std::size_t>(align);
  if (void* memory = std::aligned_alloc(to, (size + to) / to * to)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) { return Take(size); }
void* operator new[](std::size_t size) { return Take(size); }
void* operator new(std::size_t size, std::align_val_t align) { return TakeAligned(size, align); }
void* operator new[](std::size_t size, std::align_val_t align) { return TakeAligned(size, align); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace fastllm {

AllocCounter::AllocCounter() {
  allocations = 0;
  counting = true;
}
AllocCounter::~AllocCounter() { counting = false; }
int64_t AllocCounter::count() const { return allocations; }

}  // namespace fastllm
