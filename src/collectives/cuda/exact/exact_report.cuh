// What exact sums may have lost, packet by packet.
#pragma once

#include "codec/bound.hpp"
#include "collectives/cuda/wire/packet.cuh"

namespace imbrex::cuda {

/// What a thread's sums may have lost, packet by packet, or nothing.
template <Type type, bool active>
class ExactReport {
 public:
  __device__ __forceinline__ void part(const uint4& p) {
    if constexpr (active) codec::add_exact_part(bound_, magnitude_of(p));
  }

  __device__ __forceinline__ void sum(const uint4& p, std::uint32_t ranks) {
    if constexpr (active) {
      error_ = max(error_, codec::raw_output_error(bound_, static_cast<int>(ranks), type, magnitude_of(p)));
      bound_ = {};
      count(p);
    }
  }

  /// Elements that are no sums.
  __device__ __forceinline__ void count(const uint4& p) {
    if constexpr (active)
      Elements<type>::each(p, [&](float v) {
        if (!isfinite(v)) ++non_finite_;
      });
  }

  /// By whole warps.
  __device__ __forceinline__ void write(const Comm& c, std::uint64_t epoch) const {
    if constexpr (active) write_report(c, epoch, error_, non_finite_, 0);
  }

 private:
  static __device__ __forceinline__ float magnitude_of(const uint4& p) {
    float largest = 0;
    Elements<type>::each(p, [&](float v) {
      if (isfinite(v)) largest = fmaxf(largest, fabsf(v));
    });
    return largest;
  }

  codec::Bound bound_;
  float error_ = 0;
  std::uint32_t non_finite_ = 0;
};

}  // namespace imbrex::cuda
