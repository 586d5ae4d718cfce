// Tensors over c10 alone, and the library that has the rest of libtorch.
#include "runtime/tensor/tensors.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <numeric>
#include <vector>

#include "runtime/comm/c10d_communicator.h"

namespace fastllm::runtime {
namespace {

TEST(Tensors, EmptyIsContiguousAndWritable) {
  const at::Tensor t = Empty({3, 5}, at::TensorOptions().dtype(at::kInt));
  EXPECT_EQ(t.sizes(), (std::vector<int64_t>{3, 5}));
  EXPECT_EQ(t.strides(), (std::vector<int64_t>{5, 1}));
  EXPECT_EQ(t.nbytes(), 15 * sizeof(int32_t));
  EXPECT_EQ(t.scalar_type(), at::kInt);
  EXPECT_TRUE(t.device().is_cpu());
  std::iota(DataOf<int32_t>(t), DataOf<int32_t>(t) + 15, 0);
  EXPECT_EQ(DataOf<const int32_t>(t)[14], 14);
}

TEST(Tensors, EmptyOfNothing) {
  const at::Tensor t = Empty({0, 7}, at::TensorOptions().dtype(at::kFloat));
  EXPECT_TRUE(t.defined());
  EXPECT_EQ(t.numel(), 0);
}

TEST(Tensors, WrapKeepsItsOwner) {
  auto values = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3, 4, 5, 6});
  const std::weak_ptr<std::vector<float>> watched = values;
  at::Tensor t = Wrap(values->data(), {2, 3}, at::TensorOptions().dtype(at::kFloat), values);
  EXPECT_EQ(t.const_data_ptr(), values->data());
  values.reset();
  at::Tensor last = RowsOf(t, 1, 1);
  t.reset();
  ASSERT_FALSE(watched.expired());  // rows keep what they are of
  EXPECT_EQ(DataOf<const float>(last)[2], 6.0f);
  last.reset();
  EXPECT_TRUE(watched.expired());
}

TEST(Tensors, WrapWithoutAnOwnerBorrows) {
  float x = 3.0f;
  { const at::Tensor t = Wrap(&x, {1}, at::TensorOptions().dtype(at::kFloat), nullptr); }
  EXPECT_EQ(x, 3.0f);
}

TEST(Tensors, RowsShareTheMemory) {
  const at::Tensor t = Empty({4, 3}, at::TensorOptions().dtype(at::kFloat));
  for (int i = 0; i < 12; ++i) DataOf<float>(t)[i] = static_cast<float>(i);
  const at::Tensor rows = RowsOf(RowsOf(t, 1, 3), 1, 2);  // rows 2 and 3
  EXPECT_EQ(rows.sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(DataOf<const float>(rows)[0], 6.0f);
  DataOf<float>(rows)[5] = -1.0f;
  EXPECT_EQ(DataOf<const float>(t)[11], -1.0f);
  EXPECT_THROW(RowsOf(t, 3, 2), InternalError);
  EXPECT_THROW(RowsOf(t, -1, 1), InternalError);
}

TEST(Tensors, ElementsOfAnotherTypeAreRefused) {
  const at::Tensor t = Empty({2}, at::TensorOptions().dtype(at::kFloat));
  EXPECT_THROW(DataOf<int32_t>(t), InternalError);
}

TEST(C10dModule, IsLoadedWhenItIsNeeded) {
#ifndef FASTLLM_CUDA  // which needs all of libtorch at once
  EXPECT_EQ(dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD), nullptr);
#endif
  const auto store = ServeGroupStore(std::chrono::seconds(5));
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  EXPECT_GT((*store)->port(), 0);
  EXPECT_NE(dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD), nullptr);
  const auto group = MakeC10dCommunicator("nobody has made this group", {"rank 0", "rank 1"});
  EXPECT_EQ(group.status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace fastllm::runtime
