// Times of embedding exchanges on four H200s by the simulator, a row a line of JSON: `embedding.py` makes a report of
// them.
//   embedding_times dlrm    DLRMv2's tables and long bags, with each of three all-to-alls of a library
//   embedding_times sweep   32 tables alike, by pooling, columns and batch
//   embedding_times hosts   on two hosts: DLRMv2 on eight H200s, and AMD's setting
#include <algorithm>
#include <cstdio>
#include <string_view>

#include <fmt/format.h>

#include "imbrex/error.hpp"
#include "program/host_messages.hpp"
#include "simulator/embedding_cases.hpp"

namespace {

using namespace imbrex;
using namespace imbrex::bench;

void print(std::string_view tables, const std::string& more, const Problem& problem, Exchange exchange,
           const Machine& four) {
  const Machine machine = with_exchange(four, exchange);
  const Parts parts = parts_of(problem, machine);
  const auto us = [](double seconds) { return fmt::format("{:.1f}", seconds * 1e6); };
  const double sequential = seconds_of(problem, Strategy::sequential, machine),
               decomposed = seconds_of(problem, Strategy::decomposed, machine),
               fused = seconds_of(problem, Strategy::fused, machine);
  fmt::print(
      "{{\"tables\": \"{}\", {}\"type\": \"{}\", \"batch\": {}, \"exchange\": \"{}\", \"shards\": {}, \"lookup_us\": "
      "{}, "
      "\"wire_us\": {}, \"exchange_us\": {}, \"regroup_us\": {}, \"sequential_us\": {}, \"decomposed_us\": {}, "
      "\"fused_us\": {}, \"speedup\": {:.3f}, \"bound\": {:.3f}}}\n",
      tables, more, imbrex::name_of(problem.type), problem.m, bench::name_of(exchange), problem.tables.shards.size(),
      us(parts.lookup), us(parts.wire), us(parts.exchange), us(parts.stored + parts.regroup), us(sequential),
      us(decomposed), us(fused), sequential / fused, parts.bound());
  std::fflush(stdout);
}

void dlrm(const Machine& machine) {
  for (const Type type : {Type::fp16, Type::fp32})
    for (const Exchange exchange : exchanges) {
      for (const std::int64_t batch : {4096, 16384, 65536})
        print("DLRMv2", "", embedding_problem(dlrm_tables(), batch, 4, type, machine), exchange, machine);
      print("28 of 128 columns, pooling 76", "", embedding_problem(equal_tables(28, 128, 76), 16384, 4, type, machine),
            exchange, machine);
      print("32 of 256 columns, pooling 64", "", embedding_problem(equal_tables(32, 256, 64), 8192, 4, type, machine),
            exchange, machine);
    }
}

void sweep(const Machine& machine) {
  const auto row = [&](std::int32_t dim, std::int64_t batch, double pooling) {
    print("32 alike", fmt::format("\"dim\": {}, \"pooling\": {}, ", dim, pooling),
          embedding_problem(equal_tables(32, dim, pooling), batch, 4, Type::fp16, machine), Exchange::nccl_of_four,
          machine);
  };
  for (const double pooling : {1, 2, 4, 8, 16, 32, 64, 128}) {
    for (const std::int32_t dim : {32, 64, 128, 256}) row(dim, 16384, pooling);
    for (const std::int64_t batch : {1024, 4096, 65536}) row(128, batch, pooling);
  }
}

void print_hosts(const Machine& machine, std::string_view tables, double pooling, const Problem& problem) {
  // A slice that is sent beside the lookup of the next costs a launch and a latency: as many as take least.
  int slices = 1;
  double fused = seconds_of(problem, Strategy::fused, machine, 2, 1);
  for (const int n : {2, 4, 8, 16})
    if (const double seconds = seconds_of(problem, Strategy::fused, machine, 2, n); seconds < fused)
      fused = seconds, slices = n;
  Knobs knobs;
  knobs.nodes = 2;
  const double flat = seconds_of(problem, Strategy::sequential, machine),
               staged = seconds_of(problem, Strategy::sequential, machine, 2);
  const auto messages = [&](Strategy strategy, int nodes) {
    knobs.nodes = nodes;
    knobs.chunks = slices;
    return program::messages_between_hosts(make_plan(problem, strategy, knobs), 2).count;
  };
  const auto us = [](double seconds) { return fmt::format("{:.1f}", seconds * 1e6); };
  fmt::print(
      "{{\"machine\": \"{}\", \"tables\": \"{}\", \"pooling\": {}, \"type\": \"{}\", \"batch\": {}, \"sequential_us\": "
      "{}, "
      "\"sequential_messages\": {}, \"staged_us\": {}, \"staged_messages\": {}, \"slices\": {}, \"fused_us\": {}, "
      "\"fused_messages\": {}, \"less_percent\": {:.1f}}}\n",
      machine.name, tables, pooling, imbrex::name_of(problem.type), problem.m, us(flat),
      messages(Strategy::sequential, 1), us(staged), messages(Strategy::sequential, 2), slices, us(fused),
      messages(Strategy::fused, 2), 100 * (1 - fused / std::min(flat, staged)));
  std::fflush(stdout);
}

void hosts() {
  const Machine four = two_hosts_of_four();
  for (const Type type : {Type::fp16, Type::fp32})
    for (const std::int64_t batch : {8192, 65536})
      print_hosts(four, "DLRMv2", 8.2, embedding_problem(dlrm_tables(), batch, 8, type, four));
  print_hosts(four, "64 of 256 columns", 64, embedding_problem(equal_tables(64, 256, 64), 16384, 8, Type::fp16, four));
  const Machine one = two_hosts_of_one();
  for (const std::int64_t batch : {512, 2048})
    for (const int tables : {16, 64})
      for (const double pooling : {16, 35, 70, 140})
        print_hosts(one, fmt::format("{} a GPU of 256 columns", tables), pooling,
                    even_problem(tables, 256, pooling, batch, 2));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc == 2 ? argv[1] : "";
  try {
    const Machine machine = load_machine("4xh200");
    if (what == "dlrm") return dlrm(machine), 0;
    if (what == "sweep") return sweep(machine), 0;
    if (what == "hosts") return hosts(), 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "embedding_times: {}\n", error.what());
    return 1;
  }
  fmt::print(stderr, "embedding_times: usage: embedding_times dlrm|sweep|hosts\n");
  return 2;
}
