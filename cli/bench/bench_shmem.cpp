// imbrex bench shmem: calls of imbrex/device/shmem.cuh, timed inside kernels.
#include <memory>

#include "bench/bench_shmem.hpp"
#include "command.hpp"
#include "imbrex/error.hpp"
#include "imbrex/world.hpp"
#include "program/shmem_bench/shmem_bench.hpp"
#include "tune/tuning.hpp"

namespace imbrex::cli {
namespace {

struct ShmemArguments {
  std::int64_t ranks = 2, ranks_per_gpu = 1, rounds = 9;
  std::string device = "auto";
  std::vector<std::string> measures, calls;
  bool quick = false;
};

// The one of the first `count` values that has this name.
template <typename T>
T named(const char* option, const std::string& name, int count) {
  std::string names;
  for (int i = 0; i < count; ++i) {
    if (name_of(static_cast<T>(i)) == name) return static_cast<T>(i);
    names += fmt::format("{}{}", i == 0 ? "" : ", ", name_of(static_cast<T>(i)));
  }
  throw Error(ErrorCode::invalid_input, fmt::format("{} '{}': it must be one of {}", option, name, names));
}

double gigabytes_per_second(const program::ShmemRow& row) {
  return static_cast<double>(row.what.bytes) / row.seconds * 1e-9;
}

double messages_per_second(const program::ShmemRow& row) { return static_cast<double>(row.what.blocks) / row.seconds; }

Json json_of(const program::ShmemRow& row) {
  const program::ShmemCase& what = row.what;
  Json json{{"measure", name_of(what.measure)},
            {"call", name_of(what.call)},
            {"scope", name_of(what.scope)},
            {"blocks", what.blocks},
            {"threads", what.threads},
            {"bytes", what.bytes},
            {"calls", row.calls},
            {"us", row.seconds * 1e6}};
  if (row.cycles > 0) json["cycles"] = row.cycles;
  if (what.measure == program::ShmemMeasure::bandwidth) json["gb_per_s"] = gigabytes_per_second(row);
  if (what.measure == program::ShmemMeasure::rate) json["messages_per_s"] = messages_per_second(row);
  return json;
}

std::string last_column(const program::ShmemRow& row) {
  if (row.what.measure == program::ShmemMeasure::rate)
    return fmt::format("{:.2f} M messages/s", messages_per_second(row) * 1e-6);
  return row.what.bytes > 8 ? fmt::format("{:.2f} GB/s", gigabytes_per_second(row)) : "";
}

void print_rows(const Program& program, const program::ShmemBench& result) {
  print(program, "{:9} {:10} {:6} {:>6} {:>8} {:>10} {:>8}", "measure", "call", "scope", "blocks", "bytes", "us",
        "cycles");
  for (const program::ShmemRow& row : result.rows) {
    const program::ShmemCase& what = row.what;
    print(program, "{:9} {:10} {:6} {:>6} {:>8} {:>10.3f} {:>8} {}", name_of(what.measure), name_of(what.call),
          name_of(what.scope), what.blocks, what.bytes, row.seconds * 1e6,
          row.cycles > 0 ? fmt::format("{:.0f}", row.cycles) : "", last_column(row));
  }
}

int bench_calls(const Program& program, const ShmemArguments& o) {
  program::ShmemBenchRequest request;
  request.ranks = static_cast<int>(o.ranks);
  request.ranks_per_gpu = static_cast<int>(o.ranks_per_gpu);
  request.rounds = static_cast<int>(o.rounds);
  request.device = device_named(o.device);
  request.quick = o.quick;
  for (const std::string& name : o.measures)
    request.measures.push_back(named<program::ShmemMeasure>("--measures", name, program::shmem_measures));
  for (const std::string& name : o.calls)
    request.calls.push_back(named<program::ShmemCall>("--calls", name, program::shmem_calls));
  return program::bench_shmem(request, [&](const program::ShmemBench& result) {
    print(program, "{} PEs, {} a GPU, on {}", request.ranks, request.ranks_per_gpu,
          result.gpu.empty() ? "the CPU" : result.gpu);
    print_rows(program, result);
    Json rows = Json::array();
    for (const program::ShmemRow& row : result.rows) rows.push_back(json_of(row));
    print_json(program, {{"device", name_of(result.device)},
                         {"gpu", result.gpu},
                         {"date", today()},
                         {"ranks", request.ranks},
                         {"ranks_per_gpu", request.ranks_per_gpu},
                         {"rounds", request.rounds},
                         {"rows", rows}});
  });
}

}  // namespace

std::function<int()> add_bench_shmem(Program& program, CLI::App& bench_command) {
  auto options = std::make_shared<ShmemArguments>();
  CLI::App& command = add_subcommand(
      bench_command, "shmem",
      "Times OpenSHMEM calls inside kernels, between PEs of this machine.\n"
      "PEs are processes that work in pairs, PE r with PE r + R/2. latency is one way, half of a round trip;\n"
      "complete is a call and what completes it; issue is until a call returns; bandwidth and rate are calls of "
      "several\n"
      "blocks at once. Cases are taken in turn. Times are medians of the slowest pair.");
  command.footer(
      "Examples:\n"
      "  imbrex bench shmem --device cpu --quick\n"
      "  imbrex bench shmem --ranks 2 --ranks-per-gpu 2 --json shmem.json       two PEs on one GPU; at once under MPS\n"
      "  imbrex bench shmem --measures latency --calls packet put_signal");
  command.add_option("--json", program.json, "Also write the result as JSON to this file; - is standard output")
      ->type_name("FILE|-");
  add_integer(command, "--ranks", options->ranks, 2, 64,
              "PEs, an even number (default: as many as a launcher started, else 2)");
  add_integer(command, "--ranks-per-gpu", options->ranks_per_gpu, 1, 64,
              "GPUs: PEs that share each GPU (default 1). Without MPS they take turns, and times mean nothing");
  add_device(command, options->device, "cpu, cuda, or auto (default): cuda where there are enough GPUs");
  command.add_option("--measures", options->measures, "latency, complete, issue, bandwidth, rate; default: all")
      ->type_name("NAME...");
  command
      .add_option("--calls", options->calls,
                  "put, get, p, g, put_signal, p_signal, packet, add, fetch_add, fence, quiet; default: all")
      ->type_name("NAME...");
  add_integer(command, "--rounds", options->rounds, 1, 1000, "Samples of each case (default 9)");
  command.add_flag("--quick", options->quick, "Three sizes, and fewer calls in a sample");
  return [&program, options] { return bench_calls(program, *options); };
}

}  // namespace imbrex::cli
