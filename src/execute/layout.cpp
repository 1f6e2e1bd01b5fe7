#include "execute/layout.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/narrow.hpp"
#include "plan/operand_buffers.hpp"
#include "plan/problem.hpp"

namespace imbrex::execute {
namespace {

constexpr std::size_t alignment = HeapLayout::alignment;

std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

template <typename F>
void for_each_region(const Task& task, F&& f) {
  if (const auto* tile = std::get_if<Tile>(&task.work)) {
    f(tile->a), f(tile->b);
    if (!tile->a_scale.empty()) f(tile->a_scale);
    for (const Region& r : tile->adds) f(r);
    for (const Store& s : tile->stores) f(s.to);
  } else if (const auto* transfer = std::get_if<Transfer>(&task.work)) {
    if (!transfer->from.empty()) f(transfer->from), f(transfer->to);
  } else if (const auto* reduction = std::get_if<Reduction>(&task.work)) {
    for (const Region& r : reduction->from) f(r);
    for (const Region& r : reduction->to) f(r);
  } else if (const auto* block = std::get_if<Block>(&task.work)) {
    for (const Region& r : block->reads) f(r);
    for (const Store& s : block->stores) f(s.to);
  }
}

}  // namespace

std::map<int, std::vector<const Collective*>> collective_groups(const Plan& plan) {
  std::map<int, std::vector<const Collective*>> groups;
  for (const RankPlan& rank : plan.ranks)
    for (const Queue& queue : rank.queues) {
      if (queue.engine != Engine::library) continue;
      for (const Task& task : queue.tasks) {
        if (const auto* collective = std::get_if<Collective>(&task.work))
          groups[collective->group].push_back(collective);
      }
    }
  return groups;
}

Rows rows_of(const Problem& problem, const Buffer& buffer, int index) {
  const bool by_columns = buffer.layout == Layout::column_major;
  const std::int64_t count = by_columns ? buffer.cols : buffer.rows, length = by_columns ? buffer.rows : buffer.cols,
                     pitch = plan::pitch_of(problem, buffer, index);
  const std::size_t size = size_of(buffer.type), bytes = static_cast<std::size_t>(length) * size;
  return {count, bytes, pitch == 0 ? bytes : static_cast<std::size_t>(pitch) * size};
}

const void* input_of(const Addresses& operands, const Problem& problem, int buffer) {
  using Operand = plan::OperandPlace::What;
  if (!problem::multiplies(problem)) return operands.others[static_cast<std::size_t>(buffer)];
  if (buffer == plan::buffer_a) return operands.a;
  if (buffer == plan::buffer_b) return operands.b;
  const auto [operand, product] = plan::operand_at(problem, buffer);
  const auto further = [&, number = product]() -> const Addresses::Further& {
    return operands.more[static_cast<std::size_t>(number) - 1];
  };
  switch (operand) {
    case Operand::a_scale: return operands.a_scale;
    case Operand::b_scale: return operands.b_scale;
    case Operand::bias: return product == 0 ? operands.bias : further().bias;
    default: return further().b;
  }
}

void* output_of(const Addresses& operands, const Problem& problem, int buffer) {
  if (!problem::multiplies(problem)) return operands.others[static_cast<std::size_t>(buffer)];
  if (buffer == plan::buffer_out) return operands.out;
  const auto [operand, product] = plan::operand_at(problem, buffer);
  if (operand == plan::OperandPlace::What::gathered) return operands.gathered;
  return operands.more[static_cast<std::size_t>(product) - 1].out;
}

void expect_given(const Addresses& operands, const Problem& problem) {
  if (!problem::multiplies(problem)) {
    const std::vector<OperandInfo> infos = operands_of(problem);
    IMBREX_EXPECTS(infos.size() <= operands.others.size(), "{} has {} operands: there may be {}", name_of(problem.op),
                   infos.size(), operands.others.size());
    for (std::size_t i = 0; i < infos.size(); ++i)
      IMBREX_EXPECTS(operands.others[i] != nullptr, "operand {} is null: it must be given", infos[i].name);
    return;
  }
  IMBREX_EXPECTS(operands.a != nullptr && operands.b != nullptr && operands.out != nullptr,
                 "an operand is null: a, b and out must be given");
  IMBREX_EXPECTS(
      problem.bias == (operands.bias != nullptr), "{}",
      problem.bias ? "the problem has a bias, and none is given" : "a bias is given, and the problem has none");
  const bool scaled = problem.scales != Scales::none;
  IMBREX_EXPECTS(scaled == (operands.a_scale != nullptr) && scaled == (operands.b_scale != nullptr), "{}",
                 scaled ? fmt::format("the problem has scales ({}), and those of {} are not given",
                                      name_of(problem.scales), operands.a_scale == nullptr ? "A" : "B")
                        : "scales are given, and the problem has none");
  for (int product = 1; product < max_products; ++product) {
    const auto& [b, bias, out] = operands.more[static_cast<std::size_t>(product) - 1];
    const bool wanted = product < plan::count_products(problem), with_bias = wanted && problem.bias;
    IMBREX_EXPECTS(wanted == (b != nullptr) && wanted == (out != nullptr) && with_bias == (bias != nullptr),
                   "{}, {} and {} must {}", plan::name_of_b(product), plan::name_of_bias(product),
                   plan::name_of_out(product),
                   with_bias ? "be given"
                   : wanted  ? "be given; the problem has no bias"
                             : "not be given: the problem has fewer B");
  }
  IMBREX_EXPECTS(problem.gathered_a == (operands.gathered != nullptr), "{}",
                 problem.gathered_a ? "the problem gives the gathered A, and no place for it is given"
                                    : "a place for the gathered A is given, and the problem does not give it");
}

LayoutSurvey::LayoutSurvey(const Plan& frame) : shared_(frame.buffers.size()) {
  for (const RankPlan& rank : frame.ranks) posts_.emplace_back(static_cast<std::size_t>(rank.signals));
}

void LayoutSurvey::add(const plan::TaskPlace& place, const Task& task) {
  for (const Post& post : task.posts)
    ++posts_[static_cast<std::size_t>(post.rank)][static_cast<std::size_t>(post.signal)];
  for_each_region(task, [&](const Region& r) {
    if (r.rank != place.rank) shared_[static_cast<std::size_t>(r.buffer)] = true;
  });
  if (const auto* collective = std::get_if<Collective>(&task.work)) {
    // Peers read its source.
    shared_[static_cast<std::size_t>(collective->from.buffer)] = true;
    Group& group = groups_[collective->group];
    group.ranks.push_back(place.rank);
    group.exchange = collective->kind == CollectiveKind::send_receive;
  }
}

HeapLayout::HeapLayout(const Plan& plan)
    : HeapLayout(plan, [&] {
        LayoutSurvey survey(plan);
        plan::for_each_task(plan, [&](const plan::TaskPlace& place, const Task& task) { survey.add(place, task); });
        return survey;
      }()) {}

HeapLayout::HeapLayout(const Plan& plan, LayoutSurvey survey)
    : posts_(std::move(survey.posts_)), signal_copies_(static_cast<std::uint64_t>(plan.signal_copies)) {
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    signals_.push_back(plan.ranks[rank].signals);
    // A group's counters receive one post from every rank that it joins; in a send_receive, from one.
    for (const auto& [number, group] : survey.groups_) {
      const auto& joined = group.ranks;
      const bool joins = std::find(joined.begin(), joined.end(), base::narrow<int>(rank, "ranks")) != joined.end();
      const auto posts = group.exchange ? 1 : base::narrow<std::uint32_t>(joined.size(), "ranks");
      posts_[rank].insert(posts_[rank].end(), 2, joins ? posts : 0);
    }
    most_signals_ = std::max(most_signals_, posts_[rank].size());
  }
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    const Buffer& buffer = plan.buffers[b];
    Place place;
    if (buffer.role == BufferRole::workspace || survey.shared_[b]) {
      place = {bytes_, aligned(static_cast<std::size_t>(buffer.rows * buffer.cols) * size_of(buffer.type)),
               buffer.copies};
      bytes_ += place.stride * static_cast<std::size_t>(place.copies);
    }
    places_.push_back(place);
    const std::int64_t length = buffer.layout == Layout::column_major ? buffer.rows : buffer.cols,
                       pitch =
                           place.copies > 0 ? 0 : plan::pitch_of(plan.problem, buffer, base::narrow<int>(b, "buffers"));
    pitches_.push_back(pitch == 0 ? length : pitch);
  }
  counters_ = bytes_;
  bytes_ += aligned(most_signals_ * signal_copies_ * counter_stride);
  bytes_ = std::max(bytes_, alignment);
}

PlanShare HeapLayout::share() const {
  PlanShare share{0, most_signals_};
  for (const Place& place : places_)
    if (place.copies > 0) share.bytes += place.stride;
  return share;
}

void HeapLayout::lie_in_halves(const PlanShare& half) {
  std::size_t offset = 0;
  for (Place& place : places_) {
    if (place.copies == 0) continue;
    const std::size_t bytes = place.stride;
    place = {offset, half.bytes, 2};
    offset += bytes;
  }
  counters_ = 2 * half.bytes;
  most_signals_ = half.counters;
  signal_copies_ = 2;
  bytes_ = bytes_of_halves(half);
}

std::size_t HeapLayout::bytes_of_halves(const PlanShare& half) {
  return std::max(2 * half.bytes + aligned(2 * half.counters * counter_stride), alignment);
}

}  // namespace imbrex::execute
