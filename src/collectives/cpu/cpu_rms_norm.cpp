// The all-reduce with residual and RMSNorm of ranks on this machine's cores: the reference for GPUs.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/convert.hpp"
#include "collectives/cpu/rank_work.hpp"
#include "collectives/rms_norm.hpp"

namespace imbrex {
namespace {

using collectives::one_shot_bytes;
using collectives::Piece;
using collectives::RankWork;
using collectives::Wire;

/// Messages hold whole rows. Slots: of parts by sender, of sums by owner.
class CpuAllReduceRmsNorm final : public collectives::RmsNormBackend, private RankWork {
 public:
  CpuAllReduceRmsNorm(World& world, std::int64_t max_rows, std::int64_t hidden, Type type,
                      const AllReduceRmsNormOptions& options)
      : RankWork(world, type, 2 * world.size(), collectives::size(slot_rows(max_rows, hidden) * hidden) * size_of(type),
                 "all_reduce_rms_norm"),
        max_rows_(max_rows),
        hidden_(hidden),
        slot_rows_(slot_rows(max_rows, hidden)),
        options_(options) {}

  void operator()(const collectives::RmsNormOperands& given, std::int64_t rows, void* stream) override {
    collectives::RmsNormOperands operands = given;
    operands.weight_type = options_.weight_type;
    collectives::expect_operands(operands, rows, max_rows_, hidden_, type_);
    check(operands.in, operands.out, rows * hidden_, max_rows_ * hidden_, stream);
    begin(operands.in, operands.residual_out, rows * hidden_);
    operands_ = operands;
    weight_.resize(collectives::size(hidden_));
    if (rows > 0) base::to_float(operands.weight_type.value_or(type_), operands.weight, weight_.data(), hidden_);
    const bool one_shot = algorithm_of(rows) == AllReduceAlgorithm::one_shot;
    const std::int64_t per_step = slot_rows_ * (one_shot ? 1 : ranks_);
    // A call of no rows sends one message, so that ranks that disagree are found out.
    std::int64_t at = 0;
    do {
      const Piece rows_now{at, std::min(per_step, rows - at)};
      one_shot ? step_one_shot(rows_now) : step_two_shot(rows_now);
      mailbox_.next_step();
      at += per_step;
    } while (at < rows);
  }

  AllReduceAlgorithm algorithm_of(std::int64_t rows) const override {
    return collectives::choose(options_, rows, hidden_, type_, one_shot_bytes);
  }

  void finish() override { world_.throw_if_failed(); }

 private:
  static std::int64_t slot_rows(std::int64_t max_rows, std::int64_t hidden) {
    return std::clamp<std::int64_t>(most_slot_values / hidden, 1, std::max<std::int64_t>(max_rows, 1));
  }

  Piece elements(const Piece& rows) const { return {rows.begin * hidden_, rows.count * hidden_}; }

  Piece share(int owner, const Piece& rows) const {
    const std::int64_t each = (rows.count + ranks_ - 1) / ranks_, first = std::min(rows.count, owner * each);
    return {rows.begin + first, std::min(each, rows.count - first)};
  }

  void step_one_shot(const Piece& rows) {
    const Piece piece = elements(rows);
    load(piece, values_);
    for (int i = 0; i < ranks_; ++i) send((rank_ + i) % ranks_, rank_, piece.count);
    add_parts(piece, "the tensor");
    wire_.encode(sum_.data(), piece.count, {}, mailbox_.message(rank_, ranks_ + rank_));
    take(rows, rank_);
  }

  void step_two_shot(const Piece& rows) {
    for (int i = 1; i <= ranks_; ++i) {
      const int owner = (rank_ + i) % ranks_;
      const Piece piece = elements(share(owner, rows));
      load(piece, values_);
      send(owner, rank_, piece.count);
    }
    const Piece mine = elements(share(rank_, rows));
    add_parts(mine, "a part");
    values_.swap(sum_);
    for (int i = 0; i < ranks_; ++i) send((rank_ + i) % ranks_, ranks_ + rank_, mine.count);
    for (int owner = 0; owner < ranks_; ++owner) {
      wait(ranks_ + owner, owner, "the sums");
      take(share(owner, rows), owner);
    }
  }

  // values_, as elements.
  void send(int rank, int slot, std::int64_t count) {
    wire_.encode(values_.data(), count, {}, mailbox_.message(rank, slot));
    mailbox_.post(rank, slot, {count_});
  }

  // Leaves in sum_ what the ranks' parts of a piece and the residual add up to.
  void add_parts(const Piece& piece, const char* what) {
    for (int source = 0; source < ranks_; ++source) {
      wait(source, source, what);
      add(wire_, mailbox_.message(rank_, source), piece.count, source == 0);
    }
    if (operands_.residual == nullptr || piece.count == 0) return;
    values_.resize(sum_.size());
    base::to_float(type_,
                   static_cast<const std::byte*>(operands_.residual) + collectives::size(piece.begin) * size_of(type_),
                   values_.data(), piece.count);
    for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] += values_[i];
  }

  // Rows whose sums lie in the owner's slot.
  void take(const Piece& rows, int owner) {
    const Piece piece = elements(rows);
    decode(wire_, mailbox_.message(rank_, ranks_ + owner), piece.count);
    store(piece, values_);
    if (piece.count == 0) return;
    for (std::int64_t row = 0; row < rows.count; ++row) {
      float* x = values_.data() + row * hidden_;
      const float scale =
          collectives::row_scale(collectives::squares_of(x, hidden_, type_), static_cast<float>(hidden_), options_.eps);
      for (std::int64_t i = 0; i < hidden_; ++i)
        x[i] = collectives::normalised(x[i], scale, weight_[collectives::size(i)]);
    }
    base::from_float(type_, values_.data(),
                     static_cast<std::byte*>(operands_.out) + collectives::size(piece.begin) * size_of(type_),
                     piece.count);
  }

  std::int64_t max_rows_, hidden_, slot_rows_;
  AllReduceRmsNormOptions options_;
  Wire wire_{type_, std::nullopt, false};

  // What the current call was given.
  collectives::RmsNormOperands operands_;
  std::vector<float> weight_;
};

}  // namespace

std::unique_ptr<collectives::RmsNormBackend> collectives::make_cpu_all_reduce_rms_norm(
    World& world, std::int64_t max_rows, std::int64_t hidden, Type type, const AllReduceRmsNormOptions& options) {
  collectives::agree(world, max_rows, hidden, type, options);
  return std::make_unique<CpuAllReduceRmsNorm>(world, max_rows, hidden, type, options);
}

}  // namespace imbrex
