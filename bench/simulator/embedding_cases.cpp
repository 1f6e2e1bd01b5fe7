#include "simulator/embedding_cases.hpp"

#include <algorithm>
#include <numeric>

#include "imbrex/advanced/execute.hpp"
#include "machine/rates.hpp"
#include "problem/embedding.hpp"

namespace imbrex::bench {

std::vector<EmbeddingTable> dlrm_tables() {
  constexpr struct {
    std::int64_t rows;
    double hotness;
  } tables[] = {{40'000'000, 3}, {39'060, 2},      {17'295, 1},       {7'424, 2},       {20'265, 6},    {3, 1},
                {7'122, 1},      {1'543, 1},       {63, 1},           {40'000'000, 7},  {3'067'956, 3}, {405'282, 8},
                {10, 1},         {2'209, 6},       {11'938, 9},       {155, 5},         {4, 1},         {976, 1},
                {14, 1},         {40'000'000, 12}, {40'000'000, 100}, {40'000'000, 27}, {590'152, 10},  {12'973, 3},
                {108, 1},        {36, 1}};
  std::vector<EmbeddingTable> loads;
  for (const auto& table : tables) loads.push_back({table.rows, 128, table.hotness});
  return loads;
}

std::vector<EmbeddingTable> equal_tables(int count, std::int32_t dim, double pooling) {
  return {static_cast<std::size_t>(count), {2'000'000, dim, pooling}};
}

namespace {

// A bag's result costs as much as so many rows more.
Problem placed(const std::vector<EmbeddingTable>& tables, double more, std::int64_t batch, int ranks, Type type) {
  const bool wide = type == Type::fp32;
  PlacementLimits limits;
  limits.ranks = ranks;
  limits.rows = wide ? TableRows::fp32 : TableRows::fp16;
  limits.out = type;
  limits.least_columns = static_cast<std::int32_t>(128 / size_of(type));
  std::vector<EmbeddingTable> loads = tables;
  for (EmbeddingTable& load : loads) load.hotness += more;
  Problem problem{embedding_all_to_all, batch, 0, 0, ranks, type};
  problem.tables.rows = wide ? TableRows::fp32 : TableRows::fp16;
  std::int64_t col = 0;
  for (const EmbeddingShard& shard : place_tables(loads, limits).shards) {
    const EmbeddingTable& table = tables[static_cast<std::size_t>(shard.table)];
    problem.tables.shards.push_back({shard.rank, table.rows, shard.end - shard.begin, col, table.hotness});
    col += shard.end - shard.begin;
  }
  return problem;
}

}  // namespace

namespace {

// Renumbers ranks so that all hosts have about as many columns: the wide ones are dealt out first, there and back.
void spread_over_hosts(Problem& problem, int hosts) {
  std::vector<std::int64_t> cols(static_cast<std::size_t>(problem.ranks));
  for (const TableShard& shard : problem.tables.shards) cols[static_cast<std::size_t>(shard.owner)] += shard.dim;
  std::vector<int> order(cols.size()), number(cols.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int x, int y) { return cols[static_cast<std::size_t>(x)] > cols[static_cast<std::size_t>(y)]; });
  for (int i = 0; i < problem.ranks; ++i) {
    const int place = i / hosts, host = place % 2 == 0 ? i % hosts : hosts - 1 - i % hosts;
    number[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])] = host * (problem.ranks / hosts) + place;
  }
  for (TableShard& shard : problem.tables.shards) shard.owner = number[static_cast<std::size_t>(shard.owner)];
}

}  // namespace

Problem embedding_problem(const std::vector<EmbeddingTable>& tables, std::int64_t batch, int ranks, Type type,
                          const Machine& machine) {
  Problem best = placed(tables, 0, batch, ranks, type);
  for (const double more : {2, 4, 8, 16, 32}) {
    Problem other = placed(tables, more, batch, ranks, type);
    if (parts_of(other, machine).longest() < parts_of(best, machine).longest()) best = std::move(other);
  }
  if (machine.host_devices > 0) spread_over_hosts(best, ranks / static_cast<int>(machine.host_devices));
  return best;
}

Problem even_problem(int tables_a_rank, std::int32_t dim, double pooling, std::int64_t batch, int ranks) {
  Problem problem{embedding_all_to_all, batch, 0, 0, ranks, Type::fp32};
  for (int i = 0; i < ranks * tables_a_rank; ++i)
    problem.tables.shards.push_back({i / tables_a_rank, 2'000'000, dim, std::int64_t{i} * dim, pooling});
  return problem;
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

Machine two_hosts_of_four() {
  Machine machine = with_exchange(load_machine("4xh200"), Exchange::nccl_of_four);
  machine.name = "two hosts of four H200s";
  machine.devices = 8;
  machine.host_devices = {4, Provenance::unverified, "half of an HGX board a host"};
  machine.host_bandwidth = {46e9, Provenance::unverified, "ConnectX-7 of 400 Gb/s a GPU, at 92 %"};
  machine.host_latency = {5e-6, Provenance::unverified, "NCCL over InfiniBand, a proxy thread between"};
  machine.host_message = {1e-6, Provenance::unverified, "a work request and its completion by a proxy thread"};
  return machine;
}

// What the paper's setting has was recalled, not read: dim 256, InfiniBand of 200 Gb/s, 700 ns.
Machine two_hosts_of_one() {
  Machine machine = load_machine("4xh200");
  machine.name = "two hosts of one MI210";
  machine.devices = 2;
  machine.sms = {104, Provenance::published, "AMD Instinct MI210 data sheet, compute units"};
  machine.memory_bandwidth = {1.31e12, Provenance::derived, "MI210 data sheet, 1.64 TB/s, at 80 %"};
  machine.sm_memory_bandwidth = {3e10, Provenance::unverified, "twice a compute unit's share"};
  machine.sm_rate[Type::fp32] = {1.6e11, Provenance::derived, "MI210 data sheet, 22.6 TFLOP/s, at 73 % over 104"};
  machine.l2_bytes = {8 << 20, Provenance::published, "MI210 data sheet"};
  machine.random_rows = machine.short_rows = {};
  machine.launch_gap = {5e-6, Provenance::unverified, "a kernel launch"};
  machine.all_to_all = {{{1, 2e-5}}, Provenance::unverified, "RCCL's least time"};
  machine.host_devices = {1, Provenance::unverified, "scale-out: one GPU a node"};
  machine.host_bandwidth = {23e9, Provenance::unverified, "InfiniBand of 200 Gb/s at 92 %, recalled"};
  machine.host_latency = {7e-7, Provenance::unverified, "link latency of the paper's simulation, recalled"};
  machine.host_message = {1e-6, Provenance::unverified, "a put"};
  return machine;
}

double seconds_of(const Problem& problem, Strategy strategy, const Machine& machine, int nodes, int slices) {
  Knobs knobs;
  knobs.tile_m = std::clamp<std::int64_t>(problem.m / (8 * static_cast<std::int64_t>(machine.sms.value)), 1, 32);
  knobs.chunks = slices;
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
