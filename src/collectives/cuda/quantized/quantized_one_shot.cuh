// The one-shot all-reduce through a codec: every rank quantizes its whole vector, once, into slots of all others, and
// adds up all of them, its own part decoded from codes, too. Chunks, slots, posts and unquantized groups are as in the
// two-shot one; there are no sums to send, so the output is the sum, rounded. Rank 0 reports: all have the same.
#pragma once

#include "collectives/cuda/quantized/quantized_rounds.cuh"

namespace imbrex::cuda {

template <Type type>
class QuantizedOneShot : public QuantizedRounds<QuantizedOneShot<type>, type, true> {
  using Base = QuantizedRounds<QuantizedOneShot<type>, type, true>;
  using Base::a_, Base::c_, Base::in_, Base::out_;
  using Base::index_of, Base::block_of, Base::place_of, Base::slot_of, Base::peer_of;
  using typename Base::OwnPart;
  using typename Base::Part;
  using typename Base::Values;
  using typename Base::Vector;

 public:
  static constexpr CommStep awaited = CommStep::vector;
  using Base::Base;

  __device__ __forceinline__ void send(std::uint32_t chunk) {
    const std::uint32_t place = place_of(chunk);
    const Codec c = a_.parts.codec;
    const std::uint32_t block = block_of(chunk), raw_before = this->raw_groups_;
    const bool there = block < a_.value_blocks;
    Values values = {};
    if (there) Vector::to_float(in_.load(block), values);
    const OwnPart part = this->own_part(c, values, there);
    this->raw_groups_ = raw_before;  // counted when it is added
    if (!there || !this->well_) return;
    const codec::Planes planes = codec::to_planes(c.format, part.codes);
#pragma unroll 1
    for (std::uint32_t i = 1; i < c_.ranks; ++i)
      this->store_quantized(c, a_.parts, slot_of(a_.parts, peer_of(i), c_.rank, place), index_of(), part.group, planes,
                            values);
  }

  __device__ __forceinline__ void add(std::uint32_t chunk) {
    const std::uint32_t place = place_of(chunk);
    const Codec c = a_.parts.codec;
    const std::uint32_t block = block_of(chunk);
    const bool there = block < a_.value_blocks;
    Values values = {}, sum = {};
    typename Vector::Raw own{};
    if (there) own = in_.load(block);
    Vector::to_float(own, values);
    const OwnPart own_part = this->own_part(c, values, there);
    codec::Bound bound;
#pragma unroll 1
    for (std::uint32_t s = 0; s < c_.ranks; ++s) {
      const std::byte* from = slot_of(a_.parts, c_.rank, s, place);
      Part came{};
      if (there && s != c_.rank) came = this->load_part(c, from, index_of());
      this->add_part(c, s, own_part, own, came, from, index_of(), there, bound, sum);
    }
    if (c_.rank == 0) {
#pragma unroll
      for (std::uint32_t i = 0; i < quantized_block_values; ++i) values[i] = there ? sum[i] : 0;
      const float magnitude = this->finite_magnitude(128, values);
      if (there) {
        this->error_ = max(this->error_, codec::raw_output_error(bound, static_cast<int>(c_.ranks), type, magnitude));
        this->count_non_finite(block, sum);
      }
    }
    if (there) out_.store(block, sum);
  }
};

template <Type type>
__global__ void __launch_bounds__(most_quantized_workers + 32, 1)
    quantized_one_shot(const __grid_constant__ QuantizedArgs a) {
  __shared__ Progress progress;
  if (threadIdx.x == 0) progress = {};
  __syncthreads();
  device::wait_for_stream();
  QuantizedOneShot<type>(a, progress).run();
}

}  // namespace imbrex::cuda
