// All-reduces on GPUs, ours beside NCCL's, in turn within one run: captured in graphs of several calls, ranks aligned
// before each replay, the slowest rank counted, the median of the rounds. Results are compared with a reference first.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <ctime>
#include <functional>
#include <iostream>

#include "all_reduce/bench.hpp"
#include "base/check.hpp"
#include "imbrex/file.hpp"
#include "imbrex/gpu.hpp"
#include "program/nccl_environment.hpp"

namespace imbrex {
namespace {

constexpr int no_gpus = 77;
constexpr std::int64_t mib = 1 << 20;

// Calls `save` after every size, so that what has been measured is kept.
void measure_all(Bench& bench, const BenchOptions& o, nlohmann::json& found, const std::function<void()>& save) {
  if (o.rms_norm) {
    found["rms_norm"] = nlohmann::json::array();
    for (std::int64_t bytes = o.least; bytes <= o.most; bytes *= 2)
      if (nlohmann::json row = bench.measure_rms_norm(bytes); !row.is_null()) {
        found["rms_norm"].push_back(std::move(row));
        save();
      }
    return;
  }
  found["rows"] = found["ctas"] = nlohmann::json::array();
  for (std::int64_t bytes = o.least; bytes <= o.most; bytes *= 2) {
    found["rows"].push_back(bench.measure(bytes));
    save();
  }
  if (!o.ctas_sweep) return;
  for (const std::int64_t bytes : {mib, 8 * mib, 64 * mib})
    if (bytes <= o.most) {
      found["ctas"].push_back(bench.measure_ctas(bytes));
      save();
    }
}

void answer(const nlohmann::json& value) {
  fmt::print("{}\n", value.dump());
  std::fflush(stdout);
}

// The next size that somebody asks for; what is none is answered at once. -1 at the end.
std::int64_t read_bytes(const BenchOptions& o) {
  for (std::string line; std::getline(std::cin, line);) {
    std::int64_t bytes = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), bytes);
    if (error == std::errc() && end == line.data() + line.size() && bytes >= 16 && bytes <= o.most && bytes % 16 == 0)
      return bytes;
    answer({{"error", fmt::format("'{}': a line is a number of bytes, a multiple of 16 up to {}", line, o.most)}});
  }
  return -1;
}

void serve(World& world, Bench& bench, const BenchOptions& o) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  for (;;) {
    const std::int64_t own = world.rank() == 0 ? read_bytes(o) : 0;
    world.all_gather(&own, all.data(), sizeof own);
    if (all[0] < 0) return;
    const nlohmann::json row = bench.measure(all[0]);
    if (world.rank() == 0) answer(row);
  }
}

int run(const BenchOptions& o) {
  const GpuSurvey survey = survey_gpus();
  if (static_cast<int>(survey.gpus.size()) * o.ranks_per_gpu < o.ranks) {
    fmt::print(stderr, "{} GPUs wanted, {} found\n", (o.ranks + o.ranks_per_gpu - 1) / o.ranks_per_gpu,
               survey.gpus.size());
    return no_gpus;
  }
  const auto body = [&](World& world) {
    Bench bench(world, o);
    if (o.serve) {
      serve(world, bench, o);
      return bench.sound() ? 0 : 1;
    }
    nlohmann::json found{{"machine", fmt::format("{} {}", o.ranks, survey.gpus.front().name)},
                         {"date", fmt::format("{:%F}", fmt::gmtime(std::time(nullptr)))},
                         {"versions", bench.versions()},
                         {"ranks", o.ranks},
                         {"type", o.type},
                         {"rounds", o.rounds}};
    measure_all(bench, o, found, [&] {
      if (world.rank() == 0 && !o.json.empty()) write_file(o.json, found.dump(1) + "\n");
    });
    return bench.sound() ? 0 : 1;
  };
  const WorldOptions world{.heap_bytes = 1 << 20, .wait_limit = o.wait_limit};
  return o.threads ? run_threads(o.ranks, world, body) : run_processes(o.ranks, world, body);
}

void add_options(CLI::App& app, BenchOptions& o) {
  app.add_option("--ranks", o.ranks, "GPUs")->check(CLI::Range(2, 8))->capture_default_str();
  app.add_option("--ranks-per-gpu", o.ranks_per_gpu,
                 "ranks that share a GPU, to try kernels for more ranks than GPUs: --threads and --no-nccl; set "
                 "CUDA_DEVICE_MAX_CONNECTIONS=32 and CUDA_MODULE_LOADING=EAGER")
      ->check(CLI::Range(1, 8))
      ->capture_default_str();
  app.add_option("--least", o.least, "bytes of the smallest vector")
      ->check(CLI::Range(16, 1 << 30))
      ->capture_default_str();
  app.add_option("--most", o.most, "bytes of the largest vector; sizes double")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--type", o.type, "bf16, fp16 or fp32")->capture_default_str();
  app.add_option("--rounds", o.rounds, "rounds; the median counts")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--runs", o.runs, "calls a graph; a tenth above 8 MiB")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--codecs", o.codecs, "codecs to measure, too, from 64 KiB on: int8 int4+int8 ...");
  app.add_flag(
      "--coded", o.quantized,
      "from 1 MiB on also 8, 6 and 4 bits in groups of 32 and of 128, and rings through int8, flash6 and int4");
  app.add_flag("--ctas-sweep", o.ctas_sweep,
               "also numbers of CTAs, at 1, 8 and 64 MiB: exact, and through int8, flash6 and int4");
  app.add_flag("--errors", o.errors, "at 64 and 256 MiB also what codecs do to whole vectors: largest error, SQNR");
  app.add_option("--only", o.only, "candidates whose name holds one of these texts");
  app.add_option("--json", o.json, "file for the results");
  app.add_option("--wait-limit", o.wait_limit, "seconds that a wait may last")
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  app.add_flag("--threads", o.threads, "ranks are threads, not processes");
  app.add_flag("--rms-norm", o.rms_norm,
               "instead: all-reduces with residual and RMSNorm, beside all-reduces with a kernel behind them that does "
               "the rest; with --sweep also blocks that share a row");
  app.add_option("--hidden", o.hidden, "elements of a row, for --rms-norm; a multiple of 8")
      ->check(CLI::Range(8, 262144))
      ->capture_default_str();
  app.add_flag("--ring", o.ring, "also rings through what --codecs names");
  app.add_flag("--sweep", o.sweep, "also blocks, threads and batches; of codecs, one step, packets, chunks and slots");
  app.add_flag("!--no-nccl", o.nccl, "leave NCCL out");
  app.add_flag(
      "--serve", o.serve,
      "measure vectors as they are asked for on standard input, a line with a number of bytes each, and answer "
      "each with a line of JSON; the ranks wait for the next one within --wait-limit");
}

}  // namespace
}  // namespace imbrex

int main(int argc, char** argv) {
  imbrex::program::set_nccl_environment();
  imbrex::BenchOptions o;
  CLI::App app(
      "All-reduces on this machine's GPUs, microseconds a call. Exits 1 where a result was wrong, 77 where there are "
      "too "
      "few.");
  imbrex::add_options(app, o);
  CLI11_PARSE(app, argc, argv);
  try {
    imbrex::parse_type(o.type);
    for (const std::string& codec : o.codecs) imbrex::parse_codec_pair(codec);
    IMBREX_EXPECTS(o.hidden % 8 == 0, "--hidden {}: it must be a multiple of 8", o.hidden);
    IMBREX_EXPECTS(o.ranks_per_gpu == 1 || (o.threads && !o.nccl),
                   "--ranks-per-gpu {}: ranks that share a GPU have to be --threads, and NCCL takes none (--no-nccl)",
                   o.ranks_per_gpu);
    return imbrex::run(o);
  } catch (const imbrex::Error& error) {
    fmt::print(stderr, "all_reduce_bench: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
