// Reduce-scatter, all-gather and all-to-all of ranks on this machine's cores.
#include <algorithm>
#include <cstdint>

#include "base/check.hpp"
#include "collectives/cpu/rank_work.hpp"

namespace imbrex {

namespace {

using collectives::Piece;
using collectives::RankWork;
using collectives::round_up;
using collectives::share_unit;
using collectives::Wire;

std::int64_t slot_values(std::int64_t max_count, std::int64_t most) {
  return std::clamp(round_up(max_count, share_unit), share_unit, most);
}

// Every rank has a slot for each peer's block, and steps through the blocks.
class CpuExchange final : public collectives::ExchangeBackend, private RankWork {
 public:
  CpuExchange(World& world, ExchangeKind kind, std::int64_t max_count, Type type, const ExchangeOptions& options)
      : RankWork(world, type, world.size(),
                 std::max(Wire(type, options.codec, false).bytes(slot_values(max_count, most_slot_values)),
                          Wire(type, std::nullopt, false).bytes(slot_values(max_count, most_slot_values))),
                 name_of(kind).data()),
        kind_(kind),
        max_count_(max_count),
        options_(options),
        slot_values_(slot_values(max_count, most_slot_values)) {}

  void operator()(const void* in, void* out, std::int64_t count, void* stream) override {
    check(in, out, count, max_count_, stream);
    begin(in, out, count);
    const Wire wire(type_, options_.codec, false);
    // A call of no elements sends one message, so that ranks that disagree are found out.
    std::int64_t at = 0;
    do {
      step(wire, at, std::min(slot_values_, count - at));
      mailbox_.next_step();
      at += slot_values_;
    } while (at < count);
  }

  void finish() override { world_.throw_if_failed(); }

  ExchangeReport report() override {
    IMBREX_EXPECTS(options_.report, "{}: it was made without `report`", name_);
    const AllReduceReport merged = collectives::merge(world_, record_);
    return {merged.largest_error, merged.non_finite, merged.groups};
  }

 private:
  void step(const Wire& wire, std::int64_t at, std::int64_t n) {
    send(wire, at, n);
    for (int source = 0; source < ranks_; ++source) {
      wait(source, source, "a block");
      const std::byte* message = mailbox_.message(rank_, source);
      if (kind_ == ExchangeKind::reduce_scatter) {
        add(wire, message, n, source == 0);
        continue;
      }
      bounds_.clear();
      add(wire, message, n, true);
      finish({source * count_ + at, n}, 1);
    }
    if (kind_ == ExchangeKind::reduce_scatter) finish({at, n}, ranks_);
  }

  // Slot s of a rank takes what rank s sends it.
  void send(const Wire& wire, std::int64_t at, std::int64_t n) {
    const bool same = kind_ == ExchangeKind::all_gather;
    for (int i = 0; i < ranks_; ++i) {
      const int peer = (rank_ + i) % ranks_;
      std::byte* to = mailbox_.message(peer, rank_);
      if (i == 0 || !same) {
        load({(same ? 0 : peer * count_) + at, n}, values_);
        encode(wire, n, {}, to);
        if (same) decode(wire, to, n);
      } else {
        wire.copy(mailbox_.message(rank_, rank_), n, records_, to);
      }
      mailbox_.post(peer, rank_, {count_});
    }
  }

  // sum_, of `parts` parts, is a piece of the output.
  void finish(const Piece& piece, int parts) {
    values_.swap(sum_);
    store(piece, values_);
    if (!options_.report) return;
    count_non_finite(piece.count);
    note_magnitudes(piece.count, share_unit);
    // One part that travelled as elements of its own type is what it was.
    if (parts == 1 && !options_.codec) return;
    note_errors(share_unit, parts);
  }

  ExchangeKind kind_;
  std::int64_t max_count_;
  ExchangeOptions options_;
  std::int64_t slot_values_;
};

}  // namespace

std::unique_ptr<collectives::ExchangeBackend> collectives::make_cpu_exchange(World& world, ExchangeKind kind,
                                                                             std::int64_t max_count, Type type,
                                                                             const ExchangeOptions& options) {
  collectives::agree(world, kind, max_count, type, options);
  return std::make_unique<CpuExchange>(world, kind, max_count, type, options);
}

}  // namespace imbrex
