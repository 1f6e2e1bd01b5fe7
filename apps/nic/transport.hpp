// The transport to PEs on other hosts by an mlx5 NIC: kernels fill work requests that the CPU prepared, ring the
// doorbell and poll completions. No CPU waits in between. docs/dev/shmem-nic.md explains.
//
// A context has a queue to each PE for each kind of request, so that slots stay as they were prepared. A put and its
// signal go by one queue, whose slots are for one and for the other in turn: the NIC keeps their order, and no thread
// waits. Between queues nothing is ordered, so fence waits for completions, as quiet does. All memory is named by its
// offset in what is registered, behind the endpoint's base: a PE's heap and, before it, what its teams need. What a
// thread posted is complete when its context ends.
//
// What lies outside of the heap (a thread's own variables) the NIC does not reach: up to 8 bytes travel in the request,
// more by a piece of the heap that the context keeps, piece by piece, and such calls wait.
//
// Threads of a block take turns: one at a time works on its context's queues. Atomic operations are the NIC's, and
// atomic to each other; a PE that changes its own words takes the NIC, too. It adds and compares 64 bits; all else is
// done by comparing, again and again, the 8 bytes that the word lies in.
#pragma once

#include "apps/nic/queue.hpp"
#include "imbrex/device/shmem/handle.hpp"
#include "imbrex/device/shmem/kernel.hpp"
#include "imbrex/device/shmem/load_store.hpp"
#include "imbrex/device/shmem/operations.hpp"
#include "imbrex/device/shmem/turns.hpp"

namespace imbrex::shmem::mlx5 {

/// What a queue's slots are for.
enum class Kind : std::uint32_t {
  write,
  write_and_set,  ///< slots in turn: a write; an inline write of a signal
  write_and_add,  ///< slots in turn: a write; a fetch_add of a signal
  write_inline,
  read,
  fetch_add,
  compare_swap
};
inline constexpr std::uint32_t kinds = 7;

/// The verb of a slot.
IMBREX_DEVICE constexpr Verb verb_of(Kind kind, std::uint32_t slot) {
  switch (kind) {
    case Kind::write: return Verb::write;
    case Kind::write_and_set: return slot % 2 == 0 ? Verb::write : Verb::write_inline;
    case Kind::write_and_add: return slot % 2 == 0 ? Verb::write : Verb::fetch_add;
    case Kind::write_inline: return Verb::write_inline;
    case Kind::read: return Verb::read;
    case Kind::fetch_add: return Verb::fetch_add;
    case Kind::compare_swap: return Verb::compare_swap;
  }
  return Verb::write;
}

/// What a context's threads share.
struct alignas(64) Shared {
  std::uint32_t lock;    ///< of the thread that has its turn
  std::uint32_t failed;  ///< a request or a wait did: nothing is posted any more
  Queue* queues;         ///< [PE][kind]
  std::byte* stage;      ///< in the heap: `stage_bytes` of the endpoint
};

/// What Handle::transport points to.
struct Endpoint {
  Shared* contexts;
  std::uint32_t count;        ///< of contexts
  std::uint32_t largest;      ///< bytes that one request moves
  std::uint32_t stage_bytes;  ///< 64 or more
  std::uint64_t base;         ///< address by which requests call the first byte of what is registered, a multiple of 8
};

/// `reach` says where rings, heap and doorbell records lie.
template <Reach reach = Reach::gpu>
class Transport {
 public:
  static constexpr bool orders_signals = true;

  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  IMBREX_DEVICE ~Transport() {
    if (used_ != nullptr) quiet(*used_, ~0u);
  }

  IMBREX_DEVICE bool open(const Handle& handle, std::uint32_t number) {
    const auto* endpoint = static_cast<const Endpoint*>(handle.transport);
    if (endpoint == nullptr || number >= endpoint->count || number >= handle.contexts) return false;
    shared_ = endpoint->contexts + number;
    largest_ = endpoint->largest;
    stage_bytes_ = endpoint->stage_bytes;
    base_ = endpoint->base;
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
    by_one(handle, group, [&] { write(handle, to, from, count * sizeof(T), pe, true); });
  }
  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void put_nbi(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                             const G& group) {
    by_one(handle, group, [&] { write(handle, to, from, count * sizeof(T), pe, false); });
  }

  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void get(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                         const G& group) {
    by_one(handle, group, [&] { read(handle, to, from, count * sizeof(T), pe, true); });
  }
  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void get_nbi(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                             const G& group) {
    by_one(handle, group, [&] { read(handle, to, from, count * sizeof(T), pe, false); });
  }

  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void put_signal(const Handle& handle, T* to, const T* from, std::uint64_t count, Signal* signal,
                                Signal value, SignalOperation operation, std::uint32_t pe, const G& group) {
    by_one(handle, group,
           [&] { write_and_signal(handle, to, from, count * sizeof(T), signal, value, operation, pe, true); });
  }
  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void put_signal_nbi(const Handle& handle, T* to, const T* from, std::uint64_t count, Signal* signal,
                                    Signal value, SignalOperation operation, std::uint32_t pe, const G& group) {
    by_one(handle, group,
           [&] { write_and_signal(handle, to, from, count * sizeof(T), signal, value, operation, pe, false); });
  }

  template <Scalar T>
  IMBREX_DEVICE void put_one(const Handle& handle, T* to, T value, std::uint32_t pe) {
    by_one(handle, Thread{}, [&] {
      post<Kind::write_inline, Verb::write_inline>(
          handle, pe,
          {.remote = place(handle, to), .bytes = sizeof(T), .operand = words::cast<words::BitsOf<T>>(value)});
    });
  }

  template <Scalar T>
  IMBREX_DEVICE T get_one(const Handle& handle, const T* from, std::uint32_t pe) {
    T value{};
    by_one(handle, Thread{}, [&] {
      if (read_piece(handle, place(handle, from), sizeof(T), pe))
        value = words::load(reinterpret_cast<const T*>(shared_->stage));
    });
    return value;
  }

  template <Atomic T, typename Operation>
  IMBREX_DEVICE T atomic(const Handle& handle, T* address, std::uint32_t pe, const Operation& operation) {
    T before{};
    by_one(handle, Thread{}, [&] { before = change(handle, address, pe, operation); });
    return before;
  }

  /// The signal is never seen before the value: the NIC keeps the order of the two requests.
  IMBREX_DEVICE void put_pair(const Handle& handle, void* to, words::Pair pair, std::uint32_t pe) {
    by_one(handle, Thread{}, [&] {
      Queue& queue = queue_of(pe, Kind::write_inline);
      if (!reserve(handle, queue, pe, Kind::write_inline, 2)) return;
      const std::uint64_t there = place(handle, to);
      append<Verb::write_inline>(queue, {.remote = there, .bytes = 8, .operand = pair.first});
      const auto first = append<Verb::write_inline>(queue, {.remote = there + 8, .bytes = 8, .operand = pair.second});
      ring_doorbell<Verb::write_inline, reach>(queue, first);
    });
  }

  IMBREX_DEVICE void signal(const Handle& handle, Signal* to, Signal value, SignalOperation operation,
                            std::uint32_t pe) {
    by_one(handle, Thread{}, [&] { signal_alone(handle, to, value, operation, pe); });
  }

  IMBREX_DEVICE void fence(const Handle& handle, std::uint32_t pe) { quiet(handle, pe); }

  /// `pe`: or all, where it is no PE's number.
  IMBREX_DEVICE void quiet(const Handle& handle, std::uint32_t pe) {
    by_one(handle, Thread{}, [&] {
      const bool one = pe < handle.pes();
      for (std::uint32_t p = one ? pe : 0; p < (one ? pe + 1 : handle.pes()); ++p)
        for (std::uint32_t kind = 0; kind < kinds; ++kind) {
          Queue& queue = queue_of(p, static_cast<Kind>(kind));
          if (!complete(handle, queue, p, static_cast<Kind>(kind), queue.posted)) return;
        }
    });
  }

  /// The NIC goes on by itself. Looks at one queue after another for a request that failed, which threads that wait for
  /// something else would not find otherwise.
  IMBREX_DEVICE void progress(const Handle& handle) {
    if (++next_ >= handle.pes() * kinds) next_ = 0;
    const Queue& queue = shared_->queues[next_];
    const std::uint32_t opcode = words::load(&queue.completion->word[15]) >> 28;
    if (opcode != sent_well && opcode != never_written)
      fail(handle, queue, next_ / kinds, static_cast<Kind>(next_ % kinds));
  }

 private:
  IMBREX_DEVICE static std::uint64_t offset(const Handle& handle, const void* address) {
    return reinterpret_cast<std::uint64_t>(address) - reinterpret_cast<std::uint64_t>(handle.group.own);
  }
  /// As requests call it.
  IMBREX_DEVICE std::uint64_t place(const Handle& handle, const void* address) const {
    return base_ + offset(handle, address);
  }
  IMBREX_DEVICE static bool in_heap(const Handle& handle, const void* address) {
    return offset(handle, address) < offset(handle, handle.own) + handle.bytes;
  }
  IMBREX_DEVICE Queue& queue_of(std::uint32_t pe, Kind kind) const {
    return shared_->queues[pe * kinds + static_cast<std::uint32_t>(kind)];
  }

  // -------------------------------------------------------------------------------------------------- turns

  /// When all of the group are there, by its first thread, alone in the context. Not once anything failed.
  template <ThreadGroup G, typename Work>
  IMBREX_DEVICE void by_one(const Handle& handle, const G& group, Work&& work) {
    group.sync();
    if (!is_leader(group)) return;
    const bool well = device::wait_until<device::without_epoch()>(
        handle.group, [&] { return take_turn(&shared_->lock); },
        [&](device::Fault& fault) { describe(fault, FaultKind::turn, block_index(), handle.pe(), 0, 0, 0); });
    if (!well) return;
    if (words::load(&shared_->failed) == 0) work();
    used_ = &handle;
    end_turn(&shared_->lock);
  }

  // ----------------------------------------------------------------------------------------------- requests

  /// Ends all waits of all PEs.
  IMBREX_DEVICE void fail(const Handle& handle, const Queue& queue, std::uint32_t pe, Kind kind) {
    words::store(&shared_->failed, 1u);
    const std::uint32_t last = words::load_acquire(&queue.completion->word[15]);
    const std::uint32_t why = be32(words::load(&queue.completion->word[13])) & 0xffffu;
    give_up(handle, [&](device::Fault& fault) {
      describe(fault, FaultKind::request, block_index(), pe, static_cast<std::uint32_t>(kind),
               std::uint64_t{why & 0xffu} | std::uint64_t{why >> 8} << 32, be32(last) >> 16);
    });
  }

  /// Until so many of the queue's requests are complete. Without success nothing is posted any more.
  IMBREX_DEVICE bool complete(const Handle& handle, Queue& queue, std::uint32_t pe, Kind kind, std::uint32_t wanted) {
    if (device::reached(queue.completed, wanted)) return true;
    Progress progress{};
    const bool well = device::wait_until<device::without_epoch()>(
        handle.group,
        [&] {
          progress = look(queue);
          return progress.failed || device::reached(progress.completed, wanted);
        },
        [&](device::Fault& fault) {
          describe(fault, FaultKind::completion, block_index(), pe, static_cast<std::uint32_t>(kind), wanted,
                   progress.completed);
        });
    queue.completed = progress.completed;
    if (well && !progress.failed) return true;
    if (well) fail(handle, queue, pe, kind);
    words::store(&shared_->failed, 1u);
    return false;
  }

  /// Until the ring has so many free slots.
  IMBREX_DEVICE bool reserve(const Handle& handle, Queue& queue, std::uint32_t pe, Kind kind, std::uint32_t slots) {
    return complete(handle, queue, pe, kind, queue.posted + slots - (queue.mask + 1));
  }

  template <Kind kind, Verb verb>
  IMBREX_DEVICE bool post(const Handle& handle, std::uint32_t pe, const Moving& moving) {
    Queue& queue = queue_of(pe, kind);
    if (!reserve(handle, queue, pe, kind, 1)) return false;
    ring_doorbell<verb, reach>(queue, append<verb>(queue, moving));
    return true;
  }

  template <Kind kind>
  IMBREX_DEVICE bool complete_all(const Handle& handle, std::uint32_t pe) {
    Queue& queue = queue_of(pe, kind);
    return complete(handle, queue, pe, kind, queue.posted);
  }

  // ------------------------------------------------------------------------------------------ puts and gets

  /// Calls `piece(bytes before it, its bytes)` until it says no; false then.
  template <typename Piece>
  IMBREX_DEVICE static bool pieces(std::uint64_t bytes, std::uint32_t most, Piece&& piece) {
    for (std::uint64_t done = 0; done < bytes; done += most) {
      const std::uint64_t left = bytes - done;
      if (!piece(done, static_cast<std::uint32_t>(left < most ? left : most))) return false;
    }
    return true;
  }

  IMBREX_DEVICE bool write(const Handle& handle, void* to, const void* from, std::uint64_t bytes, std::uint32_t pe,
                           bool wait) {
    const std::uint64_t there = place(handle, to), here = place(handle, from);
    if (in_heap(handle, from))
      return pieces(bytes, largest_,
                    [&](std::uint64_t done, std::uint32_t piece) {
                      return post<Kind::write, Verb::write>(
                          handle, pe, {.remote = there + done, .local = here + done, .bytes = piece});
                    }) &&
             (!wait || complete_all<Kind::write>(handle, pe));
    return pieces(bytes, stage_bytes_, [&](std::uint64_t done, std::uint32_t piece) {
      copies::copy<false>(shared_->stage, static_cast<const std::byte*>(from) + done, piece, Thread{});
      return post<Kind::write, Verb::write>(
                 handle, pe, {.remote = there + done, .local = place(handle, shared_->stage), .bytes = piece}) &&
             complete_all<Kind::write>(handle, pe);
    });
  }

  /// Into the context's piece of the heap.
  IMBREX_DEVICE bool read_piece(const Handle& handle, std::uint64_t there, std::uint32_t bytes, std::uint32_t pe) {
    return post<Kind::read, Verb::read>(handle, pe,
                                        {.remote = there, .local = place(handle, shared_->stage), .bytes = bytes}) &&
           complete_all<Kind::read>(handle, pe);
  }

  IMBREX_DEVICE bool read(const Handle& handle, void* to, const void* from, std::uint64_t bytes, std::uint32_t pe,
                          bool wait) {
    const std::uint64_t there = place(handle, from), here = place(handle, to);
    if (in_heap(handle, to))
      return pieces(bytes, largest_,
                    [&](std::uint64_t done, std::uint32_t piece) {
                      return post<Kind::read, Verb::read>(
                          handle, pe, {.remote = there + done, .local = here + done, .bytes = piece});
                    }) &&
             (!wait || complete_all<Kind::read>(handle, pe));
    return pieces(bytes, stage_bytes_, [&](std::uint64_t done, std::uint32_t piece) {
      if (!read_piece(handle, there + done, piece, pe)) return false;
      copies::copy<true>(static_cast<std::byte*>(to) + done, shared_->stage, piece, Thread{});
      return true;
    });
  }

  // ------------------------------------------------------------------------------------------------ signals

  /// Nothing is signalled once a wait of any PE has given up.
  IMBREX_DEVICE static bool may_signal(const Handle& handle) {
    return device::load_relaxed(&handle.group.own->abort) == 0;
  }

  IMBREX_DEVICE bool signal_alone(const Handle& handle, Signal* to, Signal value, SignalOperation operation,
                                  std::uint32_t pe) {
    if (!may_signal(handle)) return false;
    const Moving moving{.remote = place(handle, to), .bytes = 8, .operand = value};
    return operation == SignalOperation::set ? post<Kind::write_inline, Verb::write_inline>(handle, pe, moving)
                                             : post<Kind::fetch_add, Verb::fetch_add>(handle, pe, moving);
  }

  IMBREX_DEVICE bool write_and_signal(const Handle& handle, void* to, const void* from, std::uint64_t bytes,
                                      Signal* signal, Signal value, SignalOperation operation, std::uint32_t pe,
                                      bool wait) {
    const bool by_pieces = bytes == 0 || !in_heap(handle, from) || bytes > largest_;
    if (by_pieces)
      return write(handle, to, from, bytes, pe, true) && signal_alone(handle, signal, value, operation, pe);
    const Moving data{
        .remote = place(handle, to), .local = place(handle, from), .bytes = static_cast<std::uint32_t>(bytes)};
    const Moving word{.remote = place(handle, signal), .bytes = 8, .operand = value};
    return operation == SignalOperation::set
               ? post_both<Kind::write_and_set, Verb::write_inline>(handle, pe, data, word, wait)
               : post_both<Kind::write_and_add, Verb::fetch_add>(handle, pe, data, word, wait);
  }

  template <Kind kind, Verb verb>
  IMBREX_DEVICE bool post_both(const Handle& handle, std::uint32_t pe, const Moving& data, const Moving& signal,
                               bool wait) {
    Queue& queue = queue_of(pe, kind);
    if (!reserve(handle, queue, pe, kind, 2) || !may_signal(handle)) return false;
    append<Verb::write>(queue, data);
    ring_doorbell<verb, reach>(queue, append<verb>(queue, signal));
    return !wait || complete(handle, queue, pe, kind, queue.posted);
  }

  // -------------------------------------------------------------------------------------- atomic operations

  template <Kind kind, Verb verb>
  IMBREX_DEVICE bool fetch(const Handle& handle, std::uint32_t pe, const Moving& moving, std::uint64_t& before) {
    Queue& queue = queue_of(pe, kind);
    const std::uint32_t slot = queue.posted & queue.mask;
    if (!post<kind, verb>(handle, pe, moving) || !complete(handle, queue, pe, kind, queue.posted)) return false;
    before = words::load(queue.results + slot);
    return true;
  }

  template <Atomic T, typename Operation>
  IMBREX_DEVICE T change(const Handle& handle, T* address, std::uint32_t pe, const Operation& operation) {
    const std::uint64_t there = place(handle, address);
    std::uint64_t before = 0;
    if constexpr (Integer<T> && sizeof(T) == 8 && std::is_same_v<Operation, operations::Add<T>>) {
      post<Kind::fetch_add, Verb::fetch_add>(
          handle, pe, {.remote = there, .bytes = 8, .operand = words::cast<std::uint64_t>(operation.value)});
      return T{};
    } else if constexpr (Integer<T> && sizeof(T) == 8 && std::is_same_v<Operation, operations::FetchAdd<T>>) {
      const Moving moving{.remote = there, .bytes = 8, .operand = words::cast<std::uint64_t>(operation.value)};
      return fetch<Kind::fetch_add, Verb::fetch_add>(handle, pe, moving, before) ? words::cast<T>(before) : T{};
    } else {
      // The 8 bytes that the word lies in. What is there is guessed, and after a miss known.
      const std::uint32_t shift = sizeof(T) == 8 ? 0 : static_cast<std::uint32_t>(there & 4) * 8;
      const std::uint64_t mask = (sizeof(T) == 8 ? ~std::uint64_t{0} : std::uint64_t{0xffffffffu}) << shift;
      const auto word = [&](std::uint64_t all) {
        return words::cast<T>(static_cast<words::BitsOf<T>>((all & mask) >> shift));
      };
      std::uint64_t expected = 0;
      if constexpr (requires { operation.expected; })
        expected = static_cast<std::uint64_t>(words::cast<words::BitsOf<T>>(operation.expected)) << shift;
      for (;;) {
        const auto next = static_cast<std::uint64_t>(words::cast<words::BitsOf<T>>(operation.next(word(expected))));
        const Moving moving{.remote = there & ~std::uint64_t{7},
                            .bytes = 8,
                            .operand = (expected & ~mask) | next << shift,
                            .compare = expected};
        if (!fetch<Kind::compare_swap, Verb::compare_swap>(handle, pe, moving, before)) return T{};
        if (before == expected) return word(before);
        // A word that is not what compare_swap expects stays as it is.
        if constexpr (requires { operation.expected; })
          if (word(before) != operation.expected) return word(before);
        expected = before;
      }
    }
  }

  Shared* shared_ = nullptr;
  std::uint32_t largest_ = 0, stage_bytes_ = 0;
  std::uint64_t base_ = 0;
  std::uint32_t next_ = 0;        // queue to look at
  const Handle* used_ = nullptr;  // where this thread posted something
};

}  // namespace imbrex::shmem::mlx5

namespace imbrex::shmem {

/// For `Context<Mlx5>`: the NIC reads this GPU's memory only.
using Mlx5 = mlx5::Transport<>;

}  // namespace imbrex::shmem
