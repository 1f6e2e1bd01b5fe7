#include "plan/digest.hpp"

#include <array>
#include <cstddef>
#include <span>
#include <type_traits>

#include "base/hash.hpp"
#include "base/narrow.hpp"

namespace imbrex::plan {
namespace {

// The stream and its hash so far. 0 ends what begin has begun; tags are from 1 to 255.
class Stream {
 public:
  explicit Stream(std::uint64_t before) : hash_(before) {}

  void begin(std::uint8_t tag) { byte(tag); }
  void end() { byte(0); }

  /// A number whatever it is: an item of a list.
  void item(std::uint8_t tag, std::uint64_t value) {
    byte(tag);
    for (; value >= 128; value >>= 7) byte((value & 127) | 128);
    byte(value);
  }

  template <typename T>
  void field(std::uint8_t tag, T value, std::type_identity_t<T> usual) {
    if (value == usual) return;
    if constexpr (std::is_signed_v<T>) {  // small numbers of either sign are short
      const std::int64_t wide = value;
      item(tag, static_cast<std::uint64_t>(wide) << 1 ^ static_cast<std::uint64_t>(wide >> 63));
    } else {
      item(tag, static_cast<std::uint64_t>(value));
    }
  }

  std::uint64_t hash() const { return hash_; }

 private:
  void byte(std::uint64_t value) {
    const std::array one{static_cast<std::byte>(value)};
    hash_ = base::hash_of(one, hash_);
  }

  std::uint64_t hash_;
};

// NOTE: each value is taken apart by name, so that a new field does not compile before it has a tag here, or is left
// out on purpose.

void put(Stream& s, const Region& value) {
  const auto& [rank, buffer, row, col, rows, cols] = value;
  s.field(1, rank, 0);
  s.field(2, buffer, 0);
  s.field(3, row, 0);
  s.field(4, col, 0);
  s.field(5, rows, 0);
  s.field(6, cols, 0);
}

void put(Stream& s, const Wait& value) {
  const auto& [signal, count, point, k_begin] = value;
  s.field(1, signal, 0);
  s.field(2, count, 1);
  s.field(3, point, WaitPoint::load);
  s.field(4, k_begin, 0);
}

void put(Stream& s, const Post& value) {
  const auto& [rank, signal] = value;
  s.field(1, rank, 0);
  s.field(2, signal, 0);
}

// Nested in another value, where it is not the default, or in a list.
template <typename T>
void nest(Stream& s, std::uint8_t tag, const T& value) {
  s.begin(tag);
  put(s, value);
  s.end();
}
template <typename T>
void nest_unless_default(Stream& s, std::uint8_t tag, const T& value) {
  if (value != T{}) nest(s, tag, value);
}
template <typename T>
void list(Stream& s, std::uint8_t tag, const std::vector<T>& values) {
  for (const T& value : values) nest(s, tag, value);
}

void put(Stream& s, const Store& value) {
  const auto& [to, row, col] = value;
  nest_unless_default(s, 1, to);
  s.field(2, row, 0);
  s.field(3, col, 0);
}

void put(Stream& s, const Tile& value) {
  const auto& [a, b, adds, own, stores, a_scale] = value;
  nest_unless_default(s, 1, a);
  nest_unless_default(s, 2, b);
  list(s, 3, adds);
  s.field(4, own, 0);
  list(s, 5, stores);
  nest_unless_default(s, 6, a_scale);
}

void put(Stream& s, const Transfer& value) {
  const auto& [from, to] = value;
  nest_unless_default(s, 1, from);
  nest_unless_default(s, 2, to);
}

void put(Stream& s, const Reduction& value) {
  const auto& [from, to] = value;
  list(s, 1, from);
  list(s, 2, to);
}

void put(Stream& s, const Codec& value) {
  const auto& [format, asymmetric, group, scale] = value;
  s.field(1, format, CodeFormat::int8);
  s.field(2, asymmetric, false);
  s.field(3, group, 32);
  s.field(4, scale, ScaleType::bf16);
}
void put(Stream& s, const CodecPair& value) {
  const auto& [reduce_scatter, all_gather] = value;
  nest_unless_default(s, 1, reduce_scatter);
  nest_unless_default(s, 2, all_gather);
}

void put(Stream& s, const Collective& value) {
  const auto& [kind, group, from, to, ranks, backend, codec, send_to, receive_from] = value;
  s.field(1, kind, CollectiveKind::all_gather);
  s.field(2, group, 0);
  nest_unless_default(s, 3, from);
  nest_unless_default(s, 4, to);
  for (int rank : ranks) s.item(5, static_cast<std::uint64_t>(rank));
  s.field(6, backend, Backend::nccl);
  if (codec) nest(s, 7, *codec);
  s.field(8, send_to, -1);
  s.field(9, receive_from, -1);
}

void put(Stream& s, const LibraryAlgorithm& value) {
  const auto& [tile, parts] = value;
  s.field(1, tile, 0);
  s.field(2, parts, 1);
}

void put(Stream& s, const Product& value) {
  const auto& [a, b, to, batch, a_step, to_step, bias, a_scale, algorithm] = value;
  nest_unless_default(s, 1, a);
  nest_unless_default(s, 2, b);
  nest_unless_default(s, 3, to);
  s.field(4, batch, 1);
  s.field(5, a_step, 0);
  s.field(6, to_step, 0);
  nest_unless_default(s, 7, bias);
  nest_unless_default(s, 8, a_scale);
  nest_unless_default(s, 9, algorithm);
}

void put(Stream& s, const Block& value) {
  const auto& [kind, reads, args, stores, share, shares] = value;
  for (const char c : name_of(kind))
    s.item(1, static_cast<unsigned char>(c));  // numbers may differ from build to build
  list(s, 2, reads);
  for (std::size_t i = 0; i < args.size(); ++i) s.field(base::narrow<std::uint8_t>(3 + i, "arguments"), args[i], 0);
  list(s, 7, stores);
  s.field(8, share, 0);
  s.field(9, shares, 1);
}

// The tags of the kinds of work. Waits, posts and the mate have 128 to 130.
constexpr std::uint8_t tag_of(const Tile&) { return 1; }
constexpr std::uint8_t tag_of(const Transfer&) { return 2; }
constexpr std::uint8_t tag_of(const Reduction&) { return 3; }
constexpr std::uint8_t tag_of(const Collective&) { return 4; }
constexpr std::uint8_t tag_of(const Product&) { return 5; }
constexpr std::uint8_t tag_of(const Block&) { return 6; }

void put(Stream& s, const Task& value) {
  const auto& [work, waits, posts, mate] = value;
  std::visit([&](const auto& w) { nest(s, tag_of(w), w); }, work);
  list(s, 128, waits);
  list(s, 129, posts);
  s.field(130, mate, 0);
}

void put(Stream& s, const Buffer& value) {
  [[maybe_unused]] const auto& [name, role, layout, type, rows, cols, copies] = value;
  s.field(1, role, BufferRole::workspace);
  s.field(2, layout, Layout::row_major);
  s.field(3, type, Type::bf16);
  s.field(4, rows, 0);
  s.field(5, cols, 0);
  s.field(6, copies, 1);
}

// Its tasks are hashed apart, as they come.
void put(Stream& s, const Queue& value, std::uint64_t hash) {
  [[maybe_unused]] const auto& [engine, workers, tasks, tile, cluster, kept_free] = value;
  s.field(1, engine, Engine::compute);
  s.field(2, workers, 0);
  s.item(3, hash);
  s.field(4, tile.rows, 0);
  s.field(5, tile.cols, 0);
  s.field(6, cluster, ClusterMode::any);
  s.field(7, kept_free, 0);
}

void put(Stream& s, const RankPlan& value, const std::vector<std::uint64_t>& hashes) {
  const auto& [signals, queues] = value;
  s.field(1, signals, 0);
  for (std::size_t q = 0; q < queues.size(); ++q) {
    s.begin(2);
    put(s, queues[q], hashes[q]);
    s.end();
  }
}

constexpr std::uint64_t nothing = base::hash_of({});

}  // namespace

Digest::Digest(const Plan& frame) : plan_(&frame) {
  for (const RankPlan& rank : frame.ranks) queues_.emplace_back(rank.queues.size(), nothing);
}

void Digest::add(const TaskPlace& place, const Task& task) {
  std::uint64_t& hash = queues_[static_cast<std::size_t>(place.rank)][static_cast<std::size_t>(place.queue)];
  Stream s(hash);
  nest(s, 1, task);
  hash = s.hash();
}

std::uint64_t Digest::value() const {
  [[maybe_unused]] const auto& [problem, strategy, knobs, signal_copies, buffers, ranks] = *plan_;
  Stream s(nothing);
  s.field(1, signal_copies, 2);
  list(s, 2, buffers);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    s.begin(3);
    put(s, ranks[r], queues_[r]);
    s.end();
  }
  return s.hash();
}

std::uint64_t Digest::value_of_rank(int rank) const {
  Stream s(nothing);
  put(s, plan_->ranks[static_cast<std::size_t>(rank)], queues_[static_cast<std::size_t>(rank)]);
  return s.hash();
}

std::uint64_t Digest::value_of_buffers() const {
  Stream s(nothing);
  s.field(1, plan_->signal_copies, 2);
  list(s, 2, plan_->buffers);
  return s.hash();
}

std::uint64_t digest_of(const Plan& plan) {
  Digest digest(plan);
  for_each_task(plan, [&](const TaskPlace& place, const Task& task) { digest.add(place, task); });
  return digest.value();
}

}  // namespace imbrex::plan
