// A context: what a workgroup issues puts, gets, atomic operations and signals by, and what its fence and quiet are
// about.
//
// All threads of `group` make a call together, with the same arguments; groups' sync() meets before the calls that
// return data or say that a source may be written again. Addresses of the heap are this PE's own, and stand for the
// same place on the PE that is named. The names and their meaning are OpenSHMEM 1.6's.
//
// Order. Nothing is ordered but by fence (what comes before it, to one PE), quiet (all of it is complete afterwards)
// and signals (a put's data comes before its own signal). A wait acquires: what came before the signal or the value
// that it saw is visible afterwards, to all threads of the group.
//
// Failure. A wait that passes the world's limit, or that ends because another PE's did, returns false. So does every
// later wait that finds nothing. The kernel must then end and store nothing more to peers. The host says what was
// waited for.
#pragma once

#include "imbrex/device/shmem/group.hpp"
#include "imbrex/device/shmem/handle.hpp"
#include "imbrex/device/shmem/kernel.hpp"
#include "imbrex/device/shmem/load_store.hpp"
#include "imbrex/device/shmem/operations.hpp"
#include "imbrex/device/shmem/reach.hpp"

namespace imbrex::shmem {

inline constexpr std::uint32_t all_pes = 0xffffffffu;

template <typename Transport = LoadStore>
class Context {
 public:
  /// Number `number` of this PE's contexts: a block's own, or one that the kernel deals out. Kernels that run at once
  /// use different numbers. The handle outlives it.
  IMBREX_DEVICE explicit Context(const Handle& handle, std::uint32_t number = block_index())
      : handle_(handle), open_(transport_.open(handle, number)) {
    if (!open_)
      give_up(handle_, [&](device::Fault& fault) {
        describe(fault, FaultKind::context, block_index(), handle.pe(), 0, handle.contexts, number);
      });
  }

  /// Whether the context could be made. Else all waits of all PEs have been ended, and it is not to be used.
  IMBREX_DEVICE explicit operator bool() const { return open_; }

  IMBREX_DEVICE std::uint32_t pe() const { return words::here(handle_.pe()); }
  IMBREX_DEVICE std::uint32_t pes() const { return words::here(handle_.pes()); }
  IMBREX_DEVICE const Handle& handle() const { return handle_; }
  IMBREX_DEVICE Transport& transport() { return transport_; }

  /// The place itself in another PE's memory; null where loads and stores do not reach it.
  template <typename T>
  IMBREX_DEVICE T* pointer(T* address, std::uint32_t pe) const {
    return reaches<Transport>(handle_, pe) && checked(address, 1, pe) ? transport_.pointer(handle_, address, pe)
                                                                      : nullptr;
  }

  // ------------------------------------------------------------------------------------------- puts and gets

  /// `count` elements. The source may be written again when the call has returned.
  template <Scalar T, ThreadGroup G = Thread>
  IMBREX_DEVICE void put(T* to, const T* from, std::uint64_t count, std::uint32_t pe, const G& group = {}) {
    if (checked(to, count, pe)) transport_.put(handle_, to, from, count, pe, group);
    group.sync();
  }

  /// The source is to stay until a quiet.
  template <Scalar T, ThreadGroup G = Thread>
  IMBREX_DEVICE void put_nbi(T* to, const T* from, std::uint64_t count, std::uint32_t pe, const G& group = {}) {
    if (checked(to, count, pe)) transport_.put_nbi(handle_, to, from, count, pe, group);
  }

  template <Scalar T, ThreadGroup G = Thread>
  IMBREX_DEVICE void get(T* to, const T* from, std::uint64_t count, std::uint32_t pe, const G& group = {}) {
    if (checked(from, count, pe)) transport_.get(handle_, to, from, count, pe, group);
    group.sync();
  }

  /// The data is there after a quiet.
  template <Scalar T, ThreadGroup G = Thread>
  IMBREX_DEVICE void get_nbi(T* to, const T* from, std::uint64_t count, std::uint32_t pe, const G& group = {}) {
    if (checked(from, count, pe)) transport_.get_nbi(handle_, to, from, count, pe, group);
  }

  /// One element.
  template <Scalar T>
  IMBREX_DEVICE void p(T* to, std::type_identity_t<T> value, std::uint32_t pe) {
    if (checked(to, 1, pe)) transport_.put_one(handle_, to, value, pe);
  }
  template <Scalar T>
  IMBREX_DEVICE T g(const T* from, std::uint32_t pe) {
    return checked(from, 1, pe) ? transport_.get_one(handle_, from, pe) : T{};
  }

  /// `count` elements, with strides in elements.
  template <Scalar T, ThreadGroup G = Thread>
  IMBREX_DEVICE void iput(T* to, const T* from, std::uint64_t to_stride, std::uint64_t from_stride, std::uint64_t count,
                          std::uint32_t pe, const G& group = {}) {
    if (checked(to, span(count, to_stride), pe))
      for (std::uint64_t i = group.thread_rank(); i < count; i += group.size())
        transport_.put_one(handle_, to + i * to_stride, from[i * from_stride], pe);
    group.sync();
  }
  template <Scalar T, ThreadGroup G = Thread>
  IMBREX_DEVICE void iget(T* to, const T* from, std::uint64_t to_stride, std::uint64_t from_stride, std::uint64_t count,
                          std::uint32_t pe, const G& group = {}) {
    if (checked(from, span(count, from_stride), pe))
      for (std::uint64_t i = group.thread_rank(); i < count; i += group.size())
        to[i * to_stride] = transport_.get_one(handle_, from + i * from_stride, pe);
    group.sync();
  }

  // ------------------------------------------------------------------------------------------------- signals

  /// A put, and after its data the signal. Nothing is signalled once a wait of any PE has given up.
  template <Scalar T, ThreadGroup G = Thread>
  IMBREX_DEVICE void put_signal(T* to, const T* from, std::uint64_t count, Signal* signal, Signal value,
                                SignalOperation operation, std::uint32_t pe, const G& group = {}) {
    if constexpr (requires { Transport::orders_signals; }) {
      if (checked(to, count, pe) && checked(signal, 1, pe))
        transport_.put_signal(handle_, to, from, count, signal, value, operation, pe, group);
      group.sync();
    } else {
      put(to, from, count, pe, group);
      if (is_leader(group)) fence_and_signal(signal, value, operation, pe);
    }
  }
  template <Scalar T, ThreadGroup G = Thread>
  IMBREX_DEVICE void put_signal_nbi(T* to, const T* from, std::uint64_t count, Signal* signal, Signal value,
                                    SignalOperation operation, std::uint32_t pe, const G& group = {}) {
    if constexpr (requires { Transport::orders_signals; }) {
      if (checked(to, count, pe) && checked(signal, 1, pe))
        transport_.put_signal_nbi(handle_, to, from, count, signal, value, operation, pe, group);
    } else {
      put_nbi(to, from, count, pe, group);
      group.sync();
      if (is_leader(group)) fence_and_signal(signal, value, operation, pe);
    }
  }

  /// One element and its signal.
  template <Scalar T>
  IMBREX_DEVICE void p_signal(T* to, std::type_identity_t<T> value, Signal* signal, Signal signal_value,
                              SignalOperation operation, std::uint32_t pe) {
    p(to, value, pe);
    fence_and_signal(signal, signal_value, operation, pe);
  }

  /// Value and signal in one packet: a reader that sees the signal sees the value. No fence: earlier puts may come
  /// later.
  template <Scalar T>
  IMBREX_DEVICE void put_packet(Packet<T>* to, std::type_identity_t<T> value, Signal signal, std::uint32_t pe) {
    if (checked(to, 1, pe)) transport_.put_pair(handle_, to, {words::cast<words::BitsOf<T>>(value), signal}, pe);
  }

  /// The signal alone. `signal_set` and `signal_add` order nothing before it.
  IMBREX_DEVICE void signal_set(Signal* signal, Signal value, std::uint32_t pe) {
    if (checked(signal, 1, pe)) transport_.signal(handle_, signal, value, SignalOperation::set, pe);
  }
  IMBREX_DEVICE void signal_add(Signal* signal, Signal value, std::uint32_t pe) {
    if (checked(signal, 1, pe)) transport_.signal(handle_, signal, value, SignalOperation::add, pe);
  }

  /// This PE's own.
  IMBREX_DEVICE Signal signal_fetch(const Signal* signal) const { return words::load_acquire(signal); }

  // --------------------------------------------------------------------------------------- waits and tests
  // For variables of this PE's own part of the heap, which others write.

  template <Integer T>
  IMBREX_DEVICE bool test(const T* variable, Compare compare, std::type_identity_t<T> value) {
    if (!checked(variable, 1, handle_.pe())) return false;
    transport_.progress(handle_);
    return holds(words::load_acquire(variable), compare, value);
  }

  /// Until the comparison holds.
  template <Integer T, ThreadGroup G = Thread>
  IMBREX_DEVICE bool wait_until(const T* variable, Compare compare, std::type_identity_t<T> value,
                                const G& group = {}) {
    bool failed = false;
    if (is_leader(group)) {
      T seen{};
      failed = !wait_and_see(variable, compare, value, seen);
    }
    return !any_of(group, failed);
  }

  /// A wait for a signal.
  template <ThreadGroup G = Thread>
  IMBREX_DEVICE bool signal_wait_until(const Signal* signal, Compare compare, Signal value, const G& group = {}) {
    return wait_until(signal, compare, value, group);
  }
  /// By one thread. `seen` gets what the signal was when the wait ended.
  IMBREX_DEVICE bool signal_wait_until(const Signal* signal, Compare compare, Signal value, Signal& seen) {
    return wait_and_see(signal, compare, value, seen);
  }

  /// Waits until the packet's signal compares as asked. `value` is the one that came with it.
  template <Scalar T>
  IMBREX_DEVICE bool wait_packet(const Packet<T>* packet, Compare compare, Signal signal, T& value) {
    words::Pair pair{};
    Signal seen = 0;
    const auto met = [&] {
      pair = words::load_pair(packet);
      return holds(seen = pair.second, compare, signal);
    };
    const bool well =
        checked(packet, 1, handle_.pe()) && wait(FaultKind::wait, handle_.pe(), &packet->signal, signal, seen, met);
    if (well) value = words::cast<T>(static_cast<words::BitsOf<T>>(pair.first));
    return well;
  }

  // Waits and tests of arrays of variables. `status`, where it is not null, leaves out those for which it is not 0.
  // `values`: each one's own.

  template <Integer T>
  IMBREX_DEVICE bool test_all(const T* variables, std::uint64_t count, const int* status, Compare compare,
                              std::type_identity_t<T> value) {
    return test_each(variables, count, status, compare, [&](std::uint64_t) { return value; });
  }
  template <Integer T>
  IMBREX_DEVICE bool test_all_vector(const T* variables, std::uint64_t count, const int* status, Compare compare,
                                     const T* values) {
    return test_each(variables, count, status, compare, [&](std::uint64_t i) { return values[i]; });
  }

  template <Integer T, ThreadGroup G = Thread>
  IMBREX_DEVICE bool wait_until_all(const T* variables, std::uint64_t count, const int* status, Compare compare,
                                    std::type_identity_t<T> value, const G& group = {}) {
    return wait_each(variables, count, status, compare, group, [&](std::uint64_t) { return value; });
  }
  template <Integer T, ThreadGroup G = Thread>
  IMBREX_DEVICE bool wait_until_all_vector(const T* variables, std::uint64_t count, const int* status, Compare compare,
                                           const T* values, const G& group = {}) {
    return wait_each(variables, count, status, compare, group, [&](std::uint64_t i) { return values[i]; });
  }

  /// The number of one that holds, or `none`.
  template <Integer T>
  IMBREX_DEVICE std::uint64_t test_any(const T* variables, std::uint64_t count, const int* status, Compare compare,
                                       std::type_identity_t<T> value) {
    return find(variables, count, status, compare, [&](std::uint64_t) { return value; });
  }
  template <Integer T>
  IMBREX_DEVICE std::uint64_t test_any_vector(const T* variables, std::uint64_t count, const int* status,
                                              Compare compare, const T* values) {
    return find(variables, count, status, compare, [&](std::uint64_t i) { return values[i]; });
  }

  /// Until one holds; its number is in `found`, `none` where all are left out.
  template <Integer T>
  IMBREX_DEVICE bool wait_until_any(const T* variables, std::uint64_t count, const int* status, Compare compare,
                                    std::type_identity_t<T> value, std::uint64_t& found) {
    return wait_any(variables, count, status, compare, found, [&](std::uint64_t) { return value; });
  }
  template <Integer T>
  IMBREX_DEVICE bool wait_until_any_vector(const T* variables, std::uint64_t count, const int* status, Compare compare,
                                           const T* values, std::uint64_t& found) {
    return wait_any(variables, count, status, compare, found, [&](std::uint64_t i) { return values[i]; });
  }

  /// How many hold; their numbers are in `indices`.
  template <Integer T>
  IMBREX_DEVICE std::uint64_t test_some(const T* variables, std::uint64_t count, std::uint64_t* indices,
                                        const int* status, Compare compare, std::type_identity_t<T> value) {
    return collect(variables, count, indices, status, compare, [&](std::uint64_t) { return value; });
  }
  template <Integer T>
  IMBREX_DEVICE std::uint64_t test_some_vector(const T* variables, std::uint64_t count, std::uint64_t* indices,
                                               const int* status, Compare compare, const T* values) {
    return collect(variables, count, indices, status, compare, [&](std::uint64_t i) { return values[i]; });
  }

  /// Until one or more hold; `found` is how many, 0 where all are left out.
  template <Integer T>
  IMBREX_DEVICE bool wait_until_some(const T* variables, std::uint64_t count, std::uint64_t* indices, const int* status,
                                     Compare compare, std::type_identity_t<T> value, std::uint64_t& found) {
    return wait_some(variables, count, indices, status, compare, found, [&](std::uint64_t) { return value; });
  }
  template <Integer T>
  IMBREX_DEVICE bool wait_until_some_vector(const T* variables, std::uint64_t count, std::uint64_t* indices,
                                            const int* status, Compare compare, const T* values, std::uint64_t& found) {
    return wait_some(variables, count, indices, status, compare, found, [&](std::uint64_t i) { return values[i]; });
  }

  // --------------------------------------------------------------------------------------- atomic operations
  // By one thread. They order nothing else.

  template <Atomic T>
  IMBREX_DEVICE T atomic_fetch(const T* address, std::uint32_t pe) {
    return g(address, pe);
  }
  template <Atomic T>
  IMBREX_DEVICE void atomic_set(T* address, std::type_identity_t<T> value, std::uint32_t pe) {
    change(address, pe, operations::Set<T>{value});
  }
  template <Atomic T>
  IMBREX_DEVICE T atomic_swap(T* address, std::type_identity_t<T> value, std::uint32_t pe) {
    return change(address, pe, operations::Swap<T>{value});
  }
  template <Integer T>
  IMBREX_DEVICE T atomic_compare_swap(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value,
                                      std::uint32_t pe) {
    return change(address, pe, operations::CompareSwap<T>{expected, value});
  }
  template <Atomic T>
  IMBREX_DEVICE T atomic_fetch_add(T* address, std::type_identity_t<T> value, std::uint32_t pe) {
    return change(address, pe, operations::FetchAdd<T>{value});
  }
  template <Atomic T>
  IMBREX_DEVICE void atomic_add(T* address, std::type_identity_t<T> value, std::uint32_t pe) {
    change(address, pe, operations::Add<T>{value});
  }
  template <Integer T>
  IMBREX_DEVICE T atomic_fetch_inc(T* address, std::uint32_t pe) {
    return atomic_fetch_add(address, T{1}, pe);
  }
  template <Integer T>
  IMBREX_DEVICE void atomic_inc(T* address, std::uint32_t pe) {
    atomic_add(address, T{1}, pe);
  }
  template <Integer T>
  IMBREX_DEVICE T atomic_fetch_and(T* address, std::type_identity_t<T> value, std::uint32_t pe) {
    return change(address, pe, operations::FetchAnd<T>{value});
  }
  template <Integer T>
  IMBREX_DEVICE T atomic_fetch_or(T* address, std::type_identity_t<T> value, std::uint32_t pe) {
    return change(address, pe, operations::FetchOr<T>{value});
  }
  template <Integer T>
  IMBREX_DEVICE T atomic_fetch_xor(T* address, std::type_identity_t<T> value, std::uint32_t pe) {
    return change(address, pe, operations::FetchXor<T>{value});
  }
  template <Integer T>
  IMBREX_DEVICE void atomic_and(T* address, std::type_identity_t<T> value, std::uint32_t pe) {
    atomic_fetch_and(address, value, pe);
  }
  template <Integer T>
  IMBREX_DEVICE void atomic_or(T* address, std::type_identity_t<T> value, std::uint32_t pe) {
    atomic_fetch_or(address, value, pe);
  }
  template <Integer T>
  IMBREX_DEVICE void atomic_xor(T* address, std::type_identity_t<T> value, std::uint32_t pe) {
    atomic_fetch_xor(address, value, pe);
  }

  // ---------------------------------------------------------------------------------------------- completion
  // They are about what this context issued, by threads of the group: other contexts go on.

  template <ThreadGroup G = Thread>
  IMBREX_DEVICE void fence(const G& group = {}) {
    pe_fence(all_pes, group);
  }
  template <ThreadGroup G = Thread>
  IMBREX_DEVICE void pe_fence(std::uint32_t pe, const G& group = {}) {
    group.sync();
    if (is_leader(group)) transport_.fence(handle_, pe);
    group.sync();
  }
  template <ThreadGroup G = Thread>
  IMBREX_DEVICE void quiet(const G& group = {}) {
    pe_quiet(all_pes, group);
  }
  template <ThreadGroup G = Thread>
  IMBREX_DEVICE void pe_quiet(std::uint32_t pe, const G& group = {}) {
    group.sync();
    if (is_leader(group)) transport_.quiet(handle_, pe);
    group.sync();
  }

  /// For calls of several waits, as collectives are: a bounded wait of the calling thread. `met` leaves in `seen` what
  /// it saw. `cadence`: threads by the ten thousand ask the host seldom, or their loads over the bus take longer than
  /// what they wait for.
  template <device::Cadence cadence = device::Cadence{}, Integer T, typename Met>
  IMBREX_DEVICE bool wait(FaultKind kind, std::uint32_t place, const T* variable, T expected, T& seen, Met&& met) {
    return device::wait_until<device::without_epoch(cadence)>(
        handle_.group,
        [&] {
          transport_.progress(handle_);
          return met();
        },
        [&](device::Fault& fault) {
          describe(fault, kind, block_index(), place, offset_of(variable), static_cast<std::uint64_t>(expected),
                   static_cast<std::uint64_t>(seen));
        });
  }

 private:
  IMBREX_DEVICE std::uint64_t offset_of(const void* address) const {
    return reinterpret_cast<std::uint64_t>(address) - reinterpret_cast<std::uint64_t>(handle_.own);
  }

  template <Integer T>
  IMBREX_DEVICE bool wait_and_see(const T* variable, Compare compare, T value, T& seen) {
    return checked(variable, 1, handle_.pe()) && wait(FaultKind::wait, handle_.pe(), variable, value, seen, [&] {
             return holds(seen = words::load_acquire(variable), compare, value);
           });
  }

  /// Whether the transport reaches the PE; and in builds with IMBREX_SHMEM_CHECK whether the PE is one and the
  /// elements, if there are any, lie in the heap. Else the fault ends all waits of all PEs, and the call does nothing.
  template <typename T>
  IMBREX_DEVICE bool checked([[maybe_unused]] const T* first, [[maybe_unused]] std::uint64_t count,
                             [[maybe_unused]] std::uint32_t pe) const {
    if (!expect_reached<Transport>(handle_, first, pe)) return false;
#if defined(IMBREX_SHMEM_CHECK)
    const std::uint64_t offset = offset_of(first);
    const bool known = pe < handle_.pes();
    if (known && (count == 0 || (offset <= handle_.bytes && count <= (handle_.bytes - offset) / sizeof(T))))
      return true;
    give_up(handle_, [&](device::Fault& fault) {
      if (known)
        describe(fault, FaultKind::address, block_index(), pe, offset,
                 count < none / sizeof(T) ? count * sizeof(T) : none, 0);
      else
        describe(fault, FaultKind::pe, block_index(), pe, offset, handle_.pes(), pe);
    });
    return false;
#else
    return true;
#endif
  }

  IMBREX_DEVICE void fence_and_signal(Signal* signal, Signal value, SignalOperation operation, std::uint32_t pe) {
    const bool aborted = device::load_relaxed(&handle_.group.own->abort) != 0;  // comes beside the fence
    transport_.fence(handle_, pe);
    if (!aborted && checked(signal, 1, pe)) transport_.signal(handle_, signal, value, operation, pe);
  }

  template <Atomic T, typename Operation>
  IMBREX_DEVICE T change(T* address, std::uint32_t pe, const Operation& operation) {
    return checked(address, 1, pe) ? transport_.atomic(handle_, address, pe, operation) : T{};
  }

  template <Integer T, typename Value>
  IMBREX_DEVICE bool test_each(const T* variables, std::uint64_t count, const int* status, Compare compare,
                               Value&& value) {
    for (std::uint64_t i = 0; i < count; ++i)
      if (!is_left_out(status, i) && !test(variables + i, compare, value(i))) return false;
    return true;
  }

  template <Integer T, typename Value, ThreadGroup G>
  IMBREX_DEVICE bool wait_each(const T* variables, std::uint64_t count, const int* status, Compare compare,
                               const G& group, Value&& value) {
    bool well = true;
    for (std::uint64_t i = group.thread_rank(); well && i < count; i += group.size())
      if (!is_left_out(status, i)) well = wait_until(variables + i, compare, value(i));
    return !any_of(group, !well);
  }

  template <Integer T, typename Value>
  IMBREX_DEVICE std::uint64_t find(const T* variables, std::uint64_t count, const int* status, Compare compare,
                                   Value&& value) {
    for (std::uint64_t i = 0; i < count; ++i)
      if (!is_left_out(status, i) && test(variables + i, compare, value(i))) return i;
    return none;
  }

  template <Integer T, typename Value>
  IMBREX_DEVICE std::uint64_t collect(const T* variables, std::uint64_t count, std::uint64_t* indices,
                                      const int* status, Compare compare, Value&& value) {
    std::uint64_t found = 0;
    for (std::uint64_t i = 0; i < count; ++i)
      if (!is_left_out(status, i) && test(variables + i, compare, value(i))) indices[found++] = i;
    return found;
  }

  template <Integer T, typename Value>
  IMBREX_DEVICE bool wait_any(const T* variables, std::uint64_t count, const int* status, Compare compare,
                              std::uint64_t& found, Value&& value) {
    found = none;
    const std::uint64_t first = first_of(status, count);
    if (first == count) return true;
    T seen{};
    return wait(FaultKind::wait, handle_.pe(), variables + first, value(first), seen, [&] {
      seen = words::load(variables + first);
      return (found = find(variables, count, status, compare, value)) != none;
    });
  }

  template <Integer T, typename Value>
  IMBREX_DEVICE bool wait_some(const T* variables, std::uint64_t count, std::uint64_t* indices, const int* status,
                               Compare compare, std::uint64_t& found, Value&& value) {
    found = 0;
    const std::uint64_t first = first_of(status, count);
    if (first == count) return true;
    T seen{};
    return wait(FaultKind::wait, handle_.pe(), variables + first, value(first), seen, [&] {
      seen = words::load(variables + first);
      return (found = collect(variables, count, indices, status, compare, value)) != 0;
    });
  }

  const Handle& handle_;
  [[no_unique_address]] Transport transport_;
  bool open_;
};

}  // namespace imbrex::shmem
