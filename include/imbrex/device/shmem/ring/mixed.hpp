// The transport for PEs of several hosts: loads and stores to those whose memory is mapped, rings to the others.
//
// Atomic operations and signals that are added to all go through rings, so that they are atomic to each other from
// every PE; those to a near PE wait until they are done, so that what follows a fence may be a store.
#pragma once

#include "imbrex/device/shmem/ring/transport.hpp"

namespace imbrex::shmem::ring {

template <Sharing sharing = Sharing::threads>
class Mixed {
 public:
  static constexpr bool orders_signals = true;

  IMBREX_DEVICE bool open(const Handle& handle, std::uint32_t number) {
    if (!ring_.open(handle, number)) return false;
    near_ = static_cast<const Endpoint*>(handle.transport)->near;
    return true;
  }

  /// For puts that the host registered.
  IMBREX_DEVICE Transport<sharing>& ring() { return ring_; }

  template <typename T>
  IMBREX_DEVICE T* pointer(const Handle& handle, T* address, std::uint32_t pe) const {
    return is_near(pe) ? LoadStore{}.pointer(handle, address, pe) : nullptr;
  }

  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void put(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                         const G& group) {
    if (is_near(pe))
      LoadStore{}.put(handle, to, from, count, pe, group);
    else
      ring_.put(handle, to, from, count, pe, group);
  }
  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void put_nbi(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                             const G& group) {
    if (is_near(pe))
      LoadStore{}.put(handle, to, from, count, pe, group);
    else
      ring_.put_nbi(handle, to, from, count, pe, group);
  }
  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void get(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                         const G& group) {
    if (is_near(pe))
      LoadStore{}.get(handle, to, from, count, pe, group);
    else
      ring_.get(handle, to, from, count, pe, group);
  }
  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void get_nbi(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                             const G& group) {
    if (is_near(pe))
      LoadStore{}.get(handle, to, from, count, pe, group);
    else
      ring_.get_nbi(handle, to, from, count, pe, group);
  }

  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void put_signal(const Handle& handle, T* to, const T* from, std::uint64_t count, Signal* to_signal,
                                Signal value, SignalOperation operation, std::uint32_t pe, const G& group) {
    if (is_near(pe))
      store_and_signal(handle, to, from, count, to_signal, value, operation, pe, group);
    else
      ring_.put_signal(handle, to, from, count, to_signal, value, operation, pe, group);
  }
  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void put_signal_nbi(const Handle& handle, T* to, const T* from, std::uint64_t count, Signal* to_signal,
                                    Signal value, SignalOperation operation, std::uint32_t pe, const G& group) {
    if (is_near(pe))
      store_and_signal(handle, to, from, count, to_signal, value, operation, pe, group);
    else
      ring_.put_signal_nbi(handle, to, from, count, to_signal, value, operation, pe, group);
  }

  template <Scalar T>
  IMBREX_DEVICE void put_one(const Handle& handle, T* to, T value, std::uint32_t pe) {
    if (is_near(pe))
      LoadStore{}.put_one(handle, to, value, pe);
    else
      ring_.put_one(handle, to, value, pe);
  }
  template <Scalar T>
  IMBREX_DEVICE T get_one(const Handle& handle, const T* from, std::uint32_t pe) {
    return is_near(pe) ? LoadStore{}.get_one(handle, from, pe) : ring_.get_one(handle, from, pe);
  }
  IMBREX_DEVICE void put_pair(const Handle& handle, void* to, words::Pair pair, std::uint32_t pe) {
    if (is_near(pe))
      LoadStore{}.put_pair(handle, to, pair, pe);
    else
      ring_.put_pair(handle, to, pair, pe);
  }

  template <Atomic T, typename Operation>
  IMBREX_DEVICE T atomic(const Handle& handle, T* address, std::uint32_t pe, const Operation& operation) {
    const T before = ring_.atomic(handle, address, pe, operation);
    if (is_near(pe)) ring_.quiet(handle, pe);
    return before;
  }

  IMBREX_DEVICE void signal(const Handle& handle, Signal* to, Signal value, SignalOperation operation,
                            std::uint32_t pe) {
    if (is_near(pe) && operation == SignalOperation::set) {
      LoadStore{}.signal(handle, to, value, operation, pe);
    } else {
      ring_.signal(handle, to, value, operation, pe);
      if (is_near(pe)) ring_.quiet(handle, pe);
    }
  }

  IMBREX_DEVICE void fence(const Handle& handle, std::uint32_t pe) {
    words::fence();
    ring_.fence(handle, pe);
  }
  IMBREX_DEVICE void quiet(const Handle& handle, std::uint32_t pe) {
    words::full_fence();
    ring_.quiet(handle, pe);
  }
  IMBREX_DEVICE void progress(const Handle& handle) { ring_.progress(handle); }

 private:
  IMBREX_DEVICE bool is_near(std::uint32_t pe) const { return pe < max_pes && (near_ >> pe & 1) != 0; }

  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void store_and_signal(const Handle& handle, T* to, const T* from, std::uint64_t count,
                                      Signal* to_signal, Signal value, SignalOperation operation, std::uint32_t pe,
                                      const G& group) {
    LoadStore{}.put(handle, to, from, count, pe, group);
    group.sync();
    if (!is_leader(group)) return;
    const bool aborted = device::load_relaxed(&handle.group.own->abort) != 0;  // comes beside the fence
    words::fence();
    if (!aborted) signal(handle, to_signal, value, operation, pe);
  }

  Transport<sharing> ring_;
  std::uint64_t near_ = 0;
};

}  // namespace imbrex::shmem::ring

namespace imbrex::shmem {

/// For `Context<MixedRing>`: loads and stores to PEs of this host, rings to others.
using MixedRing = ring::Mixed<>;

}  // namespace imbrex::shmem
