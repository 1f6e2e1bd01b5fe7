// Reduce-scatter, all-gather and all-to-all by packets: what a rank has for a peer goes into the peer's slots at once,
// [source][packet], and comes out of them as it lands. Each packet of a block is sent, awaited and stored by the same
// thread; it waits two packets behind what it sends. Packets are as for sums (packet.cuh): a NaN stays one, but words
// of all ones come back as another.
#pragma once

#include "collectives/cuda/exact/exact_report.cuh"
#include "collectives/cuda/exchange/exchange.hpp"

namespace imbrex::cuda {

template <Type type, int Most, ExchangeKind kind, bool report>
class PacketExchange {
 public:
  __device__ __forceinline__ explicit PacketExchange(const ExchangeArgs& args)
      : a_(args), c_(args.comm), state_(read_state(c_)), well_(begins_well(c_)) {}

  __device__ __forceinline__ void run() {
    constexpr std::uint64_t lag = 2;
    const std::uint64_t packets = (a_.bytes + packet_bytes - 1) / packet_bytes,
                        begin = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x,
                        step = std::uint64_t{gridDim.x} * blockDim.x, end = packets + lag * step;
    maybe_pause(c_, state_.epoch, 0);
    if (report && a_.continues && blockIdx.x == 0 && threadIdx.x == 0) take_over();
    for (std::uint64_t q = begin; q < end; q += step) {
      if (q < packets) send(q);
      if (q >= begin + lag * step && well_) well_ = take(q - lag * step);
    }
    losses_.write(c_, state_.epoch);
    end_epoch(c_, state_);
  }

 private:
  /// The epoch before was a part of the same call.
  __device__ __forceinline__ void take_over() const {
    CommReport* reports = state_of(c_, c_.rank).reports;
    const CommReport before = reports[(state_.epoch + 1) & 1];
    atomicMax(&reports[state_.epoch & 1].error_bits, before.error_bits);
    atomicAdd(&reports[state_.epoch & 1].non_finite, before.non_finite);
  }

  __device__ __forceinline__ VectorView in(std::uint32_t peer) const {
    const std::uint64_t block = kind == ExchangeKind::all_gather ? 0 : peer;
    return view(static_cast<const std::byte*>(a_.in) + block * a_.block_bytes, a_.bytes);
  }

  __device__ __forceinline__ VectorView out(std::uint32_t source) const {
    const std::uint64_t block = kind == ExchangeKind::reduce_scatter ? 0 : source;
    return view(static_cast<const std::byte*>(a_.out) + block * a_.block_bytes, a_.bytes);
  }

  __device__ __forceinline__ void send(std::uint64_t q) const {
    uint4 packets[Most];
#pragma unroll
    for (std::uint32_t i = 1; i < Most; ++i)
      if (i < c_.ranks && (i == 1 || kind != ExchangeKind::all_gather))
        packets[i] = sendable(load_elements<type>(in(peer_of(i)), q));
#pragma unroll
    for (std::uint32_t i = 1; i < Most; ++i)
      if (well_ && i < c_.ranks)
        store_packet(slots_of(c_, peer_of(i), state_.epoch) + c_.rank * a_.source_stride + q * packet_bytes,
                     packets[kind == ExchangeKind::all_gather ? 1 : i]);
  }

  /// False if something did not come.
  __device__ __forceinline__ bool take(std::uint64_t q) {
    uint4 got[1][Most];
    const uint4 own = load_elements<type>(in(c_.rank), q);
    const std::uint32_t wanted = ((1u << c_.ranks) - 1) & ~(1u << c_.rank);
    if (!collect<1, Most>(c_, state_.epoch, slots_of(c_, c_.rank, state_.epoch) + q * packet_bytes, a_.source_stride, 0,
                          wanted, got, [&](int, int s) {
                            return Place{CommStep::block, static_cast<std::uint32_t>(s), q, 0, 0};
                          }))
      return false;
    Sum<type> sum;
#pragma unroll
    for (std::uint32_t s = 0; s < Most; ++s) {
      if (s >= c_.ranks) break;
      const uint4 part = chosen(s == c_.rank, own, got[0][s]);
      if constexpr (kind == ExchangeKind::reduce_scatter) {
        sum.add(part, s == 0);
        losses_.part(part);
      } else {
        store_elements<type>(out(s), q, part);
        losses_.count(part);
      }
    }
    if constexpr (kind == ExchangeKind::reduce_scatter) {
      const uint4 packed = sum.packed();
      store_elements<type>(out(0), q, packed);
      losses_.sum(packed, c_.ranks);
    }
    return true;
  }

  __device__ __forceinline__ std::uint32_t peer_of(std::uint32_t i) const {
    return c_.rank + i < c_.ranks ? c_.rank + i : c_.rank + i - c_.ranks;
  }

  const ExchangeArgs& a_;
  const Comm& c_;
  BlockState state_;
  bool well_;  ///< nothing is sent otherwise
  ExactReport<type, report> losses_;
};

template <Type type, int Most, ExchangeKind kind, bool report>
__global__ void __launch_bounds__(most_exchange_threads, 1) packet_exchange(const __grid_constant__ ExchangeArgs a) {
  device::wait_for_stream();
  PacketExchange<type, Most, kind, report>(a).run();
}

template <Type type, int Most, bool report>
const void* exchange_kernel_of(ExchangeKind kind) {
  using enum ExchangeKind;
  switch (kind) {
    case reduce_scatter: return reinterpret_cast<const void*>(&packet_exchange<type, Most, reduce_scatter, report>);
    case all_gather: return reinterpret_cast<const void*>(&packet_exchange<type, Most, all_gather, report>);
    case all_to_all: return reinterpret_cast<const void*>(&packet_exchange<type, Most, all_to_all, report>);
  }
  return nullptr;
}

template <Type type, int Most>
const void* exchange_kernel_of(ExchangeKind kind, bool report) {
  return report ? exchange_kernel_of<type, Most, true>(kind) : exchange_kernel_of<type, Most, false>(kind);
}

template <Type type>
const void* exchange_kernel_of(ExchangeKind kind, std::uint32_t ranks, bool report) {
  return ranks <= 2   ? exchange_kernel_of<type, 2>(kind, report)
         : ranks <= 4 ? exchange_kernel_of<type, 4>(kind, report)
                      : exchange_kernel_of<type, static_cast<int>(max_comm_ranks)>(kind, report);
}

}  // namespace imbrex::cuda
