// The transport by rings: a kernel's put is one store of 16 bytes to a ring of its context, in memory of the host; a
// thread of the host moves the bytes, to any PE that its wire reaches. docs/dev/shmem-ring.md explains.
//
// All goes through the ring, in its order: the host's thread keeps it to each PE, also for atomic operations, signals
// and single elements. So nothing waits between data and its signal, and a fence costs nothing, or a slot where the
// wire keeps no order. Atomic operations are the host thread's, and atomic to each other.
//
// Flow. `posted` counts slots that threads took; the host tells how many it has read, and how many are complete. A
// thread looks over the bus only where the ring was full when it last looked, and where it waits for completion. Every
// wait is bounded by the world's limit.
//
// What lies outside of the heap (a thread's own variables) the host does not reach: single elements of up to 8 bytes
// travel in the descriptor, more by a piece of the heap that the context keeps, piece by piece, and such calls wait.
#pragma once

#include "imbrex/device/shmem/handle.hpp"
#include "imbrex/device/shmem/kernel.hpp"
#include "imbrex/device/shmem/load_store.hpp"
#include "imbrex/device/shmem/operations.hpp"
#include "imbrex/device/shmem/ring/descriptor.hpp"
#include "imbrex/device/shmem/turns.hpp"

namespace imbrex::shmem::ring {

/// By the host's thread, in memory of the host: slots of a ring, counted over all laps.
struct alignas(64) Progress {
  std::uint64_t word;  ///< low half: read, so they may be written again; high half: and all that they asked for is done
};
IMBREX_DEVICE std::uint64_t progress_word(std::uint32_t taken, std::uint32_t complete) {
  return taken | static_cast<std::uint64_t>(complete) << 32;
}

/// A context, in the heap. What is constant was written by the host.
struct alignas(64) Shared {
  words::Pair* ring;
  const Progress* progress;
  std::byte* stage;  ///< in the heap: `stage_bytes` of the endpoint
  std::uint32_t log_slots;
  std::uint32_t posted;    ///< slots that threads took
  std::uint32_t room;      ///< slots that may be taken, by what was last seen
  std::uint32_t complete;  ///< slots that are complete, by what was last seen
  std::uint32_t lock;      ///< of the thread that has the stage
  std::uint32_t looking;   ///< of the thread that looks over the bus
};
static_assert(sizeof(Shared) == 64);

/// What Handle::transport points to, in the heap.
struct Endpoint {
  Shared* contexts;
  std::uint32_t count;        ///< of contexts
  std::uint32_t stage_bytes;  ///< 64 or more
  std::uint32_t ordered;      ///< the wire keeps order: fences need no slot
  std::uint64_t near;         ///< bit r: PE r's memory is mapped (mixed.hpp)
};

/// Who posts to a context.
enum class Sharing {
  threads,  ///< any threads: they take slots by an atomic addition
  one       ///< one and the same thread of a kernel, which counts by itself; the first of its groups
};

template <Sharing sharing = Sharing::threads>
class Transport {
 public:
  static constexpr bool orders_signals = true;

  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  /// What this thread posted is complete.
  IMBREX_DEVICE ~Transport() {
    if (used_ == nullptr) return;
    if constexpr (sharing == Sharing::one) shared_->posted = posted_, shared_->room = room_;
    complete(*used_, posted_);
  }

  IMBREX_DEVICE bool open(const Handle& handle, std::uint32_t number) {
    const auto* endpoint = static_cast<const Endpoint*>(handle.transport);
    if (endpoint == nullptr || number >= endpoint->count || number >= handle.contexts) return false;
    shared_ = endpoint->contexts + number;
    stage_bytes_ = endpoint->stage_bytes;
    ordered_ = endpoint->ordered != 0;
    ring_ = shared_->ring;
    log_slots_ = shared_->log_slots;
    if constexpr (sharing == Sharing::one) posted_ = shared_->posted, room_ = shared_->room;
    return true;
  }

  /// Loads and stores reach this PE's own part only.
  template <typename T>
  IMBREX_DEVICE T* pointer(const Handle& handle, T* address, std::uint32_t pe) const {
    return pe == handle.pe() ? address : nullptr;
  }

  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void put(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                         const G& group) {
    by_one(group, [&] {
      if (count == 1)
        put_element(handle, to, *from, pe);
      else
        write(handle, to, from, count * sizeof(T), pe, true);
    });
  }
  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void put_nbi(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                             const G& group) {
    by_one(group, [&] { write(handle, to, from, count * sizeof(T), pe, false); });
  }

  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void get(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                         const G& group) {
    by_one(group, [&] { read(handle, to, from, count * sizeof(T), pe, true); });
  }
  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void get_nbi(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                             const G& group) {
    by_one(group, [&] { read(handle, to, from, count * sizeof(T), pe, false); });
  }

  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void put_signal(const Handle& handle, T* to, const T* from, std::uint64_t count, Signal* signal,
                                Signal value, SignalOperation operation, std::uint32_t pe, const G& group) {
    by_one(group, [&] {
      if (write_and_signal(handle, to, from, count * sizeof(T), signal, value, operation, pe)) wait_for_own(handle);
    });
  }
  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void put_signal_nbi(const Handle& handle, T* to, const T* from, std::uint64_t count, Signal* signal,
                                    Signal value, SignalOperation operation, std::uint32_t pe, const G& group) {
    by_one(group, [&] { write_and_signal(handle, to, from, count * sizeof(T), signal, value, operation, pe); });
  }

  template <Scalar T>
  IMBREX_DEVICE void put_one(const Handle& handle, T* to, T value, std::uint32_t pe) {
    put_element(handle, to, value, pe);
  }

  template <Scalar T>
  IMBREX_DEVICE T get_one(const Handle& handle, const T* from, std::uint32_t pe) {
    T value{};
    in_turn(handle, [&] {
      if (read_piece(handle, offset(handle, from), sizeof(T), pe))
        value = words::load(reinterpret_cast<const T*>(shared_->stage));
    });
    return value;
  }

  template <Atomic T, typename Operation>
  IMBREX_DEVICE T atomic(const Handle& handle, T* address, std::uint32_t pe, const Operation& operation) {
    constexpr AtomicCode code = code_of<T, Operation>();
    constexpr std::uint32_t number = number_of_atomic(code, word_code<T>());
    const words::Pair slot =
        operand_slot(number, pe, offset(handle, address), words::cast<words::BitsOf<T>>(operation.value));
    if constexpr (code == AtomicCode::set || code == AtomicCode::add) {
      post(handle, slot);
      return T{};
    } else {
      T before{};
      in_turn(handle, [&] {
        bool well;
        if constexpr (code == AtomicCode::compare_swap)
          well = post(handle, slot, extension_slot(words::cast<words::BitsOf<T>>(operation.expected)));
        else
          well = post(handle, slot);
        if (well && wait_for_own(handle)) before = words::load(reinterpret_cast<const T*>(shared_->stage));
      });
      return before;
    }
  }

  /// The signal is never seen before the value: one is stored after the other.
  IMBREX_DEVICE void put_pair(const Handle& handle, void* to, words::Pair pair, std::uint32_t pe) {
    post(handle, operand_slot(number_of<Standard::put_pair>(), pe, offset(handle, to), pair.first),
         extension_slot(pair.second));
  }

  IMBREX_DEVICE void signal(const Handle& handle, Signal* to, Signal value, SignalOperation operation,
                            std::uint32_t pe) {
    const std::uint32_t number =
        operation == SignalOperation::set ? number_of_word<Signal>() : number_of_atomic(AtomicCode::add, WordCode::u64);
    post(handle, operand_slot(number, pe, offset(handle, to), value));
  }

  /// A put that the host's Rings::add registered, and its signal, of this value: one slot. By one thread, after a
  /// barrier with those that wrote the data, which stays until a quiet.
  IMBREX_DEVICE void put_registered(const Handle& handle, std::uint32_t number, Signal value, std::uint32_t pe) {
    fence_for_host();
    post(handle, operand_slot(number, pe, 0, value));
  }

  /// What is posted afterwards takes effect after what was posted before, and peers that it tells of this PE's own
  /// stores get them.
  IMBREX_DEVICE void fence(const Handle& handle, std::uint32_t pe) {
    fence_for_host();
    if (ordered_) return;
    const bool one = pe < handle.pes();
    post(handle,
         operand_slot(one ? number_of<Standard::fence>() : number_of<Standard::fence_all>(), one ? pe : 0, 0, 0));
  }

  /// All of the context's is complete, to whichever PE.
  IMBREX_DEVICE void quiet(const Handle& handle, std::uint32_t) {
    fence_for_host();
    complete(handle, sharing == Sharing::one ? posted_ : words::load(&shared_->posted));
  }

  /// The host's thread goes on by itself, and ends all waits where something fails.
  IMBREX_DEVICE void progress(const Handle&) {}

 private:
  IMBREX_DEVICE static std::uint64_t offset(const Handle& handle, const void* address) {
    return reinterpret_cast<std::uint64_t>(address) - reinterpret_cast<std::uint64_t>(handle.group.own);
  }
  IMBREX_DEVICE static bool in_heap(const Handle& handle, const void* address) {
    return offset(handle, address) < offset(handle, handle.own) + handle.bytes;
  }

  template <Atomic T, typename Operation>
  IMBREX_DEVICE static constexpr AtomicCode code_of() {
    if constexpr (std::is_same_v<Operation, operations::Set<T>>) return AtomicCode::set;
    if constexpr (std::is_same_v<Operation, operations::Swap<T>>) return AtomicCode::swap;
    if constexpr (std::is_same_v<Operation, operations::Add<T>>) return AtomicCode::add;
    if constexpr (std::is_same_v<Operation, operations::FetchAdd<T>>) return AtomicCode::fetch_add;
    if constexpr (Integer<T>) {
      if constexpr (std::is_same_v<Operation, operations::FetchAnd<T>>) return AtomicCode::fetch_and;
      if constexpr (std::is_same_v<Operation, operations::FetchOr<T>>) return AtomicCode::fetch_or;
      if constexpr (std::is_same_v<Operation, operations::FetchXor<T>>) return AtomicCode::fetch_xor;
      if constexpr (std::is_same_v<Operation, operations::CompareSwap<T>>) return AtomicCode::compare_swap;
    }
  }

  // -------------------------------------------------------------------------------------------------- slots

  /// What this thread wrote, and others that it met at a barrier, is there for the host's copies before what it posts.
  // NOTE: copies read the GPU's memory where the GPU's own fences put it; only what the host itself reads would have to
  // cross the bus.
  IMBREX_DEVICE static void fence_for_host() {
#if defined(__CUDA_ARCH__)
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
  }

  /// One slot, and its extensions. False where there was no room in time.
  template <typename... Extensions>
  IMBREX_DEVICE bool post(const Handle& handle, words::Pair slot, Extensions... extension) {
    constexpr std::uint32_t slots = 1 + sizeof...(extension);
    static_assert(slots <= 2);
    std::uint32_t index, room;
    if constexpr (sharing == Sharing::one) {
      index = posted_, room = room_;
    } else {
      room = words::load(&shared_->room);
      index = words::fetch_add(&shared_->posted, slots);
    }
    if (!device::reached(room, index + slots) && !wait_for_room(handle, index + slots)) return false;
    posted_ = index + slots;
    used_ = &handle;
    const std::uint32_t mask = (1u << log_slots_) - 1;
    store_slot(ring_ + (index & mask), slot, parity_of(index, log_slots_));
    (store_slot(ring_ + ((index + 1) & mask), extension, parity_of(index + 1, log_slots_)), ...);
    return true;
  }

  /// Thousands of threads may wait here: one of a context looks over the bus, now and then, the others at what it saw.
  static constexpr device::Cadence waiting{.ask = 1u << 14};

  /// Until met(slots read, slots complete).
  template <typename Met, typename Where>
  IMBREX_DEVICE bool wait_for_host(const Handle& handle, Met&& met, Where&& where) {
    return device::wait_until<device::without_epoch(waiting)>(
        handle.group,
        [&] {
          if constexpr (sharing == Sharing::one) {
            const std::uint64_t word = words::load_acquire(&shared_->progress->word);
            room_ = static_cast<std::uint32_t>(word) + (1u << log_slots_);
            return met(static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32));
          } else {
            const std::uint32_t slots = 1u << log_slots_;
            if (met(words::load(&shared_->room) - slots, words::load_acquire(&shared_->complete))) return true;
            if (!take_turn(&shared_->looking)) return false;
            const std::uint64_t word = words::load_acquire(&shared_->progress->word);
            const auto taken = static_cast<std::uint32_t>(word), complete = static_cast<std::uint32_t>(word >> 32);
            fence_for_host();  // what is complete is there for those that see it by this
            words::store(&shared_->room, taken + slots);
            words::store(&shared_->complete, complete);
            const bool well = met(taken, complete);
            if (!well) device::pause_ns(1000);
            end_turn(&shared_->looking);
            return well;
          }
        },
        where);
  }

  IMBREX_DEVICE bool wait_for_room(const Handle& handle, std::uint32_t wanted) {
    const std::uint32_t slots = 1u << log_slots_;
    std::uint32_t taken = 0;
    return wait_for_host(
        handle, [&](std::uint32_t seen, std::uint32_t) { return device::reached(taken = seen, wanted - slots); },
        [&](device::Fault& fault) {
          describe(fault, FaultKind::ring_full, block_index(), handle.pe(), slots, wanted, taken);
        });
  }

  IMBREX_DEVICE bool complete(const Handle& handle, std::uint32_t wanted) {
    std::uint32_t complete = 0;
    return wait_for_host(
        handle, [&](std::uint32_t, std::uint32_t seen) { return device::reached(complete = seen, wanted); },
        [&](device::Fault& fault) {
          describe(fault, FaultKind::ring_completion, block_index(), handle.pe(), 0, wanted, complete);
        });
  }
  /// What this thread posted.
  IMBREX_DEVICE bool wait_for_own(const Handle& handle) { return complete(handle, posted_); }

  // -------------------------------------------------------------------------------------------------- turns

  /// When all of the group are there, by its first thread.
  template <ThreadGroup G, typename Work>
  IMBREX_DEVICE static void by_one(const G& group, Work&& work) {
    group.sync();
    if (is_leader(group)) work();
  }

  /// Alone at the context's stage.
  template <typename Work>
  IMBREX_DEVICE void in_turn(const Handle& handle, Work&& work) {
    if constexpr (sharing == Sharing::one) {
      work();
    } else {
      const bool well = device::wait_until<device::without_epoch()>(
          handle.group, [&] { return take_turn(&shared_->lock); },
          [&](device::Fault& fault) { describe(fault, FaultKind::turn, block_index(), handle.pe(), 0, 0, 0); });
      if (!well) return;
      work();
      end_turn(&shared_->lock);
    }
  }

  // ------------------------------------------------------------------------------------------- puts and gets

  /// Calls `piece(bytes before it, its bytes)` until it says no; false then.
  template <typename Piece>
  IMBREX_DEVICE static bool pieces(std::uint64_t bytes, std::uint32_t most, Piece&& piece) {
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (std::uint64_t done = 0; done < bytes; done += most) {
      const std::uint64_t left = bytes - done;
      if (!piece(done, static_cast<std::uint32_t>(left < most ? left : most))) return false;
    }
    return true;
  }

  template <Scalar T>
  IMBREX_DEVICE void put_element(const Handle& handle, T* to, T value, std::uint32_t pe) {
    post(handle, operand_slot(number_of_word<T>(), pe, offset(handle, to), words::cast<words::BitsOf<T>>(value)));
  }

  IMBREX_DEVICE bool write(const Handle& handle, void* to, const void* from, std::uint64_t bytes, std::uint32_t pe,
                           bool wait) {
    const std::uint64_t there = offset(handle, to), here = offset(handle, from);
    if (in_heap(handle, from)) {
      fence_for_host();
      return pieces(bytes, largest_move,
                    [&](std::uint64_t done, std::uint32_t piece) {
                      return post(handle, move_slot(number_of<Standard::put>(), pe, there + done, here + done, piece));
                    }) &&
             (!wait || bytes == 0 || wait_for_own(handle));
    }
    bool well = false;
    in_turn(handle, [&] {
      well = pieces(bytes, stage_bytes_, [&](std::uint64_t done, std::uint32_t piece) {
        copies::copy<false>(shared_->stage, static_cast<const std::byte*>(from) + done, piece, Thread{});
        fence_for_host();
        return post(handle,
                    move_slot(number_of<Standard::put>(), pe, there + done, offset(handle, shared_->stage), piece)) &&
               wait_for_own(handle);
      });
    });
    return well;
  }

  /// Into the context's piece of the heap, in turn.
  IMBREX_DEVICE bool read_piece(const Handle& handle, std::uint64_t there, std::uint32_t bytes, std::uint32_t pe) {
    return post(handle, move_slot(number_of<Standard::get>(), pe, there, offset(handle, shared_->stage), bytes)) &&
           wait_for_own(handle);
  }

  IMBREX_DEVICE void read(const Handle& handle, void* to, const void* from, std::uint64_t bytes, std::uint32_t pe,
                          bool wait) {
    const std::uint64_t there = offset(handle, from), here = offset(handle, to);
    if (in_heap(handle, to)) {
      fence_for_host();  // what this thread wrote there before does not come over it
      const bool well = pieces(bytes, largest_move, [&](std::uint64_t done, std::uint32_t piece) {
        return post(handle, move_slot(number_of<Standard::get>(), pe, there + done, here + done, piece));
      });
      if (well && wait && bytes != 0) wait_for_own(handle);
      return;
    }
    in_turn(handle, [&] {
      pieces(bytes, stage_bytes_, [&](std::uint64_t done, std::uint32_t piece) {
        if (!read_piece(handle, there + done, piece, pe)) return false;
        copies::copy<true>(static_cast<std::byte*>(to) + done, shared_->stage, piece, Thread{});
        return true;
      });
    });
  }

  /// One descriptor where the data lies in the heap, and is no more than one moves.
  IMBREX_DEVICE bool write_and_signal(const Handle& handle, void* to, const void* from, std::uint64_t bytes,
                                      Signal* signal, Signal value, SignalOperation operation, std::uint32_t pe) {
    const bool add = operation == SignalOperation::add;
    if (bytes == 0 || !in_heap(handle, from) || bytes > largest_move) {
      if (!write(handle, to, from, bytes, pe, false)) return false;
      fence(handle, pe);
      const std::uint32_t number = add ? number_of_atomic(AtomicCode::add, WordCode::u64) : number_of_word<Signal>();
      return post(handle, operand_slot(number, pe, offset(handle, signal), value));
    }
    fence_for_host();
    return post(handle,
                move_slot(number_of<Standard::put_signal>(), pe, offset(handle, to), offset(handle, from),
                          static_cast<std::uint32_t>(bytes)),
                extension_slot(value, offset(handle, signal), add));
  }

  Shared* shared_ = nullptr;
  words::Pair* ring_ = nullptr;
  const Handle* used_ = nullptr;  // where this thread posted something
  std::uint32_t posted_ = 0;      // one: slots of the context; threads: up to this thread's last
  std::uint32_t room_ = 0;
  std::uint32_t log_slots_ = 0, stage_bytes_ = 0;
  bool ordered_ = false;
};

}  // namespace imbrex::shmem::ring

namespace imbrex::shmem {

/// For `Context<Ring>`: everything goes through the ring.
using Ring = ring::Transport<>;
/// The ring of contexts that one thread of a kernel posts to.
using OwnRing = ring::Transport<ring::Sharing::one>;

}  // namespace imbrex::shmem
