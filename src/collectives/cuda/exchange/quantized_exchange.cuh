// Reduce-scatter, all-gather and all-to-all through a codec: every rank quantizes what it has for a peer into the
// peer's slots, and decodes what comes; what it gives itself is quantized, too. A block's groups begin with the block.
#pragma once

#include "collectives/cuda/quantized/quantized_rounds.cuh"
#include "imbrex/collectives.hpp"

namespace imbrex::cuda {

template <Type type, ExchangeKind kind>
class QuantizedExchange : public QuantizedRounds<QuantizedExchange<type, kind>, type, false> {
  using Base = QuantizedRounds<QuantizedExchange<type, kind>, type, false>;
  using Base::a_, Base::c_;
  using Base::index_of, Base::block_of, Base::place_of, Base::slot_of, Base::peer_of;
  using typename Base::OwnPart;
  using typename Base::Part;
  using typename Base::Values;
  using typename Base::Vector;

  static constexpr bool sums = kind == ExchangeKind::reduce_scatter, gathers = kind == ExchangeKind::all_gather;

 public:
  static constexpr CommStep awaited = CommStep::block;
  using Base::Base;

  __device__ __forceinline__ void send(std::uint32_t chunk) {
    const std::uint32_t place = place_of(chunk), block = block_of(chunk);
    const bool there = block < a_.value_blocks;
    const Codec c = a_.parts.codec;
    OwnPart part{};
    codec::Planes planes{};
    Values values = {};
#pragma unroll 1
    for (std::uint32_t i = 1; i < c_.ranks; ++i) {
      if (i == 1 || !gathers) {
        if (there) Vector::to_float(in(peer_of(i)).load(block), values);
        part = this->own_part(c, values, there);
        planes = codec::to_planes(c.format, part.codes);
      }
      if (there && this->well_)
        this->store_quantized(c, a_.parts, slot_of(a_.parts, peer_of(i), c_.rank, place), index_of(), part.group,
                              planes, values);
    }
  }

  __device__ __forceinline__ void add(std::uint32_t chunk) {
    const std::uint32_t place = place_of(chunk), block = block_of(chunk);
    const bool there = block < a_.value_blocks;
    const Codec c = a_.parts.codec;
    Values values = {}, sum = {};
    typename Vector::Raw own{};
    if (there) own = in(c_.rank).load(block);
    Vector::to_float(own, values);
    const OwnPart own_part = this->own_part(c, values, there);
    codec::Bound bound;
#pragma unroll 1
    for (std::uint32_t s = 0; s < c_.ranks; ++s) {
      const std::byte* from = slot_of(a_.parts, c_.rank, s, place);
      Part came{};
      if (there && s != c_.rank) came = this->load_part(c, from, index_of());
      if constexpr (sums) {
        this->add_part(c, s, own_part, own, came, from, index_of(), there, bound, sum);
      } else {
        bound = {};
        this->decode_part(c, s, own_part, own, came, from, index_of(), there, bound, sum);
        put(s, block, there, bound, 1, sum);
      }
    }
    if constexpr (sums) put(0, block, there, bound, static_cast<int>(c_.ranks), sum);
  }

 private:
  __device__ __forceinline__ Vector vector_of(const void* first, std::uint64_t number) const {
    std::byte* at = static_cast<std::byte*>(const_cast<void*>(first)) + number * a_.count * Vector::element;
    return {at, a_.count, reinterpret_cast<std::uint64_t>(at) % 16 == 0};
  }
  __device__ __forceinline__ Vector in(std::uint32_t peer) const { return vector_of(a_.in, gathers ? 0 : peer); }

  /// Puts the output's block `number`; `parts` were added up. A whole warp calls it.
  __device__ __forceinline__ void put(std::uint32_t number, std::uint32_t block, bool there, const codec::Bound& bound,
                                      int parts, Values& values) {
#pragma unroll
    for (std::uint32_t i = 0; i < quantized_block_values; ++i) values[i] = there ? values[i] : 0;
    const float magnitude = this->finite_magnitude(128, values);
    if (!there) return;
    this->error_ = max(this->error_, codec::raw_output_error(bound, parts, type, magnitude));
    this->count_non_finite(block, values);
    vector_of(a_.out, number).store(block, values);
  }
};

template <Type type, ExchangeKind kind>
__global__ void __launch_bounds__(most_quantized_workers + 32, 1)
    quantized_exchange(const __grid_constant__ QuantizedArgs a) {
  __shared__ Progress progress;
  if (threadIdx.x == 0) progress = {};
  __syncthreads();
  device::wait_for_stream();
  QuantizedExchange<type, kind>(a, progress).run();
}

template <Type type>
const void* quantized_exchange_of(ExchangeKind kind) {
  using enum ExchangeKind;
  switch (kind) {
    case reduce_scatter: return reinterpret_cast<const void*>(&quantized_exchange<type, reduce_scatter>);
    case all_gather: return reinterpret_cast<const void*>(&quantized_exchange<type, all_gather>);
    case all_to_all: return reinterpret_cast<const void*>(&quantized_exchange<type, all_to_all>);
  }
  return nullptr;
}

}  // namespace imbrex::cuda
