// The fused all-reduce + add + RMSNorm, compared with all-reduces that a kernel for the rest follows.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "all_reduce/add_norm.hpp"
#include "all_reduce/bench.hpp"
#include "base/check.hpp"
#include "base/convert.hpp"
#include "collectives/rms_norm.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex {
namespace {

constexpr float eps = 1e-6f;
constexpr std::int64_t rows_looked_at = 16;  // at either end

// Element i is element i mod reduce_period of this.
std::vector<float> stretch_of(Type type, int rank, std::uint64_t seed) {
  return base::floats_of(type, test::input_stretch(type, rank, seed, false));
}

constexpr std::uint64_t input_seed = 1, residual_seed = 2, weight_seed = 3;

}  // namespace

/// Operands beside the benchmark's own, and the host's idea of what must come out.
class RmsNormOperandsOnGpu {
 public:
  RmsNormOperandsOnGpu(Type type, std::int64_t hidden, std::size_t bytes, int ranks)
      : type_(type),
        hidden_(hidden),
        sums_(stretch_of(type, 0, input_seed)),
        residual_values_(stretch_of(type, 0, residual_seed)),
        weight_values_(stretch_of(type, 0, weight_seed)),
        residual_(cuda::raw_memory(bytes)),
        residual_out_(cuda::raw_memory(bytes)),
        weight_(cuda::raw_memory(static_cast<std::size_t>(hidden) * size_of(type))) {
    for (int rank = 1; rank < ranks; ++rank) {
      const std::vector<float> part = stretch_of(type, rank, input_seed);
      for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] += part[i];
    }
    upload(residual_.get(), residual_values_, bytes);
    upload(weight_.get(), weight_values_, static_cast<std::size_t>(hidden) * size_of(type));
  }

  collectives::RmsNormOperands operands(const void* in, void* out) const {
    return {in, residual_.get(), weight_.get(), residual_out_.get(), out};
  }

  /// What is wrong in the rows at both ends. Fused results must have the host's bits; others round more often.
  std::string fault(const void* out, std::int64_t rows, bool fused) const {
    for (const std::int64_t row : {std::int64_t{0}, std::max<std::int64_t>(0, rows - rows_looked_at)})
      for (std::int64_t r = row; r < std::min(rows, row + rows_looked_at); ++r)
        if (std::string what = fault_of_row(out, r, fused); !what.empty()) return what;
    return {};
  }

 private:
  void upload(void* to, const std::vector<float>& stretch, std::size_t bytes) const {
    const std::vector<std::byte> host = base::elements_of(type_, stretch);
    for (std::size_t at = 0; at < bytes; at += host.size())
      cuda::upload(static_cast<std::byte*>(to) + at, host.data(), std::min(host.size(), bytes - at));
  }

  std::vector<float> download(const void* from, std::int64_t row) const {
    const std::size_t bytes = static_cast<std::size_t>(hidden_) * size_of(type_);
    std::vector<std::byte> host(bytes);
    IMBREX_CUDA_TRY(cudaMemcpy(host.data(), static_cast<const std::byte*>(from) + static_cast<std::size_t>(row) * bytes,
                               bytes, cudaMemcpyDeviceToHost));
    return base::floats_of(type_, host);
  }

  void round(std::vector<float>& values) const { values = base::floats_of(type_, base::elements_of(type_, values)); }

  std::string fault_of_row(const void* out, std::int64_t row, bool fused) const {
    std::vector<float> x(static_cast<std::size_t>(hidden_)), y(x.size());
    const auto at = [&](std::size_t i) {
      return static_cast<std::size_t>((row * hidden_ + static_cast<std::int64_t>(i)) % test::reduce_period);
    };
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = sums_[at(i)] + residual_values_[at(i)];
    round(x);
    const float scale =
        collectives::row_scale(collectives::squares_of(x.data(), hidden_, type_), static_cast<float>(hidden_), eps);
    for (std::size_t i = 0; i < y.size(); ++i)
      y[i] = collectives::normalised(x[i], scale, weight_values_[i % static_cast<std::size_t>(test::reduce_period)]);
    round(y);
    const std::vector<float> got_x = download(residual_out_.get(), row), got_y = download(out, row);
    // Values are below 8, and sums are rounded once more: by half a unit at most, as is what comes of it.
    const auto near = static_cast<float>(16 * unit_roundoff(type_));
    const auto wrong = [&](float got, float want) { return fused ? got != want : !(std::fabs(got - want) <= near); };
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (wrong(got_x[i], x[i]))
        return fmt::format("row {}, element {} of residual_out is {}, not {}", row, i, got_x[i], x[i]);
      if (wrong(got_y[i], y[i])) return fmt::format("row {}, element {} is {}, not {}", row, i, got_y[i], y[i]);
    }
    return {};
  }

  Type type_;
  std::int64_t hidden_;
  std::vector<float> sums_, residual_values_, weight_values_;
  cuda::RawMemory residual_, residual_out_, weight_;
};

nlohmann::json Bench::measure_rms_norm(std::int64_t bytes) {
  const std::int64_t hidden = options_.hidden, row_bytes = hidden * static_cast<std::int64_t>(size_of(type_)),
                     rows = bytes / row_bytes;
  if (rows == 0) return nullptr;
  if (norm_ == nullptr)
    norm_ =
        std::make_shared<RmsNormOperandsOnGpu>(type_, hidden, static_cast<std::size_t>(options_.most), world_.size());
  std::vector<Contender> list;
  const auto add = [&](const std::string& name, bool fused, decltype(Contender::call) call) {
    list.push_back(
        {name, Check::own, std::move(call), 0, [this, rows, fused] { return norm_->fault(out_.get(), rows, fused); }});
  };
  const auto fused = [&](const std::string& name, const cuda::RmsNormKnobs& knobs) {
    add(name, true, [this, rows, hidden, knobs](const void* in, void* out, std::int64_t, cudaStream_t stream) {
      collectives_.all_reduce_rms_norm(norm_->operands(in, out), rows, hidden, eps, type_, stream, knobs);
    });
  };
  const auto behind = [this, rows, hidden](const void* in, void* out, cudaStream_t stream) {
    const collectives::RmsNormOperands o = norm_->operands(in, out);
    add_and_norm(out, o.residual, o.weight, o.residual_out, o.out, rows, hidden, eps, type_, stream,
                 options_.ranks_per_gpu == 1);
  };
  fused("fused", {});
  if (bytes <= 4 << 20) fused("fused one_shot", {cuda::ExactAlgorithm::one_shot});
  if (rows >= world_.size()) fused("fused two_shot", {cuda::ExactAlgorithm::two_shot});
  if (options_.sweep) {
    const std::uint32_t warps = collectives::row_shape(hidden, type_).threads / 32;
    for (const std::uint32_t cluster : {1u, 2u, 4u, 8u}) {
      if (warps % cluster != 0 || bytes > 16 << 20) continue;
      if (bytes <= 4 << 20)
        fused(fmt::format("fused one_shot c{}", cluster), {cuda::ExactAlgorithm::one_shot, 0, cluster});
      if (rows >= world_.size())
        fused(fmt::format("fused two_shot c{}", cluster), {cuda::ExactAlgorithm::two_shot, 0, cluster});
    }
  }
  add("all-reduce, then kernel", false,
      [this, behind](const void* in, void* out, std::int64_t count, cudaStream_t stream) {
        collectives_.all_reduce(in, out, count, type_, stream);
        behind(in, out, stream);
      });
#ifdef IMBREX_HAVE_LIBRARIES
  if (nccl_ != nullptr)
    add("nccl, then kernel", false, [this, behind](const void* in, void* out, std::int64_t count, cudaStream_t stream) {
      nccl_->all_reduce(in, out, static_cast<std::size_t>(count), type_, stream);
      behind(in, out, stream);
    });
#endif
  list = wanted(std::move(list));
  nlohmann::json row{{"bytes", rows * row_bytes}, {"rows", rows}, {"hidden", hidden}};
  std::string line = fmt::format("{:>10}  {} x {}:", rows * row_bytes, rows, hidden);
  tell(list, times(list, rows * row_bytes, false), row, line);
  return row;
}

}  // namespace imbrex
