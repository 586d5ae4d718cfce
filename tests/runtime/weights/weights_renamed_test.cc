// A checkpoint in which one tensor goes by another name.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/weights/renamed_source.h"

namespace fastllm::runtime {
namespace {

class Named : public TensorSource {
 public:
  explicit Named(const std::vector<std::string>& names) {
    for (const std::string& name : names) tensors_.push_back({name, {2}, WeightType::kF32, nullptr, 8});
  }
  const TensorInfo* Find(std::string_view name) const override {
    for (const TensorInfo& t : tensors_) {
      if (t.name == name) return &t;
    }
    return nullptr;
  }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  Result<const TensorInfo*> Get(std::string_view name) const override {
    if (Find(name) == nullptr) return Status::Unimplemented(std::string(name) + ": asked of the file");
    return TensorSource::Get(name);
  }
  void Release(const TensorInfo& tensor, int64_t begin, int64_t end) const override {
    released += tensor.name + " " + std::to_string(begin) + " " + std::to_string(end);
  }
  mutable std::string released;

 private:
  std::vector<TensorInfo> tensors_;
};

TEST(RenamedSourceTest, OneTensorHasAnotherName) {
  const auto file = std::make_shared<Named>(std::vector<std::string>{"a", "head", "b"});
  const RenamedSource source(file, "head", "embed");
  ASSERT_EQ(source.tensors().size(), 3u);
  EXPECT_EQ(source.tensors()[1].name, "embed");
  EXPECT_EQ(source.Find("embed"), &source.tensors()[1]);
  EXPECT_EQ(source.Find("head"), nullptr);
  EXPECT_EQ(source.Find("b"), file->Find("b"));
  EXPECT_EQ(*source.Get("embed"), source.Find("embed"));
  EXPECT_EQ(source.Get("head").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(source.Get("c").status().message(), "c: asked of the file");
  source.Release(*source.Find("embed"), 0, 1);
  EXPECT_EQ(file->released, "embed 0 1");
}

}  // namespace
}  // namespace fastllm::runtime
