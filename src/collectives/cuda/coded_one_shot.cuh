// The one-step all-reduce through a codec: every rank codes its whole vector, once, into slots of all others, and adds
// up all of them, its own part decoded from codes, too. Chunks, slots, posts and raw groups are as in the two-step one;
// there are no sums to send, so the output is the sum, rounded. Rank 0 reports: all have the same.
#pragma once

#include "collectives/cuda/coded_rank.cuh"

namespace imbrex::cuda {

template <Type type>
class CodedOneShot : CodedRank<type, true> {
  using Base = CodedRank<type, true>;
  using Base::a_, Base::c_, Base::state_, Base::in_, Base::out_, Base::workers_, Base::well_;
  using Base::index_of, Base::block_of, Base::place_of, Base::slot_of, Base::peer_of;
  using typename Base::OwnPart;
  using typename Base::Part;
  using typename Base::Values;
  using typename Base::Vector;

 public:
  __device__ __forceinline__ CodedOneShot(const CodedArgs& args, Progress& progress)
      : Base(args), progress_(progress) {}

  __device__ __forceinline__ void run() {
    for (std::uint32_t round = 0; round < a_.chunks + 1; ++round) {
      const bool sends = round < a_.chunks, frees = round >= 1 && round - 1 + a_.slots < a_.chunks;
      if (threadIdx.x >= workers_) {
        if (sends) this->post_one(progress_.parts, round, &CommState::parts);
        if (frees) this->post_one(progress_.freed, round - 1, &CommState::freed);
        continue;
      }
      maybe_pause(c_, state_.epoch, round);
      if (sends) {
        if (round >= a_.slots) this->wait_for(CommStep::room, &CommState::freed, round - a_.slots + 1);
        send(round);
        end_step(progress_.parts, round);
      }
      if (round < 1) continue;
      this->wait_for(CommStep::vector, &CommState::parts, round);
      if (well_) add(round - 1);
      end_step(progress_.freed, round - 1);
    }
    this->end();
  }

 private:
  __device__ __forceinline__ void send(std::uint32_t chunk) {
    const std::uint32_t place = place_of(chunk);
    const Codec c = a_.parts.codec;
    const std::uint32_t block = block_of(chunk), raw_before = this->raw_groups_;
    const bool there = block < a_.value_blocks;
    Values values = {};
    if (there) Vector::to_float(in_.load(block), values);
    const OwnPart part = this->own_part(c, values, there);
    this->raw_groups_ = raw_before;  // counted when it is added
    if (!there) return;
    const codec::Planes planes = codec::to_planes(c.format, part.codes);
#pragma unroll 1
    for (std::uint32_t i = 1; i < c_.ranks; ++i)
      this->store_coded(c, a_.parts, slot_of(a_.parts, peer_of(i), c_.rank, place), index_of(), part.group, planes,
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
      for (std::uint32_t i = 0; i < coded_block_values; ++i) values[i] = there ? sum[i] : 0;
      const float magnitude = this->finite_magnitude(128, values);
      if (there) {
        this->error_ = max(this->error_, codec::raw_output_error(bound, static_cast<int>(c_.ranks), type, magnitude));
        this->count_non_finite(block, sum);
      }
    }
    if (there) out_.store(block, sum);
  }

  Progress& progress_;
};

template <Type type>
__global__ void __launch_bounds__(most_coded_workers + 32, 1) coded_one_shot(const __grid_constant__ CodedArgs a) {
  __shared__ Progress progress;
  if (threadIdx.x == 0) progress = {};
  __syncthreads();
  wait_for_stream();
  CodedOneShot<type>(a, progress).run();
}

}  // namespace imbrex::cuda
