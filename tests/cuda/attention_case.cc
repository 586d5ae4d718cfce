#include "attention_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace fastllm::cuda_check {

AttentionCase::AttentionCase(const AttentionShapeSpec& shape, const std::vector<Sequence>& seqs, uint64_t seed)
    : s_(shape), seqs_(seqs) {
  int max_blocks = 1;
  for (const Sequence& s : seqs) {
    query_start_.push_back(query_start_.back() + s.query_len);
    seq_len_.push_back(s.length);
    max_blocks = std::max(max_blocks, (s.length + s_.block_size - 1) / s_.block_size);
  }
  const int num_seqs = static_cast<int>(seqs.size());
  const int blocks = num_seqs * max_blocks + 1;
  std::vector<int32_t> order(blocks - 1);
  std::iota(order.begin(), order.end(), 1);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
  table_ = order;
  params_.max_blocks = max_blocks;
  params_.cache = {nullptr, nullptr, blocks, s_.kv_heads, s_.block_size, s_.dim, s_.kv_dtype()};
  if (s_.fp8_cache) {
    params_.cache.k_scale = 0.5f;
    params_.cache.v_scale = 0.25f;
  }
  params_.num_tokens = query_start_.back();
  params_.num_seqs = num_seqs;
  params_.num_q_heads = s_.q_heads;
  params_.scale = 1.0f / std::sqrt(static_cast<float>(s_.dim));
  params_.window = s_.window;
  params_.logit_softcap = s_.softcap;
  params_.q_stride = (s_.q_heads + 2 * s_.kv_heads) * s_.dim;

  q_ = Normal(static_cast<size_t>(params_.num_tokens) * params_.q_stride, seed + 1, 1.5f);
  Round(q_, s_.dtype);
  FillCache(seed);
  device_.push_back(UploadAs(q_, s_.dtype));
  device_.push_back(UploadAs(k_, s_.kv_dtype()));
  device_.push_back(UploadAs(v_, s_.kv_dtype()));
  device_.push_back(Upload(query_start_));
  device_.push_back(Upload(seq_len_));
  device_.push_back(Upload(table_));
  params_.q = device_[0].get();
  params_.cache.k = device_[1].get();
  params_.cache.v = device_[2].get();
  params_.query_start = device_[3].as<int32_t>();
  params_.seq_len = device_[4].as<int32_t>();
  params_.block_table = device_[5].as<int32_t>();
  out_ = Buffer(static_cast<size_t>(params_.num_tokens) * s_.q_heads * s_.dim * ops::DTypeSize(s_.dtype));
  params_.out = out_.get();
}

int AttentionCase::FirstSeen(int position) const { return s_.window > 0 ? std::max(0, position + 1 - s_.window) : 0; }

void AttentionCase::FillCache(uint64_t seed) {
  const size_t size =
      static_cast<size_t>(params_.cache.num_blocks) * s_.kv_heads * s_.block_size * static_cast<size_t>(s_.dim);
  k_.assign(size, std::numeric_limits<float>::quiet_NaN());
  v_ = k_;
  Parallel(static_cast<int64_t>(seqs_.size()), [&](int64_t s) {
    std::mt19937_64 rng(seed * 1000 + s);
    std::normal_distribution<float> normal;
    const int first = FirstSeen(seqs_[s].length - seqs_[s].query_len) / s_.block_size * s_.block_size;
    for (int pos = first; pos < seqs_[s].length; ++pos) {
      const int64_t block = table_[s * params_.max_blocks + pos / s_.block_size];
      for (int h = 0; h < s_.kv_heads; ++h) {
        const size_t at = ((block * s_.kv_heads + h) * s_.block_size + pos % s_.block_size) * s_.dim;
        for (int d = 0; d < s_.dim; ++d) {
          k_[at + d] = normal(rng);
          v_[at + d] = normal(rng);
        }
      }
    }
  });
  Round(k_, s_.kv_dtype());
  Round(v_, s_.kv_dtype());
}

void AttentionCase::Run(Checks& c) {
  const auto plan = c.Get<ops::AttentionPlanFn>(OpId::kAttentionPlan, s_.dtype, 0, 0, s_.backend);
  const auto bound = c.Get<ops::AttentionBoundFn>(OpId::kAttentionBound, s_.dtype, 0, 0, s_.backend);
  const uint32_t features = ops::kFeatureGqa | (s_.window > 0 ? ops::kFeatureSlidingWindow : 0u) |
                            (s_.softcap > 0.0f ? ops::kFeatureSoftcap : 0u);
  const auto run = c.Get<ops::PagedAttentionFn>(OpId::kPagedAttention, s_.dtype, s_.dim, features, s_.backend);
  const ops::AttentionBound b =
      bound({params_.num_seqs, params_.num_tokens, s_.q_heads, s_.kv_heads, s_.dim, s_.dtype, s_.kv_dtype()});
  Buffer workspace(b.workspace_bytes);
  workspace.Zero();
  params_.workspace = workspace.get();
  params_.workspace_bytes = b.workspace_bytes;
  device_.push_back(std::move(workspace));
  const auto outcome = [&](const ops::AttentionPlanSize& launch) {
    std::vector<int32_t> record(b.record_ints);
    const ops::AttentionPlanSize size =
        plan({query_start_.data(), seq_len_.data(), params_.num_seqs, s_.q_heads, s_.kv_heads, s_.dim, s_.dtype,
              s_.kv_dtype(), s_.window, s_.softcap, launch.decode_workers, launch.prefill_tiles, record.data(),
              b.record_ints, s_.block_size, params_.max_blocks});
    record.resize(size.record_ints);
    device_.push_back(Upload(record));
    params_.plan = device_.back().as<int32_t>();
    params_.decode_workers = size.decode_workers;
    params_.prefill_tiles = size.prefill_tiles;
    out_.Poison();
    run(params_, {});
    return DownloadAs(out_.get(), out_.bytes() / ops::DTypeSize(s_.dtype), s_.dtype);
  };
  // With the launch sizes of a captured step, over the same workspace: the counters must come back to zero.
  const std::vector<float> captured =
      b.prefill_tiles > 0 ? outcome({0, b.decode_workers, b.prefill_tiles}) : std::vector<float>();
  const std::vector<float> first = outcome({});
  // FlashInfer cuts decodes in other ways then.
  const double limit = s_.backend == ops::Backend::kFastllm ? 0.0 : 5e-3;
  if (!captured.empty()) {
    c.ExpectTrue(Label() + ": as captured", RelativeError(captured, {first.begin(), first.end()}) <= limit);
  }
  // Again: the bits must be the same.
  const auto second = outcome({});
  c.ExpectTrue(Label() + ": the same bits again", RelativeError(second, {first.begin(), first.end()}) == 0.0);
}

void AttentionCase::Reference(int64_t token, int head, double* out) const {
  const int seq =
      static_cast<int>(std::upper_bound(query_start_.begin(), query_start_.end(), token) - query_start_.begin()) - 1;
  const int last = seq_len_[seq] - (query_start_[seq + 1] - static_cast<int>(token));
  const int kv_head = head / (s_.q_heads / s_.kv_heads);
  const float* q = q_.data() + token * params_.q_stride + static_cast<int64_t>(head) * s_.dim;
  const auto at = [&](int pos) {
    const int64_t block = table_[static_cast<int64_t>(seq) * params_.max_blocks + pos / s_.block_size];
    return ((block * s_.kv_heads + kv_head) * s_.block_size + pos % s_.block_size) * s_.dim;
  };
  std::vector<double> scores(last + 1);
  double top = -INFINITY, sum = 0.0;
  const int first = FirstSeen(last);
  for (int pos = first; pos <= last; ++pos) {
    double dot = 0.0;
    const float* k = k_.data() + at(pos);
    for (int d = 0; d < s_.dim; ++d) dot += double{q[d]} * k[d];
    scores[pos] = dot * params_.scale * double{params_.cache.k_scale};
    if (s_.softcap > 0.0f) scores[pos] = s_.softcap * std::tanh(scores[pos] / s_.softcap);
    top = std::max(top, scores[pos]);
  }
  std::fill(out, out + s_.dim, 0.0);
  for (int pos = first; pos <= last; ++pos) {
    const double w = std::exp(scores[pos] - top);
    const float* v = v_.data() + at(pos);
    sum += w;
    for (int d = 0; d < s_.dim; ++d) out[d] += w * v[d];
  }
  for (int d = 0; d < s_.dim; ++d) out[d] *= params_.cache.v_scale / sum;
}

double AttentionCase::Error() const {
  std::vector<double> want(static_cast<size_t>(params_.num_tokens) * s_.q_heads * s_.dim);
  Parallel(int64_t{params_.num_tokens} * s_.q_heads,
           [&](int64_t i) { Reference(i / s_.q_heads, static_cast<int>(i % s_.q_heads), want.data() + i * s_.dim); });
  return RelativeError(DownloadAs(out_.get(), want.size(), s_.dtype), want);
}

std::string AttentionCase::Label() const {
  std::string label = std::string("paged_attention ") + Name(s_.dtype) + (s_.fp8_cache ? " over fp8" : "") + " heads " +
                      std::to_string(s_.q_heads) + "/" + std::to_string(s_.kv_heads) + " dim " +
                      std::to_string(s_.dim) + " block " + std::to_string(s_.block_size) +
                      (s_.window > 0 ? " window " + std::to_string(s_.window) : "") +
                      (s_.softcap > 0.0f ? " softcap " + std::to_string(s_.softcap) : "") + " " +
                      ops::BackendName(s_.backend) + " seqs";
  for (size_t i = 0; i < seqs_.size() && i < 6; ++i) {
    label.append(" ").append(std::to_string(seqs_[i].query_len)).append("@").append(std::to_string(seqs_[i].length));
  }
  return seqs_.size() > 6 ? label + " ..." : label;
}

}  // namespace fastllm::cuda_check
