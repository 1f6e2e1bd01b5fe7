#include "simulator/embedding_cases.hpp"

#include <algorithm>

#include "imbrex/advanced/execute.hpp"
#include "machine/rates.hpp"
#include "problem/embedding.hpp"

namespace imbrex::bench {

std::vector<embedding::TableLoad> dlrm_tables() {
  constexpr struct {
    std::int64_t rows;
    double hotness;
  } tables[] = {{40'000'000, 3}, {39'060, 2},      {17'295, 1},       {7'424, 2},       {20'265, 6},    {3, 1},
                {7'122, 1},      {1'543, 1},       {63, 1},           {40'000'000, 7},  {3'067'956, 3}, {405'282, 8},
                {10, 1},         {2'209, 6},       {11'938, 9},       {155, 5},         {4, 1},         {976, 1},
                {14, 1},         {40'000'000, 12}, {40'000'000, 100}, {40'000'000, 27}, {590'152, 10},  {12'973, 3},
                {108, 1},        {36, 1}};
  std::vector<embedding::TableLoad> loads;
  for (const auto& table : tables) loads.push_back({table.rows, 128, table.hotness});
  return loads;
}

std::vector<embedding::TableLoad> equal_tables(int count, std::int32_t dim, double pooling) {
  return {static_cast<std::size_t>(count), {2'000'000, dim, pooling}};
}

namespace {

// A bag's result costs as much as so many rows more.
Problem placed(const std::vector<embedding::TableLoad>& tables, double more, std::int64_t batch, int ranks, Type type) {
  const bool wide = type == Type::fp32;
  embedding::PlacementLimits limits;
  limits.ranks = ranks;
  limits.rows = wide ? embedding::RowType::fp32 : embedding::RowType::fp16;
  limits.out = type;
  limits.least_columns = static_cast<std::int32_t>(128 / size_of(type));
  std::vector<embedding::TableLoad> loads = tables;
  for (embedding::TableLoad& load : loads) load.hotness += more;
  Problem problem{embedding_all_to_all, batch, 0, 0, ranks, type};
  problem.tables.rows = wide ? TableRows::fp32 : TableRows::fp16;
  std::int64_t col = 0;
  for (const embedding::Shard& shard : embedding::place(loads, limits).shards) {
    const embedding::TableLoad& table = tables[static_cast<std::size_t>(shard.table)];
    problem.tables.shards.push_back({shard.rank, table.rows, shard.end - shard.begin, col, table.hotness});
    col += shard.end - shard.begin;
  }
  return problem;
}

}  // namespace

Problem embedding_problem(const std::vector<embedding::TableLoad>& tables, std::int64_t batch, int ranks, Type type,
                          const Machine& machine) {
  Problem best = placed(tables, 0, batch, ranks, type);
  for (const double more : {2, 4, 8, 16, 32}) {
    Problem other = placed(tables, more, batch, ranks, type);
    if (parts_of(other, machine).longest() < parts_of(best, machine).longest()) best = std::move(other);
  }
  return best;
}

Parts parts_of(const Problem& problem, const Machine& machine) {
  const auto batch = static_cast<double>(problem.m), ranks = static_cast<double>(problem.ranks),
             element = static_cast<double>(size_of(problem.type));
  Parts parts;
  double widest = 0;
  for (int rank = 0; rank < problem.ranks; ++rank) {
    double lookup = 0, cols = 0;
    for (const TableShard& shard : problem.tables.shards) {
      if (shard.owner != rank) continue;
      const auto bytes = static_cast<double>(problem::row_bytes(problem.tables.rows, shard.dim));
      const double index = 4 * (shard.pooling + 1) / machine.memory_bandwidth;
      lookup += batch * (shard.pooling * machine::random_row_seconds(machine, bytes) + index);
      cols += static_cast<double>(shard.dim);
    }
    parts.lookup = std::max(parts.lookup, lookup);
    const problem::OwnShards own(problem.tables, rank);
    parts.launches += machine.launch_gap * static_cast<double>(1 + own.runs(0, own.count()).size());
    widest = std::max(widest, cols);
  }
  const double whole = batch * widest * element, sent = whole * (ranks - 1) / ranks;
  parts.stored = whole / machine.memory_bandwidth;
  parts.wire = sent / std::min({machine.store_bandwidth.value, machine.egress_bandwidth.value});
  parts.exchange = machine::collective_seconds(machine, &Machine::all_to_all, false, ranks, sent);
  parts.regroup =
      2 * batch / ranks * static_cast<double>(problem::width_of(problem.tables)) * element / machine.memory_bandwidth;
  return parts;
}

double seconds_of(const Problem& problem, Strategy strategy, const Machine& machine, int nodes) {
  Knobs knobs;
  knobs.tile_m = std::clamp<std::int64_t>(problem.m / (8 * static_cast<std::int64_t>(machine.sms.value)), 1, 32);
  knobs.chunks = 4;
  knobs.nodes = nodes;
  return make_simulator(machine)->prepare(make_plan(problem, strategy, knobs))->run({}).seconds;
}

std::string_view name_of(Exchange exchange) {
  constexpr std::string_view names[] = {"NCCL of two", "NCCL of four", "370 GB/s"};
  return names[static_cast<std::size_t>(exchange)];
}

// Between four it is torch's all_to_all_single in bf16 on the machine of 4xh200.json (NCCL 2.28.9, 2026-11-21), 64 KiB
// to 256 MiB a rank. DLRMv2's 104 MiB took 296 us there, which these points give as 283.
Machine with_exchange(Machine machine, Exchange exchange) {
  if (exchange == Exchange::nccl_of_four)
    machine.all_to_all.points = {
        {49152, 10.1e-6}, {786432, 15.1e-6}, {6291456, 37.4e-6}, {50331648, 185.8e-6}, {201326592, 653.2e-6}};
  if (exchange == Exchange::at_370) machine.all_to_all.points = {{1, 1 / 370e9}};
  return machine;
}

}  // namespace imbrex::bench
