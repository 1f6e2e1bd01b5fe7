// The all-reduce of ranks on this machine's cores: the reference for every other.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/check.hpp"
#include "collectives/cpu/rank_work.hpp"
#include "collectives/policy.hpp"

namespace imbrex {
namespace {

using collectives::Mailbox;
using collectives::one_shot_bytes;
using collectives::Piece;
using collectives::RankWork;
using collectives::round_up;
using collectives::share_unit;
using collectives::size;
using collectives::Wire;

std::int64_t slot_values(std::int64_t max_count, std::int64_t most) {
  return std::clamp(round_up(max_count, share_unit), share_unit, most);
}

std::size_t largest_message(Type type, const AllReduceOptions& options, std::int64_t values) {
  std::size_t bytes = size(values) * size_of(type);
  if (options.codec)
    for (const Codec& codec : {options.codec->reduce_scatter, options.codec->all_gather})
      bytes = std::max(bytes, Wire(type, codec, options.tolerance && !options.whole_call).bytes(values));
  return bytes;
}

class CpuAllReduce final : public collectives::AllReduceBackend, private RankWork {
 public:
  CpuAllReduce(World& world, std::int64_t max_count, Type type, const AllReduceOptions& options)
      : RankWork(world, type, (options.algorithm == AllReduceAlgorithm::ring ? 4 : 2) * world.size(),
                 largest_message(type, options, slot_values(max_count, most_slot_values)), "all_reduce"),
        max_count_(max_count),
        options_(options),
        slot_values_(slot_values(max_count, most_slot_values)) {}

  void operator()(const void* in, void* out, std::int64_t count, void* stream) override {
    check(in, out, count, max_count_, stream);
    begin(in, out, count);
    const collectives::Sizes sizes{one_shot_bytes,
                                   options_.codec ? collectives::usual_exact_below(*options_.codec) : 0};
    bool code = collectives::quantized(options_, count, type_, sizes);
    const AllReduceAlgorithm algorithm = collectives::choose(options_, count, type_, sizes);
    const int shares = collectives::tolerance_shares(algorithm, ranks_);
    if (count == 0 || algorithm == AllReduceAlgorithm::ring || (code && options_.whole_call)) {
      const bool vote = code && options_.whole_call && exceeds(count, shares, algorithm);
      code = !exchange_votes(vote) && code;
    }
    const bool slots = options_.tolerance && !options_.whole_call;
    const Wire parts(type_, code ? std::optional(options_.codec->reduce_scatter) : std::nullopt, slots),
        sums(type_, code ? std::optional(options_.codec->all_gather) : std::nullopt, slots);
    const bool one_shot = algorithm == AllReduceAlgorithm::one_shot;
    const std::int64_t per_step = slot_values_ * (one_shot ? 1 : ranks_);
    part_allowance_ = slots && code ? codec::part_allowance(*options_.tolerance, shares) : -1;
    for (std::int64_t at = 0; at < count; at += per_step) {
      const std::int64_t n = std::min(per_step, count - at);
      if (one_shot)
        step_one_shot(parts, at, n);
      else if (algorithm == AllReduceAlgorithm::two_shot)
        step_two_shot(parts, sums, at, n);
      else
        step_ring(parts, sums, at, n);
      mailbox_.next_step();
    }
    record_.algorithm = static_cast<std::int32_t>(algorithm);
    record_.exact = code ? 0 : 1;
  }

  void finish() override { world_.throw_if_failed(); }

  AllReduceReport report() override {
    IMBREX_EXPECTS(options_.report, "all_reduce: it was made without `report`");
    return collectives::merge(world_, record_);
  }

 private:
  // Every slot has one writer: the sender of a part, the owner of sums, or, for the ring's, the left neighbour.
  int part_slot(int sender) const { return sender; }
  int sum_slot(int owner) const { return ranks_ + owner; }
  int ring_part_slot(int hop) const { return 2 * ranks_ + hop; }
  int ring_sum_slot(int owner) const { return 3 * ranks_ + owner; }

  // Share of `owner` in a step: whole units, so that no group has two owners.
  Piece share(int owner, std::int64_t at, std::int64_t n) const {
    const std::int64_t each = round_up((n + ranks_ - 1) / ranks_, share_unit), first = std::min(n, owner * each);
    return {at + first, std::min(each, n - first)};
  }

  std::span<const float> part_allowed(const Wire& wire, std::int64_t count) {
    if (part_allowance_ < 0) return {};
    allowed_.assign(size(wire.groups(count)), part_allowance_);
    return allowed_;
  }

  void step_one_shot(const Wire& parts, std::int64_t at, std::int64_t n) {
    const Piece piece{at, n};
    load(piece, values_);
    std::byte* own = mailbox_.message(rank_, part_slot(rank_));
    encode(parts, n, part_allowed(parts, n), own);
    decode(parts, own, n);
    for (int i = 1; i < ranks_; ++i) {
      const int peer = (rank_ + i) % ranks_;
      parts.copy(own, n, records_, mailbox_.message(peer, part_slot(rank_)));
      mailbox_.post(peer, part_slot(rank_), {count_});
    }
    for (int source = 0; source < ranks_; ++source) {
      if (source != rank_) wait(part_slot(source), source, "the tensor");
      add(parts, mailbox_.message(rank_, part_slot(source)), n, source == 0);
    }
    values_.swap(sum_);
    store(piece, values_);
    // Every rank has the same sums; one tells of them.
    if (!options_.report || rank_ != 0) return;
    count_non_finite(n);
    note_magnitudes(n, share_unit);
    note_errors(share_unit, ranks_);
  }

  // What is left of the tolerance for each group of the sums.
  std::span<const float> sum_allowed(const Wire& sums, std::int64_t count) {
    if (part_allowance_ < 0) return {};
    std::vector<float> errors(size(sums.groups(count)), 0.0f);
    for (std::size_t unit = 0; unit < bounds_.size(); ++unit) {
      float& worst = errors[unit * bound_unit / size(sums.group())];
      worst = std::max(worst, bounds_[unit].errors);
    }
    allowed_.resize(errors.size());
    std::transform(errors.begin(), errors.end(), allowed_.begin(),
                   [&](float error) { return codec::sum_allowance(*options_.tolerance, error); });
    return allowed_;
  }

  // Codes sum_ into this rank's own slot, and notes the errors of what comes out.
  std::byte* finish_share(const Wire& sums, std::int64_t count) {
    std::byte* own = mailbox_.message(rank_, sum_slot(rank_));
    values_.swap(sum_);
    encode(sums, count, sum_allowed(sums, count), own);
    decode(sums, own, count);
    if (options_.report) {
      count_non_finite(count);
      note_errors(sums.group(), ranks_);
    }
    return own;
  }

  void step_two_shot(const Wire& parts, const Wire& sums, std::int64_t at, std::int64_t n) {
    for (int i = 1; i <= ranks_; ++i) {
      const int owner = (rank_ + i) % ranks_;
      const Piece piece = share(owner, at, n);
      load(piece, values_);
      encode(parts, piece.count, part_allowed(parts, piece.count), mailbox_.message(owner, part_slot(rank_)));
      mailbox_.post(owner, part_slot(rank_), {count_});
    }
    const Piece mine = share(rank_, at, n);
    for (int source = 0; source < ranks_; ++source) {
      wait(part_slot(source), source, "a part");
      add(parts, mailbox_.message(rank_, part_slot(source)), mine.count, source == 0);
    }
    const std::byte* own = finish_share(sums, mine.count);
    for (int i = 1; i < ranks_; ++i) {
      const int peer = (rank_ + i) % ranks_;
      sums.copy(own, mine.count, records_, mailbox_.message(peer, sum_slot(rank_)));
      mailbox_.post(peer, sum_slot(rank_), {count_});
    }
    for (int owner = 0; owner < ranks_; ++owner) {
      const Piece piece = share(owner, at, n);
      if (owner != rank_) wait(sum_slot(owner), owner, "the sums");
      receive_sums(sums, piece, mailbox_.message(rank_, sum_slot(owner)));
    }
  }

  void receive_sums(const Wire& sums, const Piece& piece, const std::byte* message) {
    decode(sums, message, piece.count);
    store(piece, values_);
  }

  // Rank r's share is begun by rank r + 1, and goes round until rank r adds the last part. What the codings have cost
  // on the way goes with it, as one number a share.
  void step_ring(const Wire& parts, const Wire& sums, std::int64_t at, std::int64_t n) {
    const int next = (rank_ + 1) % ranks_, previous = (rank_ + ranks_ - 1) % ranks_;
    load(share(previous, at, n), values_);
    float error = 0;
    for (int hop = 0; hop + 1 < ranks_; ++hop) {
      const Piece sent = share((rank_ + 2 * ranks_ - hop - 1) % ranks_, at, n);
      encode(parts, sent.count, {}, mailbox_.message(next, ring_part_slot(hop)));
      mailbox_.post(next, ring_part_slot(hop), {count_, error});

      const Piece piece = share((rank_ + 2 * ranks_ - hop - 2) % ranks_, at, n);
      error = wait(ring_part_slot(hop), previous, "a partial sum").error;
      sum_.resize(size(piece.count));
      parts.decode(mailbox_.message(rank_, ring_part_slot(hop)), piece.count, sum_.data(), records_);
      float coding = 0, magnitude = 0;
      for (const codec::GroupRecord& record : records_) coding = std::max(coding, record.error);
      load(piece, values_);
      for (std::int64_t i = 0; i < piece.count; ++i) {
        values_[size(i)] = sum_[size(i)] + values_[size(i)];
        if (std::fabs(values_[size(i)]) < range_.overflow) magnitude = std::max(magnitude, std::fabs(values_[size(i)]));
      }
      // Decoding gives no more than the type's largest: a partial sum above it, which does not round to infinity,
      // loses.
      const float cut = std::max(0.0f, magnitude - range_.largest);
      error = codec::raised(codec::multiply_add(magnitude, 0x1.01p-24f, error + coding + cut));
    }
    const Piece mine = share(rank_, at, n);
    if (ranks_ == 1) load(mine, values_);
    sum_.swap(values_);
    bounds_.assign(size(round_up(mine.count, bound_unit) / bound_unit), {error, 0});
    const std::byte* last = finish_share(sums, mine.count);
    store(mine, values_);
    for (int hop = 0; hop + 1 < ranks_; ++hop) {
      const int sent = (rank_ + ranks_ - hop) % ranks_, owner = (rank_ + 2 * ranks_ - hop - 1) % ranks_;
      sums.copy(last, share(sent, at, n).count, records_, mailbox_.message(next, ring_sum_slot(sent)));
      mailbox_.post(next, ring_sum_slot(sent), {count_});
      last = mailbox_.message(rank_, ring_sum_slot(owner));
      wait(ring_sum_slot(owner), previous, "the sums");
      receive_sums(sums, share(owner, at, n), last);
    }
  }

  // A step without data; whether any rank votes.
  bool exchange_votes(bool vote) {
    for (int peer = 0; peer < ranks_; ++peer) mailbox_.post(peer, part_slot(rank_), {count_, 0, vote ? 1 : 0});
    for (int source = 0; source < ranks_; ++source) vote |= wait(part_slot(source), source, "the beginning").vote != 0;
    mailbox_.next_step();
    return vote;
  }

  // Whether coding this rank's part, or sums of which it is the largest part, could cost more than the tolerance leaves
  // to each. A value that is not finite is beyond every tolerance.
  bool exceeds(std::int64_t count, int shares, AllReduceAlgorithm algorithm) {
    const float allowed = codec::part_allowance(*options_.tolerance, shares);
    constexpr std::int64_t unit = 4096;
    for (std::int64_t begin = 0; begin < count; begin += unit) {
      load({begin, std::min(unit, count - begin)}, values_);
      const auto group = size(options_.codec->reduce_scatter.group);
      for (std::size_t at = 0; at < values_.size(); at += group) {
        const auto first = values_.begin() + static_cast<std::ptrdiff_t>(at);
        const auto last = values_.begin() + static_cast<std::ptrdiff_t>(std::min(at + group, values_.size()));
        if (!std::all_of(first, last, [](float value) { return std::isfinite(value); })) return true;
        const auto [low, high] = std::minmax_element(first, last);
        if (codec::exceeds(*options_.codec, range_, ranks_, algorithm == AllReduceAlgorithm::two_shot, allowed, *low,
                           *high))
          return true;
      }
    }
    return false;
  }

  std::int64_t max_count_;
  AllReduceOptions options_;
  std::int64_t slot_values_;
  float part_allowance_ = -1;  // negative: no group may travel raw
  std::vector<float> allowed_;
};

}  // namespace

std::unique_ptr<collectives::AllReduceBackend> collectives::make_cpu_all_reduce(World& world, std::int64_t max_count,
                                                                                Type type,
                                                                                const AllReduceOptions& options) {
  collectives::agree(world, max_count, type, options);
  return std::make_unique<CpuAllReduce>(world, max_count, type, options);
}

}  // namespace imbrex
