// Sums over ranks with residual and norm: of few rows (peer_reduce_norm) and of many (peer_rows_norm).
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "peer_ranks.h"
#include "support.h"

namespace fastllm::cuda_check {
namespace {

// What a rank has of a call with residual and norm.
struct NormData {
  Buffer residual, weight, out;
};

std::vector<NormData> UploadNorm(const PeerRanks& ranks, DType t, const std::vector<float>& residual,
                                 const std::vector<float>& weight) {
  std::vector<NormData> all;
  for (int32_t r = 0; r < ranks.size(); ++r) {
    ranks.Use(r);
    all.push_back({UploadAs(residual, t), UploadAs(weight, t), Buffer(residual.size() * ops::DTypeSize(t))});
  }
  return all;
}

enum class Way { kUnits, kRows, kPieces };

const char* NameOf(Way way) {
  return way == Way::kUnits ? "peer_reduce_norm " : way == Way::kRows ? "peer_rows_norm " : "peer_piece_norm ";
}

// call: its number, from 1 on; not needed in graphs, which are of the first two ways.
void LaunchNorm(const PeerRanks& ranks, int32_t r, DType t, const NormData& d, void* x, int32_t rows, int32_t hidden,
                Way way, uint32_t call = 1) {
  const ops::RmsNormParams norm{d.out.get(), x, d.residual.get(), d.weight.get(), rows, hidden, 1e-5f};
  const ops::OpContext context{ranks.at(r).stream, 1};
  if (way == Way::kRows) return ops::CudaPeerRowsNorm(t)({ranks.Rows(r), norm, {}}, context);
  if (way == Way::kPieces) {
    const auto bytes = static_cast<size_t>(rows) * static_cast<size_t>(hidden) * ops::DTypeSize(t);
    ops::PeerPieceNormParams p = ranks.Piece(r, x, bytes, call);
    p.norm = norm;
    return ops::CudaPeerPieceNorm(t)(p, context);
  }
  ops::CudaPeerReduceNorm(t)({ranks.Params(r, nullptr, 0, false), norm, {}}, context);
}

// Two calls of each size, so that the second adds to the residual of the first.
void CheckNorm(Checks& c, const PeerRanks& ranks, DType t, int32_t rows, int32_t hidden, Way way) {
  const int64_t count = int64_t{rows} * hidden;
  const std::string label = NameOf(way) + std::string(Name(t)) + " " + std::to_string(rows) + " x " +
                            std::to_string(hidden) + " of " + std::to_string(ranks.size()) + " ranks";
  std::vector<PeerMessage> x;
  for (const uint64_t seed : {300, 301}) x.push_back(MakePeerMessage(ranks, t, count, seed));
  std::vector<float> residual = Normal(static_cast<size_t>(count), 302), weight = Normal(hidden, 303);
  Round(residual, t);
  Round(weight, t);
  const std::vector<NormData> data = UploadNorm(ranks, t, residual, weight);
  static uint32_t call = 0;  // goes on from size to size, as boxes do
  for (const PeerMessage& m : x) {
    ++call;
    for (int32_t r = 0; r < ranks.size(); ++r) {
      ranks.Use(r);
      LaunchNorm(ranks, r, t, data[r], m.data[r].get(), rows, hidden, way, call);
    }
    for (size_t i = 0; i < residual.size(); ++i) residual[i] += m.wanted[i];
    Round(residual, t);
  }
  c.ExpectTrue(label + ": the ranks meet", ranks.Finish());
  std::vector<double> wanted(residual.size());
  for (int32_t row = 0; row < rows; ++row) {
    const float* h = residual.data() + int64_t{row} * hidden;
    double squares = 0;
    for (int32_t i = 0; i < hidden; ++i) squares += double{h[i]} * h[i];
    const double scale = 1 / std::sqrt(squares / hidden + 1e-5);
    for (int32_t i = 0; i < hidden; ++i) wanted[int64_t{row} * hidden + i] = h[i] * scale * weight[i];
  }
  for (int32_t r = 0; r < ranks.size(); ++r) {
    ranks.Use(r);
    c.ExpectTrue(label + " residual, rank " + std::to_string(r),
                 DownloadAs(data[r].residual.get(), residual.size(), t) == residual);
    c.Expect(label, RelativeError(DownloadAs(data[r].out.get(), residual.size(), t), wanted), Tolerance(t));
  }
}

void TimeNorm(const PeerRanks& ranks, size_t devices, int32_t rows, Way way) {
  constexpr int32_t kHidden = 4096;
  const std::vector<float> zeros(static_cast<size_t>(rows) * kHidden, 0.0f), ones(kHidden, 1.0f);
  const std::vector<NormData> data = UploadNorm(ranks, DType::kBF16, zeros, ones);
  std::vector<Buffer> x;
  for (int32_t r = 0; r < ranks.size(); ++r) {
    ranks.Use(r);
    x.push_back(UploadAs(zeros, DType::kBF16));
  }
  TimePeerCalls(ranks,
                std::string(NameOf(way)) + "bf16 " + std::to_string(rows) + " x " + std::to_string(kHidden) + ", " +
                    std::to_string(ranks.size()) + " ranks on " + std::to_string(devices) + " devices",
                [&](int32_t r) { LaunchNorm(ranks, r, DType::kBF16, data[r], x[r].get(), rows, kHidden, way); });
}

// With nothing to hide behind: copy, flag and norm, one after the other.
void TimePiece(const PeerRanks& ranks, int32_t rows) {
  constexpr int32_t kHidden = 4096, kCalls = 100;
  const std::vector<float> zeros(static_cast<size_t>(rows) * kHidden, 0.0f), ones(kHidden, 1.0f);
  const std::vector<NormData> data = UploadNorm(ranks, DType::kBF16, zeros, ones);
  std::vector<Buffer> x;
  for (int32_t r = 0; r < 2; ++r) {
    ranks.Use(r);
    x.push_back(UploadAs(zeros, DType::kBF16));
  }
  const auto launch = [&](int32_t r, uint32_t call) {
    ranks.Use(r);
    LaunchNorm(ranks, r, DType::kBF16, data[r], x[r].get(), rows, kHidden, Way::kPieces, call);
  };
  constexpr uint32_t kFirst = 1u << 20;  // not a number that the checks have used
  cudaEvent_t begin, end;
  ranks.Use(0);
  Must(cudaEventCreate(&begin), "event");
  Must(cudaEventCreate(&end), "event");
  for (uint32_t i = 0; i < kCalls; ++i) {
    for (const int32_t r : {1, 0}) launch(r, kFirst + i);
    if (i == 0) Must(cudaEventRecord(begin, ranks.at(0).stream), "record");
  }
  Must(cudaEventRecord(end, ranks.at(0).stream), "record");
  const bool met = ranks.Finish();
  float ms = 0.0f;
  Must(cudaEventElapsedTime(&ms, begin, end), "elapsed");
  std::printf("peer_piece_norm bf16 %d x %d, 2 ranks, with the copy before it: %.1f us a call%s\n", rows, kHidden,
              ms * 1e3 / (kCalls - 1), met ? "" : " (stopped: the ranks did not meet)");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

}  // namespace

void CheckPeerNorms(Checks& c, const PeerRanks& ranks, DType t, bool whole_devices) {
  const auto size = static_cast<int32_t>(ops::DTypeSize(t));
  for (const int32_t hidden : {64, 1032, 4096, 5120}) {
    for (const int32_t rows : {1, 7}) CheckNorm(c, ranks, t, rows, hidden, Way::kUnits);
  }
  CheckNorm(c, ranks, t, 3, 32768 / size, Way::kUnits);
  if (t == DType::kBF16 && whole_devices) CheckNorm(c, ranks, t, 256, 4096, Way::kUnits);
  if (ranks.size() != 2) return;
  const int32_t hidden = static_cast<int32_t>(kPeerRowBytes) / size;
  for (const Way way : {Way::kRows, Way::kPieces}) {
    for (const int32_t rows : {1, 5, 40}) CheckNorm(c, ranks, t, rows, hidden, way);
    if (whole_devices) CheckNorm(c, ranks, t, 1500, hidden, way);  // more than there are blocks
  }
}

// Rows of which a thread has several packs.
void CheckPeerWideRows(Checks& c, const std::vector<int>& devices) {
  for (const int64_t row_bytes : {16384, 20480, 32768}) {
    const PeerRanks ranks(2, devices, row_bytes);
    for (const DType t : kAllTypes) {
      const auto hidden = static_cast<int32_t>(row_bytes / ops::DTypeSize(t));
      for (const int32_t rows : {1, 40}) {
        CheckNorm(c, ranks, t, rows, hidden, Way::kRows);
        CheckNorm(c, ranks, t, rows, hidden, Way::kPieces);
      }
    }
  }
}

void CheckPeerStop(Checks& c, const std::vector<int>& devices) {
  constexpr int32_t kRows = 3, kHidden = static_cast<int32_t>(kPeerRowBytes) / 2;
  for (const Way way : {Way::kUnits, Way::kRows, Way::kPieces}) {
    const PeerRanks ranks(2, devices);
    const std::vector<float> ones(static_cast<size_t>(kRows) * kHidden, 1.0f);
    const std::vector<NormData> data = UploadNorm(ranks, DType::kBF16, ones, std::vector<float>(kHidden, 1.0f));
    ranks.Use(0);
    const Buffer x = UploadAs(ones, DType::kBF16);
    LaunchNorm(ranks, 0, DType::kBF16, data[0], x.get(), kRows, kHidden, way);
    c.ExpectTrue("a rank alone waits", cudaStreamQuery(ranks.at(0).stream) == cudaErrorNotReady);
    ranks.Stop();
    c.ExpectTrue("a rank alone ends when it is stopped", ranks.Finish());
  }
}

void TimePeerNorms(const PeerRanks& ranks, size_t devices, bool whole_devices) {
  for (const int32_t rows : {1, 8, 16, 64, 256}) {
    if (whole_devices || rows <= 8) TimeNorm(ranks, devices, rows, Way::kUnits);
  }
  if (ranks.size() != 2 || !whole_devices) return;
  for (const int32_t rows : {1, 8, 16, 32, 64, 128, 256, 512, 1024, 8192}) TimeNorm(ranks, devices, rows, Way::kRows);
  for (const int32_t rows : {512, 4096}) TimePiece(ranks, rows);
}

}  // namespace fastllm::cuda_check
