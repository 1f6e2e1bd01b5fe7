// The all-reduce of ranks on this machine's cores: the reference for every other.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/check.hpp"
#include "base/convert.hpp"
#include "codec/bound.hpp"
#include "collectives/all_reduce.hpp"
#include "collectives/cpu/mailbox.hpp"
#include "collectives/cpu/wire.hpp"

namespace imbrex {
namespace {

using collectives::CallRecord;
using collectives::Mailbox;
using collectives::share_unit;
using collectives::Wire;

// Values that one slot holds; longer calls take several steps.
constexpr std::int64_t most_slot_values = 32768;
// Up to here, one message to every rank costs less than two steps.
constexpr std::int64_t one_shot_bytes = 16384;
// Values for which one bound is kept: the smallest group.
constexpr std::int64_t bound_unit = 32;

std::int64_t round_up(std::int64_t count, std::int64_t unit) { return (count + unit - 1) / unit * unit; }
std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

class CpuAllReduce final : public AllReduce {
 public:
  CpuAllReduce(World& world, std::int64_t max_count, Type type, const AllReduceOptions& options)
      : world_(world),
        ranks_(world.size()),
        rank_(world.rank()),
        max_count_(max_count),
        type_(type),
        range_(codec::range_of(type)),
        options_(options),
        slot_values_(std::clamp(round_up(max_count, share_unit), share_unit, most_slot_values)),
        mailbox_(world, 2 * ranks_, largest_message()) {}

  void operator()(const void* in, void* out, std::int64_t count, void* stream) override {
    check(in, out, count, stream);
    world_.throw_if_failed();
    record_ = {};
    count_ = count;
    bool code = collectives::coded(options_, count, type_);
    const AllReduceAlgorithm algorithm = collectives::choose(options_, count, type_, one_shot_bytes);
    const int shares = collectives::tolerance_shares(algorithm, ranks_);
    if (count == 0 || algorithm == AllReduceAlgorithm::ring || (code && options_.whole_call)) {
      const bool vote = code && options_.whole_call && exceeds(in, count, shares, algorithm);
      code = !exchange_votes(vote) && code;
    }
    const bool slots = options_.tolerance && !options_.whole_call;
    const Wire parts(type_, code ? std::optional(options_.codec->reduce_scatter) : std::nullopt, slots),
        sums(type_, code ? std::optional(options_.codec->all_gather) : std::nullopt, slots);
    const bool one_shot = algorithm == AllReduceAlgorithm::one_shot;
    const std::int64_t per_step = slot_values_ * (one_shot ? 1 : ranks_);
    in_ = static_cast<const std::byte*>(in);
    out_ = static_cast<std::byte*>(out);
    part_allowance_ = slots && code ? codec::part_allowance(*options_.tolerance, shares) : -1;
    for (std::int64_t begin = 0; begin < count; begin += per_step) {
      const std::int64_t n = std::min(per_step, count - begin);
      if (one_shot)
        step_one_shot(parts, begin, n);
      else if (algorithm == AllReduceAlgorithm::two_shot)
        step_two_shot(parts, sums, begin, n);
      else
        step_ring(parts, sums, begin, n);
      mailbox_.next_step();
    }
    record_.algorithm = static_cast<std::int32_t>(algorithm);
    record_.exact = code ? 0 : 1;
  }

  AllReduceReport report() override {
    IMBREX_EXPECTS(options_.report, "all_reduce: it was made without `report`");
    return collectives::merge(world_, record_);
  }

 private:
  // A stretch of the tensor.
  struct Piece {
    std::int64_t begin = 0, count = 0;
  };

  void check(const void* in, const void* out, std::int64_t count, const void* stream) const {
    IMBREX_EXPECTS(count >= 0 && count <= max_count_, "all_reduce: count = {}: it must be from 0 to {}", count,
                   max_count_);
    IMBREX_EXPECTS(stream == nullptr, "all_reduce: a stream on the CPU; it must be null");
    IMBREX_EXPECTS(count == 0 || (in != nullptr && out != nullptr), "all_reduce: {} is null", in ? "out" : "in");
    for (const void* pointer : {in, out})
      IMBREX_EXPECTS(reinterpret_cast<std::uintptr_t>(pointer) % size_of(type_) == 0,
                     "all_reduce: {} at {} is not aligned to an element of {} bytes", pointer == in ? "in" : "out",
                     pointer, size_of(type_));
  }

  std::size_t largest_message() const {
    std::size_t bytes = size(slot_values_) * size_of(type_);
    if (options_.codec)
      for (const Codec& codec : {options_.codec->reduce_scatter, options_.codec->all_gather})
        bytes = std::max(bytes, Wire(type_, codec, options_.tolerance && !options_.whole_call).bytes(slot_values_));
    return bytes;
  }

  // Slots 0 to R - 1 take parts (by sender; ring: by hop), the others sums by owner.
  int part_slot(int index) const { return index; }
  int sum_slot(int owner) const { return ranks_ + owner; }

  // Share of `owner` in a step: whole units, so that no group has two owners.
  Piece share(int owner, std::int64_t begin, std::int64_t n) const {
    const std::int64_t each = round_up((n + ranks_ - 1) / ranks_, share_unit), first = std::min(n, owner * each);
    return {begin + first, std::min(each, n - first)};
  }

  void load(const Piece& piece, std::vector<float>& values) const {
    values.resize(size(piece.count));
    to_float(type_, in_ + size(piece.begin) * size_of(type_), values.data(), piece.count);
  }

  void store(const Piece& piece, const std::vector<float>& values) const {
    from_float(type_, values.data(), out_ + size(piece.begin) * size_of(type_), piece.count);
  }

  const Mailbox::Header& wait(int slot, int sender, const char* what) {
    const Mailbox::Header& header =
        mailbox_.wait(slot, sender, [&] { return fmt::format("{} of an all-reduce of {} elements", what, count_); });
    if (header.count != count_) {
      const std::string message =
          fmt::format("all_reduce: count is {} on rank {} and {} on rank {}; it must be the same", count_, rank_,
                      header.count, sender);
      world_.fail(message);
      throw Error(ErrorCode::invalid_input, message);
    }
    return header;
  }

  // Writes values_ to this rank's message; counts what became of it.
  void encode(const Wire& wire, std::int64_t count, std::span<const float> allowed, std::byte* message) {
    record_.raw_groups += wire.encode(values_.data(), count, allowed, message);
    if (wire.codes()) record_.groups += wire.groups(count);
  }

  std::span<const float> part_allowed(const Wire& wire, std::int64_t count) {
    if (part_allowance_ < 0) return {};
    allowed_.assign(size(wire.groups(count)), part_allowance_);
    return allowed_;
  }

  // Adds a part to sum_, and to the bounds.
  void add(const Wire& parts, const std::byte* message, std::int64_t count, bool first) {
    values_.resize(size(count));
    parts.decode(message, count, values_.data(), records_);
    if (first) {
      sum_ = values_;
      bounds_.assign(size(round_up(count, bound_unit) / bound_unit), {});
    } else {
      for (std::int64_t i = 0; i < count; ++i) sum_[size(i)] += values_[size(i)];
    }
    for (std::size_t unit = 0; unit < bounds_.size(); ++unit) {
      const codec::GroupRecord& record = records_[unit * bound_unit / size(parts.group())];
      bounds_[unit].errors += record.error;
      codec::add_exact_part(bounds_[unit], record.magnitude);
    }
  }

  // Counts elements of values_ that are not finite as the type's.
  void count_non_finite(std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      if (!(std::fabs(values_[size(i)]) < range_.overflow)) ++record_.non_finite;
  }

  // The bound of outputs that were sent as `records` say, from those of their sums.
  void note_errors(const Wire& wire) {
    for (std::size_t unit = 0; unit < bounds_.size(); ++unit) {
      const codec::GroupRecord& record = records_[unit * bound_unit / size(wire.group())];
      const float error = codec::raised(codec::sum_error(bounds_[unit], ranks_) + record.error +
                                        codec::rounding_error(type_, record.magnitude));
      record_.largest_error = std::max(record_.largest_error, error);
    }
  }

  void step_one_shot(const Wire& parts, std::int64_t begin, std::int64_t n) {
    const Piece piece{begin, n};
    load(piece, values_);
    std::byte* own = mailbox_.message(rank_, part_slot(rank_));
    encode(parts, n, part_allowed(parts, n), own);
    parts.decode(own, n, values_.data(), records_);
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
    const Wire elements(type_, std::nullopt, false);
    records_.resize(size(elements.groups(n)));
    note_magnitudes(n, elements.group());
    note_errors(elements);
  }

  // Records of values_ as they are.
  void note_magnitudes(std::int64_t count, std::int64_t group) {
    std::fill(records_.begin(), records_.end(), codec::GroupRecord{0, 0, true});
    for (std::int64_t i = 0; i < count; ++i) {
      const float magnitude = std::fabs(values_[size(i)]);
      codec::GroupRecord& record = records_[size(i / group)];
      if (magnitude < range_.overflow) record.magnitude = std::max(record.magnitude, magnitude);
    }
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
    sums.decode(own, count, values_.data(), records_);
    if (options_.report) {
      count_non_finite(count);
      note_errors(sums);
    }
    return own;
  }

  void step_two_shot(const Wire& parts, const Wire& sums, std::int64_t begin, std::int64_t n) {
    for (int i = 1; i <= ranks_; ++i) {
      const int owner = (rank_ + i) % ranks_;
      const Piece piece = share(owner, begin, n);
      load(piece, values_);
      encode(parts, piece.count, part_allowed(parts, piece.count), mailbox_.message(owner, part_slot(rank_)));
      mailbox_.post(owner, part_slot(rank_), {count_});
    }
    const Piece mine = share(rank_, begin, n);
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
      const Piece piece = share(owner, begin, n);
      if (owner != rank_) wait(sum_slot(owner), owner, "the sums");
      receive_sums(sums, piece, owner);
    }
  }

  void receive_sums(const Wire& sums, const Piece& piece, int owner) {
    values_.resize(size(piece.count));
    sums.decode(mailbox_.message(rank_, sum_slot(owner)), piece.count, values_.data(), records_);
    store(piece, values_);
  }

  // Rank r's share is begun by rank r + 1, and goes round until rank r adds the last part. What the codings have cost
  // on the way goes with it, as one number a share.
  void step_ring(const Wire& parts, const Wire& sums, std::int64_t begin, std::int64_t n) {
    const int next = (rank_ + 1) % ranks_, previous = (rank_ + ranks_ - 1) % ranks_;
    load(share(previous, begin, n), values_);
    float error = 0;
    for (int hop = 0; hop + 1 < ranks_; ++hop) {
      const Piece sent = share((rank_ + 2 * ranks_ - hop - 1) % ranks_, begin, n);
      encode(parts, sent.count, {}, mailbox_.message(next, part_slot(hop)));
      mailbox_.post(next, part_slot(hop), {count_, error});

      const Piece piece = share((rank_ + 2 * ranks_ - hop - 2) % ranks_, begin, n);
      error = wait(part_slot(hop), previous, "a partial sum").error;
      sum_.resize(size(piece.count));
      parts.decode(mailbox_.message(rank_, part_slot(hop)), piece.count, sum_.data(), records_);
      float coding = 0, magnitude = 0;
      for (const codec::GroupRecord& record : records_) coding = std::max(coding, record.error);
      load(piece, values_);
      for (std::int64_t i = 0; i < piece.count; ++i) {
        values_[size(i)] = sum_[size(i)] + values_[size(i)];
        if (std::isfinite(values_[size(i)])) magnitude = std::max(magnitude, std::fabs(values_[size(i)]));
      }
      error = codec::raised(codec::multiply_add(magnitude, 0x1.01p-24f, error + coding));
    }
    const Piece mine = share(rank_, begin, n);
    if (ranks_ == 1) load(mine, values_);
    sum_.swap(values_);
    bounds_.assign(size(round_up(mine.count, bound_unit) / bound_unit), {error, 0});
    const std::byte* last = finish_share(sums, mine.count);
    store(mine, values_);
    for (int hop = 0; hop + 1 < ranks_; ++hop) {
      const int sent = (rank_ + ranks_ - hop) % ranks_, owner = (rank_ + 2 * ranks_ - hop - 1) % ranks_;
      sums.copy(last, share(sent, begin, n).count, records_, mailbox_.message(next, sum_slot(sent)));
      mailbox_.post(next, sum_slot(sent), {count_});
      wait(sum_slot(owner), previous, "the sums");
      receive_sums(sums, share(owner, begin, n), owner);
      last = mailbox_.message(rank_, sum_slot(owner));
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
  bool exceeds(const void* in, std::int64_t count, int shares, AllReduceAlgorithm algorithm) {
    const float allowed = codec::part_allowance(*options_.tolerance, shares);
    constexpr std::int64_t unit = 4096;
    for (std::int64_t begin = 0; begin < count; begin += unit) {
      values_.resize(size(std::min(unit, count - begin)));
      to_float(type_, static_cast<const std::byte*>(in) + size(begin) * size_of(type_), values_.data(),
               std::ssize(values_));
      const auto group = size(options_.codec->reduce_scatter.group);
      for (std::size_t at = 0; at < values_.size(); at += group) {
        const auto first = values_.begin() + static_cast<std::ptrdiff_t>(at);
        const auto last = values_.begin() + static_cast<std::ptrdiff_t>(std::min(at + group, values_.size()));
        if (!std::all_of(first, last, [](float value) { return std::isfinite(value); })) return true;
        const auto [low, high] = std::minmax_element(first, last);
        const float error = error_bound(options_.codec->reduce_scatter, *low, *high);
        if (error > allowed) return true;
        if (algorithm == AllReduceAlgorithm::one_shot) continue;
        // Every sum lies within the ranks' number times the largest part, whose rank is the one that votes.
        const float sum = static_cast<float>(ranks_) * (std::max(std::fabs(*low), std::fabs(*high)) + error) * 1.0001f;
        if (!(sum < range_.overflow) || error_bound(options_.codec->all_gather, -sum, sum) > allowed) return true;
      }
    }
    return false;
  }

  World& world_;
  int ranks_, rank_;
  std::int64_t max_count_;
  Type type_;
  codec::Range range_;
  AllReduceOptions options_;
  std::int64_t slot_values_;
  Mailbox mailbox_;

  // Of the current call, and room for it.
  CallRecord record_;
  std::int64_t count_ = 0;
  const std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
  float part_allowance_ = -1;  // negative: no group may travel raw
  std::vector<float> values_, sum_, allowed_;
  std::vector<codec::GroupRecord> records_;
  std::vector<codec::Bound> bounds_;
};

}  // namespace

std::unique_ptr<AllReduce> make_cpu_all_reduce(World& world, std::int64_t max_count, Type type,
                                               const AllReduceOptions& options) {
  collectives::agree(world, max_count, type, options);
  return std::make_unique<CpuAllReduce>(world, max_count, type, options);
}

}  // namespace imbrex
