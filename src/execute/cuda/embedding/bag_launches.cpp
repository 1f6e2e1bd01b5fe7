#include "execute/cuda/embedding/bag_launches.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "base/narrow.hpp"
#include "embedding/same_table.hpp"
#include "plan/bags.hpp"

namespace imbrex::cuda {

static_assert(embedding::strip_fault == static_cast<std::uint32_t>(FaultKind::block));

BagLaunches::BagLaunches(const LaunchPlace& place, const std::vector<BlockLaunch>& launches)
    : rows_(place.plan.problem.tables.rows), own_(place.plan.problem.tables, place.rank) {
  for (const BlockLaunch& launch : launches) {
    std::vector<Launch>& made = launches_.emplace_back();
    for (const BagRounds& rounds : bag_rounds(place.plan, place.rank, place.table, launch))
      made.push_back(launch_of(rounds, place));
  }
  // Tables that have no rows yet: memory is taken and kernels are loaded before any runs.
  std::vector<embedding::Table> blank;
  for (std::size_t i = 0; i < own_.count(); ++i) {
    const auto dim = base::narrow<std::int32_t>(own_[i].dim, "columns");
    const std::int64_t bytes = dim * embedding::size_of(rows_);
    const bool quantized = rows_ == TableRows::int8;
    blank.push_back({nullptr, 0, bytes + (quantized ? 8 : 0), quantized ? bytes : 0, dim, 0});
  }
  embedding::LookUpTuning tuning;
  tuning.blocks = place.most_blocks;
  for (LookUp& look_up : look_ups_) {
    const std::vector<embedding::Table> tables = tables_of(look_up, blank.data());
    std::vector<embedding::BagsOf> of;
    for (const BagColumns& columns : look_up.columns) of.push_back({columns.shard, columns.first == 0});
    look_up.kernel = std::make_unique<embedding::CudaLookUp>(
        embedding::Tables{tables.data(), base::narrow<std::int32_t>(std::ssize(tables), "tables"), rows_},
        look_up.shape, tuning, std::move(of));
  }
}

std::size_t BagLaunches::look_up_of(const BagRounds& rounds, std::int64_t batch) {
  const auto pitch = static_cast<std::int64_t>(rounds.pitch / size_of(rounds.type));
  const auto there = std::find_if(look_ups_.begin(), look_ups_.end(), [&](const LookUp& l) {
    return l.columns == rounds.columns && l.shape.out == rounds.type && l.shape.pitch == pitch;
  });
  if (there != look_ups_.end()) return static_cast<std::size_t>(there - look_ups_.begin());
  look_ups_.push_back({rounds.columns, {batch, rounds.type, pitch}});
  return look_ups_.size() - 1;
}

BagLaunches::Launch BagLaunches::launch_of(const BagRounds& rounds, const LaunchPlace& place) {
  Launch launch{look_up_of(rounds, place.plan.problem.m), {}, rounds.strips};
  auto& slices = look_ups_[launch.look_up].shape.slices;
  slices = std::max(slices, base::narrow<std::int32_t>(rounds.slices, "slices"));
  embedding::LookUpRounds& made = launch.rounds;
  made.slices = base::narrow<std::int32_t>(rounds.slices, "slices");
  made.slice_rows = rounds.slice_rows;
  made.out_stride = static_cast<std::int64_t>(rounds.copy_stride);
  const Protocol* p = place.protocol;
  const bool joint = p != nullptr && p->readers > 0;
  made.joint = joint, made.one_wait = true;
  if (joint) {
    made.group = *p;
    made.alternates = p->copies == 2;
    made.counter_stride = static_cast<std::int64_t>(p->set_stride);
  }
  for (const BagStrip& strip : rounds.strips) {
    embedding::Strip to{};
    to.first_row = strip.first_row, to.rows = strip.rows, to.name = strip.task;
    if (strip.posts) to.done = reinterpret_cast<void*>(*strip.posts);
    if (strip.waits) {
      to.entered = p->counters + std::uint64_t{rounds.wait->signal} * p->counter_stride;
      to.entered_first = rounds.wait->count, to.entered_step = rounds.wait->posts;
    }
    made.to.push_back(to);
  }
  return launch;
}

std::vector<embedding::Table> BagLaunches::tables_of(const LookUp& look_up, const embedding::Table* given) const {
  std::vector<embedding::Table> tables;
  for (const BagColumns& columns : look_up.columns) {
    embedding::Table table = given[columns.shard];
    const std::int64_t skipped = columns.first * embedding::size_of(rows_);
    if (table.rows != nullptr) table.rows = static_cast<std::byte*>(table.rows) + skipped;
    if (rows_ == TableRows::int8) table.scale -= skipped;
    table.dim = base::narrow<std::int32_t>(columns.count, "columns");
    table.column = base::narrow<std::int32_t>(columns.at, "columns");
    tables.push_back(table);
  }
  return tables;
}

void BagLaunches::bind(const embedding::Tables& tables, CudaStream stream, bool captured) {
  captured_ = captured_ || captured;
  // A graph's replay may have bound others since.
  if (!captured_ &&
      std::equal(bound_.begin(), bound_.end(), tables.tables, tables.tables + tables.count, embedding::same_table))
    return;
  for (LookUp& look_up : look_ups_) {
    const std::vector<embedding::Table> own = tables_of(look_up, tables.tables);
    look_up.kernel->bind({own.data(), base::narrow<std::int32_t>(std::ssize(own), "tables"), tables.type}, stream);
  }
  bound_.assign(tables.tables, tables.tables + tables.count);
}

void BagLaunches::launch(std::size_t i, const Addresses& operands, CudaStream stream, bool captured) {
  IMBREX_EXPECTS(operands.given != nullptr, "no tables are given");
  const auto& given = *static_cast<const plan::RankBags*>(operands.given);
  IMBREX_EXPECTS(std::cmp_equal(given.tables.count, own_.count()), "{} tables are given; there must be {}",
                 given.tables.count, own_.count());
  bind(given.tables, stream, captured);
  for (Launch& launch : launches_[i]) {
    for (std::size_t s = 0; s < launch.strips.size(); ++s) {
      const BagStrip& strip = launch.strips[s];
      auto* first = reinterpret_cast<std::byte*>(strip.address);
      if (strip.base == Base::out)
        first = static_cast<std::byte*>(operands.others[strip.output]) + static_cast<std::int64_t>(strip.address);
      launch.rounds.to[s].out = first;
    }
    look_ups_[launch.look_up].kernel->launch(given.bags, launch.rounds, stream);
  }
}

std::int64_t BagLaunches::take_misfits(Misfits misfits, CudaStream stream) {
  std::int64_t found = 0;
  for (const LookUp& look_up : look_ups_) found += look_up.kernel->findings(stream, misfits);
  return found;
}

}  // namespace imbrex::cuda
