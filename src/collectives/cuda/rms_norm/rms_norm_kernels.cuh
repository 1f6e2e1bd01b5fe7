// Exact all-reduces with residual and RMSNorm of one element type. Slots, packets and rounds are those of the exact
// ones (exact_kernels.cuh), but that rows take the place of packets: a row is dealt with by a group of threads
// (RowShape), always the same, so that the squares' sum needs no second kernel: several groups to a block where there
// are many rows, a cluster of blocks to a group where there are few. Rows are padded to whole packets in the slots,
// with zeros, which add nothing to the squares.
#pragma once

#include "collectives/cuda/rms_norm/rms_norm.hpp"
#include "collectives/cuda/wire/packet.cuh"

namespace imbrex::cuda {

/// In a block's shared memory: the sums of its warps, of up to Most rows at once, in two copies that take turns.
template <int Most>
struct WarpSums {
  float of[2][Most][collectives::most_row_threads / 32];
};

/// Until all blocks of the cluster have come here; what they wrote to each other's shared memory is there. By every
/// thread, on every way through a kernel: nothing bounds this wait but that all others are bounded.
__device__ __forceinline__ void sync_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
}

__device__ __forceinline__ std::uint32_t block_in_cluster() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Into the same place of another block's shared memory.
__device__ __forceinline__ void store_in_cluster(float* shared, std::uint32_t block, float value) {
  std::uint32_t at;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(at)
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(shared))), "r"(block));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(value) : "memory");
}

template <Type type, int Most>
class RowWork {
 protected:
  /// Packets of a row that a thread waits for at once. Rows that are no longer stay in registers; of others it reads
  /// again what it has stored.
  static constexpr std::uint32_t strip = Most <= 4 ? 2 : 1;
  using Strips = uint4[strip][Most];

  __device__ __forceinline__ RowWork(const RmsNormArgs& args, WarpSums<Most>& sums)
      : a_(args),
        c_(args.comm),
        state_(read_state(c_)),
        sums_(sums),
        group_(args.cluster > 1 ? 0 : threadIdx.x / args.row.threads),
        thread_(args.cluster > 1 ? block_in_cluster() * blockDim.x + threadIdx.x : threadIdx.x % args.row.threads),
        single_(args.row.packets <= strip * args.row.threads),
        well_(begins_well(c_)) {
#pragma unroll
    for (std::uint32_t k = 0; k < strip; ++k)
      if (has(0, k) && !a_.fp32_weight) weight_[k] = load_elements<type>(row_of(a_.weight, 0), packet_of(0, k));
  }

  __device__ __forceinline__ std::uint32_t packet_of(std::uint32_t first, std::uint32_t k) const {
    return first + thread_ + k * a_.row.threads;
  }
  __device__ __forceinline__ bool has(std::uint32_t first, std::uint32_t k) const {
    return packet_of(first, k) < a_.row.packets;
  }
  /// The first row of this group's, and the number from each to the next.
  __device__ __forceinline__ std::uint64_t first_row() const {
    return std::uint64_t{blockIdx.x / a_.cluster} * a_.groups + group_;
  }
  __device__ __forceinline__ std::uint64_t rows_at_once() const {
    return std::uint64_t{gridDim.x / a_.cluster} * a_.groups;
  }

  /// Packets from one strip to the next.
  __device__ __forceinline__ std::uint32_t step() const { return strip * a_.row.threads; }

  __device__ __forceinline__ VectorView row_of(const void* matrix, std::uint64_t row) const {
    return view(static_cast<const std::byte*>(matrix) + row * a_.row_bytes, a_.row_bytes);
  }

  /// The weights of packet `q` of a row, number k of a strip. Those of fp32 beside shorter elements would take twice
  /// the registers, which spills: they are read again for each row, by loads that leave them in L1.
  template <typename Visit>
  __device__ __forceinline__ void each_weight(std::uint32_t q, std::uint32_t k, Visit&& visit) const {
    if constexpr (type != Type::fp32) {
      if (a_.fp32_weight) {
        const VectorView weight = view(a_.weight, 2 * a_.row_bytes);
#pragma unroll
        for (std::uint32_t half = 0; half < 2; ++half) {
          const std::uint64_t four = 2 * std::uint64_t{q} + half;
          uint4 loaded{};
          if (weight.whole(four))
            loaded = *reinterpret_cast<const uint4*>(weight.first + four * packet_bytes);
          else if (four * packet_bytes < weight.bytes)
            loaded = load_elements<Type::fp32>(weight, four);
          Elements<Type::fp32>::each(loaded, visit);
        }
        return;
      }
    }
    Elements<type>::each(single_ ? weight_[k] : load_elements<type>(row_of(a_.weight, 0), q), visit);
  }

  __device__ __forceinline__ std::uint32_t peer_of(std::uint32_t i) const {
    return c_.rank + i < c_.ranks ? c_.rank + i : c_.rank + i - c_.ranks;
  }

  /// Waits for a strip of rows of the sources in `wanted`; `slot` is of source 0. Done at once if all is not well.
  __device__ __forceinline__ void gather(std::byte* slot, std::uint32_t first, std::uint32_t wanted, CommStep what,
                                         Strips& got) {
    std::uint32_t bits = 0;
#pragma unroll
    for (std::uint32_t k = 0; k < strip; ++k)
      if (has(first, k)) bits |= wanted << (k * Most);
    if (well_)
      well_ = collect<strip, Most>(
          c_, state_.epoch, slot + packet_of(first, 0) * packet_bytes, a_.source_stride, a_.row.threads * packet_bytes,
          bits, got, [&](int k, int s) {
            return Place{what, static_cast<std::uint32_t>(s), packet_of(first, static_cast<std::uint32_t>(k)), 0, 0};
          });
  }

  /// A row of this rank's part, and its residual, of the strip that begins at packet `first`.
  struct Own {
    uint4 part[strip], residual[strip];
  };
  __device__ __forceinline__ Own load_own(std::uint64_t row, std::uint32_t first) const {
    Own own{};
#pragma unroll
    for (std::uint32_t k = 0; k < strip; ++k) {
      if (!has(first, k)) continue;
      own.part[k] = load_elements<type>(row_of(a_.in, row), packet_of(first, k));
      if (a_.residual != nullptr) own.residual[k] = load_elements<type>(row_of(a_.residual, row), packet_of(first, k));
    }
    return own;
  }

  /// Sums by rank number, then the residual; `slot` as in gather. `visit` gets each packet's number and sum. Sums stay
  /// in registers or are stored, squares added up.
  template <typename Visit>
  __device__ __forceinline__ void reduce_row(std::uint64_t row, std::byte* slot, CommStep what, Visit&& visit) {
    uint4 x[strip];
    float squares[1] = {};
    for (std::uint32_t first = 0; first < a_.row.packets; first += step()) {
      const Own own = load_own(row, first);
      Strips got;
      gather(slot, first, ((1u << c_.ranks) - 1) & ~(1u << c_.rank), what, got);
      if (!well_) break;
#pragma unroll
      for (std::uint32_t k = 0; k < strip; ++k) {
        if (!has(first, k)) continue;
        Sum<type> sum;
#pragma unroll
        for (std::uint32_t s = 0; s < Most; ++s)
          if (s < c_.ranks) sum.add(chosen(s == c_.rank, own.part[k], got[k][s]), s == 0);
        if (a_.residual != nullptr) sum.add(own.residual[k], false);
        x[k] = sendable(sum.packed());
        visit(packet_of(first, k), x[k]);
        store_elements<type>(row_of(a_.residual_out, row), packet_of(first, k), x[k]);
        add_squares(x[k], squares[0]);
      }
    }
    total(squares);
    normalise_row(row, squares[0], [&](std::uint32_t k) { return x[k]; });
  }

  __device__ __forceinline__ static void add_squares(const uint4& packet, float& squares) {
    Elements<type>::each(packet, [&](float v) { squares = collectives::add_square(squares, v); });
  }

  /// By a whole group: the threads' sums become the row's, in the order that RowShape says.
  template <int Count>
  __device__ __forceinline__ void total(float (&values)[Count]) {
    const std::uint32_t warps = a_.row.threads / 32;
#pragma unroll
    for (int i = 0; i < Count; ++i)
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2)
        values[i] += __shfl_xor_sync(0xffffffffu, values[i], distance);
    if (warps == 1) return;
    auto& sums = sums_.of[turn_];
    turn_ ^= 1;  // a thread that writes a copy again has met its readers at the other copy's barrier
    const std::uint32_t lane = threadIdx.x % 32, first = group_ * warps, warp = first + thread_ / 32;
    if (a_.cluster > 1) {
      if (lane < a_.cluster)
#pragma unroll
        for (int i = 0; i < Count; ++i) store_in_cluster(&sums[i][warp], lane, values[i]);
      sync_cluster();
    } else {
      if (lane == 0)
#pragma unroll
        for (int i = 0; i < Count; ++i) sums[i][warp] = values[i];
      asm volatile("bar.sync %0, %1;" ::"r"(group_ + 1), "r"(a_.row.threads) : "memory");
    }
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      values[i] = sums[i][first];
      for (std::uint32_t w = 1; w < warps; ++w) values[i] += sums[i][first + w];
    }
  }

  /// Writes a row of the output. `kept(k)`: the packets of a single strip.
  template <typename Kept>
  __device__ __forceinline__ void normalise_row(std::uint64_t row, float squares, Kept&& kept) const {
    if (!well_) return;
    const float scale = collectives::row_scale(squares, a_.hidden, a_.eps);
    const VectorView x = row_of(a_.residual_out, row), out = row_of(a_.out, row);
    for (std::uint32_t first = 0; first < a_.row.packets; first += step()) {
#pragma unroll
      for (std::uint32_t k = 0; k < strip; ++k) {
        if (!has(first, k)) continue;
        const std::uint32_t q = packet_of(first, k);
        float values[Elements<type>::count];
        int i = 0, j = 0;
        Elements<type>::each(single_ ? kept(k) : load_elements<type>(x, q), [&](float v) { values[i++] = v; });
        each_weight(q, k, [&](float w) {
          values[j] = collectives::normalised(values[j], scale, w);
          ++j;
        });
        store_elements<type>(out, q, Elements<type>::packed(values));
      }
    }
  }

  const RmsNormArgs& a_;
  const Comm& c_;
  BlockState state_;
  WarpSums<Most>& sums_;
  std::uint32_t group_, thread_, turn_ = 0;
  bool single_;               ///< a row is one strip
  bool well_;                 ///< nothing is sent otherwise
  uint4 weight_[strip] = {};  ///< of a single strip, except fp32_weight
};

/// Slots: [source][row][packet].
template <Type type, int Most>
class OneShotRmsNorm : RowWork<type, Most> {
  using Base = RowWork<type, Most>;
  using Base::a_, Base::c_, Base::state_, Base::well_, Base::has, Base::packet_of, Base::peer_of, Base::row_of;

 public:
  __device__ __forceinline__ OneShotRmsNorm(const RmsNormArgs& args, WarpSums<Most>& sums) : Base(args, sums) {}

  __device__ __forceinline__ void run() {
    const std::uint64_t begin = this->first_row(), step = this->rows_at_once();
    maybe_pause(c_, state_.epoch, 0);
    for (std::uint64_t row = begin; row < a_.rows; row += step) send(row);
    maybe_pause(c_, state_.epoch, 1);
    for (std::uint64_t row = begin; row < a_.rows; row += step)
      this->reduce_row(row, slot_of(c_.rank, row), CommStep::vector, [](std::uint32_t, const uint4&) {});
    end_epoch(c_, state_);
  }

 private:
  __device__ __forceinline__ std::byte* slot_of(std::uint32_t rank, std::uint64_t row) const {
    return slots_of(c_, rank, state_.epoch) + row * a_.row.packets * packet_bytes;
  }

  __device__ __forceinline__ void send(std::uint64_t row) const {
    for (std::uint32_t first = 0; first < a_.row.packets; first += this->step()) {
      uint4 packets[Base::strip];
#pragma unroll
      for (std::uint32_t k = 0; k < Base::strip; ++k)
        if (has(first, k)) packets[k] = sendable(load_elements<type>(row_of(a_.in, row), packet_of(first, k)));
#pragma unroll
      for (std::uint32_t k = 0; k < Base::strip; ++k)
#pragma unroll
        for (std::uint32_t i = 1; i < Most; ++i)
          if (well_ && has(first, k) && i < c_.ranks)
            store_packet(slot_of(peer_of(i), row) + c_.rank * a_.source_stride + packet_of(first, k) * packet_bytes,
                         packets[k]);
    }
  }
};

/// As TwoShot. A rank owns whole rows; it sends what it has added up and rounded, and every rank normalises for itself,
/// which costs fewer bytes than sending both. Slots: [parts, sums][source][slot, cluster][group][packet].
template <Type type, int Most>
class TwoShotRmsNorm : RowWork<type, Most> {
  using Base = RowWork<type, Most>;
  using Base::a_, Base::c_, Base::state_, Base::well_, Base::has, Base::packet_of, Base::peer_of, Base::row_of;

 public:
  __device__ __forceinline__ TwoShotRmsNorm(const RmsNormArgs& args, WarpSums<Most>& sums) : Base(args, sums) {}

  __device__ __forceinline__ void run() {
    std::uint32_t posts = 0;
    for (std::uint32_t round = 0; round < a_.chunks + 2; ++round) {
      maybe_pause(c_, state_.epoch, round);
      if (round < a_.chunks) {
        if (round >= a_.slots) well_ = wait_for_room(c_, state_, round - a_.slots + 1, well_);
        send(round);
      }
      if (round >= 1 && round - 1 < a_.chunks) add(round - 1);
      if (round < 2) continue;
      take(round - 2);
      if (round - 2 + a_.slots < a_.chunks) well_ = post_room(c_, state_, ++posts, well_);
    }
    end_epoch(c_, state_, posts);
  }

 private:
  /// The number of this group's row in a piece.
  __device__ __forceinline__ std::uint64_t index_of(std::uint32_t chunk) const {
    return chunk * this->rows_at_once() + this->first_row();
  }

  __device__ __forceinline__ std::uint64_t slot_of(std::uint32_t chunk) const {
    return index_of(chunk % a_.slots) * a_.row.packets * packet_bytes;
  }

  __device__ __forceinline__ std::byte* parts(std::uint32_t rank) const { return slots_of(c_, rank, state_.epoch); }

  __device__ __forceinline__ std::byte* sums(std::uint32_t rank) const {
    return slots_of(c_, rank, state_.epoch) + c_.ranks * a_.source_stride;
  }

  __device__ __forceinline__ bool owns(std::uint32_t owner, std::uint64_t index) const {
    return index < a_.piece && owner * a_.piece + index < a_.rows;
  }

  __device__ __forceinline__ void send(std::uint32_t chunk) const {
    const std::uint64_t index = index_of(chunk), slot = slot_of(chunk) + c_.rank * a_.source_stride;
    for (std::uint32_t first = 0; first < a_.row.packets; first += this->step()) {
      typename Base::Strips packets;
#pragma unroll
      for (std::uint32_t k = 0; k < Base::strip; ++k)
#pragma unroll
        for (std::uint32_t i = 1; i < Most; ++i)
          if (has(first, k) && i < c_.ranks && owns(peer_of(i), index))
            packets[k][i] = load_elements<type>(row_of(a_.in, peer_of(i) * a_.piece + index), packet_of(first, k));
#pragma unroll
      for (std::uint32_t k = 0; k < Base::strip; ++k)
#pragma unroll
        for (std::uint32_t i = 1; i < Most; ++i)
          if (well_ && has(first, k) && i < c_.ranks && owns(peer_of(i), index))
            store_packet(parts(peer_of(i)) + slot + packet_of(first, k) * packet_bytes, sendable(packets[k][i]));
    }
  }

  __device__ __forceinline__ void add(std::uint32_t chunk) {
    const std::uint64_t index = index_of(chunk), slot = slot_of(chunk);
    if (!owns(c_.rank, index)) return;
    this->reduce_row(
        c_.rank * a_.piece + index, parts(c_.rank) + slot, CommStep::part, [&](std::uint32_t q, const uint4& packet) {
#pragma unroll
          for (std::uint32_t i = 1; i < Most; ++i)
            if (i < c_.ranks)
              store_packet(sums(peer_of(i)) + slot + c_.rank * a_.source_stride + q * packet_bytes, packet);
        });
  }

  __device__ __forceinline__ void take(std::uint32_t chunk) {
    const std::uint64_t index = index_of(chunk);
    std::uint32_t wanted = 0;
#pragma unroll
    for (std::uint32_t s = 0; s < Most; ++s)
      if (s < c_.ranks && s != c_.rank && owns(s, index)) wanted |= 1u << s;
    if (wanted == 0) return;
    typename Base::Strips got;
    float squares[Most] = {};
    for (std::uint32_t first = 0; first < a_.row.packets; first += this->step()) {
      this->gather(sums(c_.rank) + slot_of(chunk), first, wanted, CommStep::sum, got);
      if (!well_) break;
#pragma unroll
      for (std::uint32_t k = 0; k < Base::strip; ++k)
#pragma unroll
        for (std::uint32_t s = 0; s < Most; ++s)
          if (has(first, k) && (wanted >> s & 1) != 0) {
            store_elements<type>(row_of(a_.residual_out, s * a_.piece + index), packet_of(first, k), got[k][s]);
            Base::add_squares(got[k][s], squares[s]);
          }
    }
    this->total(squares);
#pragma unroll
    for (std::uint32_t s = 0; s < Most; ++s)
      if ((wanted >> s & 1) != 0)
        this->normalise_row(s * a_.piece + index, squares[s], [&](std::uint32_t k) { return got[k][s]; });
  }
};

template <Type type, int Most>
__global__ void __launch_bounds__(collectives::most_row_threads, 1)
    one_shot_rms_norm(const __grid_constant__ RmsNormArgs a) {
  __shared__ WarpSums<Most> sums;
  if (a.cluster > 1) sync_cluster();  // they all run, and can be written to
  device::wait_for_stream();
  OneShotRmsNorm<type, Most>(a, sums).run();
}

template <Type type, int Most>
__global__ void __launch_bounds__(collectives::most_row_threads, 1)
    two_shot_rms_norm(const __grid_constant__ RmsNormArgs a) {
  __shared__ WarpSums<Most> sums;
  if (a.cluster > 1) sync_cluster();  // they all run, and can be written to
  device::wait_for_stream();
  TwoShotRmsNorm<type, Most>(a, sums).run();
}

template <Type type, int Most>
const void* rms_norm_kernel_of(ExactKernel kernel) {
  return kernel == ExactKernel::one_shot ? reinterpret_cast<const void*>(&one_shot_rms_norm<type, Most>)
                                         : reinterpret_cast<const void*>(&two_shot_rms_norm<type, Most>);
}

template <Type type>
const void* rms_norm_kernel_of(std::uint32_t ranks, ExactKernel kernel) {
  return ranks <= 4 ? rms_norm_kernel_of<type, 4>(kernel)
                    : rms_norm_kernel_of<type, static_cast<int>(max_comm_ranks)>(kernel);
}

}  // namespace imbrex::cuda
