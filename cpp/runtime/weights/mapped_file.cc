#include "runtime/weights/mapped_file.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fastllm::runtime {
namespace {

std::string ErrnoText(int error) { return std::generic_category().message(error); }

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_);
}

Result<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must come back with the refusal below, not wait for a writer.
  FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) {
    const int error = errno;
    const std::string message = "cannot open '" + path + "': " + ErrnoText(error);
    if (error == ENOENT || error == ENOTDIR) return Status::NotFound(message);
    return Status::InvalidArgument(message);
  }
  struct stat before;
  if (fstat(fd.get(), &before) != 0) return Status::Internal("cannot stat '" + path + "': " + ErrnoText(errno));
  if (!S_ISREG(before.st_mode)) return Status::InvalidArgument("'" + path + "' is not a regular file");
  MappedFile file;
  if (before.st_size == 0) return file;
  const size_t size = static_cast<size_t>(before.st_size);
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) {
    return Status::Internal("cannot map the " + std::to_string(size) + " bytes of '" + path + "': " + ErrnoText(errno));
  }
  file.data_ = static_cast<const uint8_t*>(address);
  file.size_ = size;
  struct stat after;
  if (fstat(fd.get(), &after) != 0 || after.st_size != before.st_size) {
    return Status::DataLoss("the size of '" + path + "' changed while it was opened");
  }
  return file;
}

void MappedFile::Release(const uint8_t* begin, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(begin) + bytes) / page * page;
  // Advice only: a kernel that refuses keeps the pages for itself to drop.
  if (first < last) (void)madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace fastllm::runtime
