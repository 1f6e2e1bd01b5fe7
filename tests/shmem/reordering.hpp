// A transport for tests which does what a network may do: it keeps puts back, and lets them go in any order, with
// pauses between, until a fence or a quiet of its own context makes it. Non-blocking gets wait for a quiet. Nothing
// that one context holds is let go by another one's calls.
//
// The first thread of a group does the group's work; what it holds lies in that thread's memory.
#pragma once

#include "imbrex/device/shmem.cuh"

namespace imbrex::shmem {

template <typename Below = LoadStore>
class Reordering {
 public:
  Reordering() = default;
  Reordering(const Reordering&) = delete;
  Reordering& operator=(const Reordering&) = delete;
  IMBREX_DEVICE ~Reordering() { let_go(all_pes, true); }

  IMBREX_DEVICE bool open(const Handle& handle, std::uint32_t number) {
    random_ =
        (handle.group.pause_seed + 1) * 0x9e3779b97f4a7c15u + (handle.pe() * 65537ull + number) * 0xd1342543de82ef95u;
    longest_pause_ = handle.group.max_pause_ns != 0 ? handle.group.max_pause_ns : 2000;
    return below_.open(handle, number);
  }

  template <typename T>
  IMBREX_DEVICE T* pointer(const Handle& handle, T* address, std::uint32_t pe) const {
    return below_.pointer(handle, address, pe);
  }

  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void put(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                         const G& group) {
    if (!is_leader(group)) return;
    for (std::uint64_t i = 0; i < count; ++i) put_one(handle, to + i, from[i], pe);
  }
  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void put_nbi(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                             const G& group) {
    put(handle, to, from, count, pe, group);
  }

  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void get(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                         const G& group) {
    pause();
    below_.get(handle, to, from, count, pe, group);
  }
  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void get_nbi(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                             const G& group) {
    if (!is_leader(group)) return;
    for (std::uint64_t i = 0; i < count; ++i) {
      Held& held = make_room();
      held = {Kind::get, sizeof(T), pe, to + i, below_.pointer(handle, from + i, pe), {}};
    }
  }

  template <Scalar T>
  IMBREX_DEVICE void put_one(const Handle& handle, T* to, T value, std::uint32_t pe) {
    Held& held = make_room();
    held = {
        Kind::put, sizeof(T), pe, below_.pointer(handle, to, pe), nullptr, {words::cast<words::BitsOf<T>>(value), 0}};
  }
  template <Scalar T>
  IMBREX_DEVICE T get_one(const Handle& handle, const T* from, std::uint32_t pe) {
    pause();
    return below_.get_one(handle, from, pe);
  }

  template <Atomic T, typename Change>
  IMBREX_DEVICE auto atomic(const Handle& handle, T* address, std::uint32_t pe, Change&& change) {
    pause();
    return below_.atomic(handle, address, pe, change);
  }

  IMBREX_DEVICE void put_pair(const Handle& handle, void* to, words::Pair pair, std::uint32_t pe) {
    Held& held = make_room();
    held = {Kind::put, sizeof pair, pe, below_.pointer(handle, static_cast<std::byte*>(to), pe), nullptr, pair};
  }

  IMBREX_DEVICE void signal(const Handle& handle, Signal* to, Signal value, SignalOperation operation,
                            std::uint32_t pe) {
    pause();
    below_.signal(handle, to, value, operation, pe);
  }

  IMBREX_DEVICE void fence(const Handle& handle, std::uint32_t pe) {
    let_go(pe, false);
    below_.fence(handle, pe);
  }
  IMBREX_DEVICE void quiet(const Handle& handle, std::uint32_t pe) {
    let_go(pe, true);
    below_.quiet(handle, pe);
  }

  IMBREX_DEVICE void progress(const Handle&) {
    if (held_ != 0 && next() % 4 == 0) let_go_one(next() % held_);
  }

  /// How much is on its way.
  IMBREX_DEVICE std::uint32_t held() const { return held_; }

 private:
  static constexpr std::uint32_t room = 8;
  enum class Kind : std::uint8_t { put, get };
  struct Held {
    Kind kind;
    std::uint8_t bytes;
    std::uint32_t pe;
    void* to;
    const void* from;   ///< gets
    words::Pair value;  ///< puts
  };

  IMBREX_DEVICE std::uint32_t next() {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(random_ >> 33);
  }

  IMBREX_DEVICE void pause() {
    const std::uint32_t x = next();
    if (x % 32 != 0) return;
    for (const std::uint64_t until = device::now_ns() + x / 32 % longest_pause_; device::now_ns() < until;)
      device::pause_ns(100);
  }

  IMBREX_DEVICE Held& make_room() {
    if (held_ == room) let_go_one(next() % room);
    return queue_[held_++];
  }

  template <typename T>
  IMBREX_DEVICE static void move(const Held& held) {
    const auto bits =
        held.kind == Kind::put ? static_cast<T>(held.value.first) : words::load(static_cast<const T*>(held.from));
    words::store(static_cast<T*>(held.to), bits);
  }

  IMBREX_DEVICE void let_go_one(std::uint32_t i) {
    pause();
    const Held held = queue_[i];
    queue_[i] = queue_[--held_];
    switch (held.bytes) {
      case 1: return move<std::uint8_t>(held);
      case 2: return move<std::uint16_t>(held);
      case 4: return move<std::uint32_t>(held);
      case 8: return move<std::uint64_t>(held);
      default: words::store_pair(held.to, held.value);
    }
  }

  /// Puts to a PE, or to all, and where it is asked gets.
  IMBREX_DEVICE void let_go(std::uint32_t pe, bool gets) {
    for (;;) {
      std::uint32_t fit = 0;
      for (std::uint32_t i = 0; i < held_; ++i) fit += fits(queue_[i], pe, gets) ? 1u : 0u;
      if (fit == 0) return;
      std::uint32_t which = next() % fit;
      for (std::uint32_t i = 0; i < held_; ++i)
        if (fits(queue_[i], pe, gets) && which-- == 0) {
          let_go_one(i);
          break;
        }
    }
  }
  IMBREX_DEVICE static bool fits(const Held& held, std::uint32_t pe, bool gets) {
    return (pe == all_pes || held.pe == pe) && (gets || held.kind == Kind::put);
  }

  Below below_;
  std::uint64_t random_ = 0;
  std::uint32_t held_ = 0, longest_pause_ = 0;
  Held queue_[room];
};

}  // namespace imbrex::shmem
