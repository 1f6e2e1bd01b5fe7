#include "collectives/cpu/rank_work.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "base/convert.hpp"
#include "runtime/host_world.hpp"

namespace imbrex::collectives {

RankWork::RankWork(World& world, Type type, int slots, std::size_t slot_bytes, const char* name)
    : world_(world),
      ranks_(world.size()),
      rank_(world.rank()),
      type_(type),
      range_(codec::range_of(type)),
      name_(name),
      mailbox_(world, slots, slot_bytes) {}

void RankWork::check(const void* in, const void* out, std::int64_t count, std::int64_t max_count,
                     const void* stream) const {
  IMBREX_EXPECTS(count >= 0 && count <= max_count, "{}: count = {}: it must be from 0 to {}", name_, count, max_count);
  IMBREX_EXPECTS(stream == nullptr, "{}: a stream on the CPU; it must be null", name_);
  IMBREX_EXPECTS(count == 0 || (in != nullptr && out != nullptr), "{}: {} is null", name_, in ? "out" : "in");
  for (const void* pointer : {in, out})
    IMBREX_EXPECTS(reinterpret_cast<std::uintptr_t>(pointer) % size_of(type_) == 0,
                   "{}: {} at {} is not aligned to an element of {} bytes", name_, pointer == in ? "in" : "out",
                   pointer, size_of(type_));
}

void RankWork::begin(const void* in, void* out, std::int64_t count) {
  world_.throw_if_failed();
  runtime::enter(world_, runtime::Counted::cpu);
  record_ = {};
  count_ = count;
  in_ = static_cast<const std::byte*>(in);
  out_ = static_cast<std::byte*>(out);
}

void RankWork::load(const Piece& piece, std::vector<float>& values) const {
  values.resize(size(piece.count));
  if (piece.count > 0) base::to_float(type_, in_ + size(piece.begin) * size_of(type_), values.data(), piece.count);
}

void RankWork::store(const Piece& piece, const std::vector<float>& values) const {
  if (piece.count > 0) base::from_float(type_, values.data(), out_ + size(piece.begin) * size_of(type_), piece.count);
}

const Mailbox::Header& RankWork::wait(int slot, int sender, const char* what) {
  const Mailbox::Header& header =
      mailbox_.wait(slot, sender, [&] { return fmt::format("{} of {} of {} elements", what, name_, count_); });
  if (header.count != count_) {
    const std::string message = fmt::format("{}: count is {} on rank {} and {} on rank {}; it must be the same", name_,
                                            count_, rank_, header.count, sender);
    world_.fail(message);
    throw Error(ErrorCode::invalid_input, message);
  }
  return header;
}

void RankWork::encode(const Wire& wire, std::int64_t count, std::span<const float> allowed, std::byte* message) {
  record_.raw_groups += wire.encode(values_.data(), count, allowed, message);
  if (wire.codes()) record_.groups += wire.groups(count);
}

void RankWork::decode(const Wire& wire, const std::byte* message, std::int64_t count) {
  values_.resize(size(count));
  wire.decode(message, count, values_.data(), records_);
}

void RankWork::add(const Wire& parts, const std::byte* message, std::int64_t count, bool first) {
  decode(parts, message, count);
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

void RankWork::note_magnitudes(std::int64_t count, std::int64_t group) {
  records_.assign(size(round_up(count, group) / group), {0, 0, true});
  for (std::int64_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(values_[size(i)]);
    codec::GroupRecord& record = records_[size(i / group)];
    if (magnitude < range_.overflow) record.magnitude = std::max(record.magnitude, magnitude);
  }
}

void RankWork::note_errors(std::int64_t group, int ranks) {
  for (std::size_t unit = 0; unit < bounds_.size(); ++unit) {
    const codec::GroupRecord& record = records_[unit * bound_unit / size(group)];
    const float error = codec::raised(codec::sum_error(bounds_[unit], ranks) + record.error +
                                      codec::rounding_error(type_, record.magnitude));
    record_.largest_error = std::max(record_.largest_error, error);
  }
}

void RankWork::count_non_finite(std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    if (!(std::fabs(values_[size(i)]) < range_.overflow)) ++record_.non_finite;
}

}  // namespace imbrex::collectives
