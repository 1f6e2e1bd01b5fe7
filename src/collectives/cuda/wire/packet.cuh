// Packets: 16 bytes that need no flag, because they are their own.
//
// A slot that was not written holds `empty` in each of its four words. The sender never sends that word: as two
// 16-bit elements and as one of 32 bits it is NaN, and becomes another NaN, which no sum can tell from it. The receiver
// polls until no word is empty, so it needs neither a flag nor packets that arrive in one piece, and then empties the
// slot.
//
// Order. Each word is written once and read by a relaxed load at system scope; nothing else is read because of it. The
// receiver's clearing store follows its load of the same address, and reaches the memory that both live in before its
// kernel ends or its block posts "freed"; only after one of these does anybody write the slot again (comm.hpp).
#pragma once

#include "base/elements.cuh"
#include "collectives/cuda/wire/comm.cuh"
#include "imbrex/types.hpp"

namespace imbrex::cuda {

inline constexpr std::uint32_t empty_word = 0xffffffffu;
inline constexpr std::uint32_t packet_bytes = 16;

__device__ __forceinline__ uint4 load_packet(const void* address) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address)
               : "memory");
  return v;
}

__device__ __forceinline__ void store_packet(void* address, const uint4& v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

__device__ __forceinline__ void clear_packet(void* address) {
  store_packet(address, {empty_word, empty_word, empty_word, empty_word});
}

__device__ __forceinline__ bool has_empty(const uint4& v) { return max(max(v.x, v.y), max(v.z, v.w)) == empty_word; }

/// What may travel: `empty` gives way to its neighbour, which is NaN in every type, too.
__device__ __forceinline__ uint4 sendable(const uint4& v) {
  return {min(v.x, empty_word - 1), min(v.y, empty_word - 1), min(v.z, empty_word - 1), min(v.w, empty_word - 1)};
}

/// By value: a reference to one of two packets would put both into memory.
__device__ __forceinline__ uint4 chosen(bool first, const uint4& a, const uint4& b) {
  return {first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w};
}

/// A caller's vector as packets: the last one may be partial, and the first byte anywhere that its elements may be.
struct VectorView {
  std::byte* first;
  std::uint64_t bytes;
  bool aligned;  ///< to 16 bytes

  __device__ __forceinline__ bool whole(std::uint64_t packet) const {
    return aligned && (packet + 1) * packet_bytes <= bytes;
  }
};

__device__ __forceinline__ VectorView view(const void* first, std::uint64_t bytes) {
  return {static_cast<std::byte*>(const_cast<void*>(first)), bytes,
          reinterpret_cast<std::uint64_t>(first) % packet_bytes == 0};
}

/// Zeros past the end.
template <Type type>
__device__ __forceinline__ uint4 load_elements(const VectorView& v, std::uint64_t packet) {
  const std::byte* at = v.first + packet * packet_bytes;
  if (v.whole(packet)) return __ldcs(reinterpret_cast<const uint4*>(at));
  const std::uint64_t left = v.bytes - packet * packet_bytes;
  std::uint32_t words[4] = {};
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    if constexpr (type == Type::fp32) {
      if (4 * i < left) words[i] = *reinterpret_cast<const std::uint32_t*>(at + 4 * i);
    } else {
      const auto* half = reinterpret_cast<const std::uint16_t*>(at + 4 * i);
      if (4 * i < left) words[i] = half[0];
      if (4 * i + 2 < left) words[i] |= static_cast<std::uint32_t>(half[1]) << 16;
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

template <Type type>
__device__ __forceinline__ void store_elements(const VectorView& v, std::uint64_t packet, const uint4& p) {
  std::byte* at = v.first + packet * packet_bytes;
  if (v.whole(packet)) {
    *reinterpret_cast<uint4*>(at) = p;
    return;
  }
  const std::uint64_t left = v.bytes - packet * packet_bytes;
  const std::uint32_t words[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    if constexpr (type == Type::fp32) {
      if (4 * i < left) *reinterpret_cast<std::uint32_t*>(at + 4 * i) = words[i];
    } else {
      auto* half = reinterpret_cast<std::uint16_t*>(at + 4 * i);
      if (4 * i < left) half[0] = static_cast<std::uint16_t>(words[i]);
      if (4 * i + 2 < left) half[1] = static_cast<std::uint16_t>(words[i] >> 16);
    }
  }
}

/// Sums of a packet's elements in fp32, in the order of the calls; the first call sets them, so that -0 stays -0.
template <Type type>
class Sum {
 public:
  __device__ __forceinline__ void add(const uint4& p, bool first) {
    int i = 0;
    Elements<type>::each(p, [&](float v) {
      values_[i] = first ? v : values_[i] + v;
      ++i;
    });
  }

  __device__ __forceinline__ uint4 packed() const { return Elements<type>::packed(values_); }

 private:
  float values_[Elements<type>::count];
};

/// Waits for a thread's packets, the one of source s and number b at first + s * source_stride + b * batch_stride, and
/// empties their slots. Wanted are those with bit b * Most + s set. False if they did not come.
template <int Batch, int Most, typename Where>
__device__ __forceinline__ bool collect(const Comm& c, std::uint64_t epoch, std::byte* first,
                                        std::uint64_t source_stride, std::uint32_t batch_stride, std::uint32_t wanted,
                                        uint4 (&got)[Batch][Most], Where&& where) {
  static_assert(Batch * Most <= 32);
  const auto is_wanted = [&](int b, int s) { return (wanted >> (b * Most + s) & 1) != 0; };
  const auto at = [&](int b, int s) { return first + s * source_stride + b * batch_stride; };
  BoundedPolls polls;
  for (;;) {
    int missing = -1;
#pragma unroll
    for (int b = 0; b < Batch; ++b)
#pragma unroll
      for (int s = 0; s < Most; ++s)
        if (is_wanted(b, s)) got[b][s] = load_packet(at(b, s));
#pragma unroll
    for (int b = 0; b < Batch; ++b)
#pragma unroll
      for (int s = 0; s < Most; ++s)
        if (is_wanted(b, s) && has_empty(got[b][s])) missing = b * Most + s;
    if (missing < 0) break;
    if (!polls.left(c, epoch, [&] { return where(missing / Most, missing % Most); })) return false;
  }
#pragma unroll
  for (int b = 0; b < Batch; ++b)
#pragma unroll
    for (int s = 0; s < Most; ++s)
      if (is_wanted(b, s)) clear_packet(at(b, s));
  return true;
}

}  // namespace imbrex::cuda
