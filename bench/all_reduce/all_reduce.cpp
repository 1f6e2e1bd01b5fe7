// All-reduces on GPUs, ours beside NCCL's, in turn within one run: captured in graphs of several calls, ranks aligned
// before each replay, the slowest rank counted, the median of the rounds. Results are compared with a reference first.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "base/convert.hpp"
#include "collectives/cuda/cuda_collectives.hpp"
#include "execute/cuda/graph.hpp"
#include "gpu/reduce_vectors.hpp"
#include "imbrex/gpu.hpp"
#include "imbrex/world.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/device.hpp"
#ifdef IMBREX_HAVE_LIBRARIES
#include "runtime/cuda/nccl.hpp"
#endif

namespace imbrex {
namespace {

constexpr int no_gpus = 77;

struct Options {
  int ranks = 4, rounds = 9, runs = 20;
  std::int64_t least = 1024, most = std::int64_t{1} << 30;
  std::string type = "bf16", json, only, collective = "all_reduce";
  std::vector<std::string> codecs;
  bool threads = false, sweep = false, nccl = true, ring = false;
  double wait_limit = 10;
};

enum class Check { bits, bound, none };

struct Candidate {
  std::string name;
  Check check;
  std::function<void(const void* in, void* out, std::int64_t count, cudaStream_t stream)> call;
};

class Event {
 public:
  Event() { IMBREX_CUDA_TRY(cudaEventCreate(&event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Small all-reduces in a row, which bring the ranks together and give the host time to queue what is timed.
class Lead {
 public:
  Lead(cuda::CudaCollectives& collectives, cudaStream_t stream)
      : memory_(cuda::raw_memory(256)),
        graph_(stream, 50, [&] { collectives.all_reduce(memory_.get(), memory_.get(), 64, Type::bf16, stream); }) {}
  void launch(cudaStream_t stream) const { graph_.launch(stream); }

 private:
  cuda::RawMemory memory_;
  cuda::Graph graph_;
};

class Bench {
 public:
  Bench(World& world, const Options& options)
      : world_(world),
        options_(options),
        type_(parse_type(options.type)),
        device_(runtime::select_device(world)),
        collectives_(world, device_),
#ifdef IMBREX_HAVE_LIBRARIES
        nccl_(options.nccl ? std::make_unique<runtime::Communicator>(world, device_) : nullptr),
#endif
        in_(cuda::raw_memory(static_cast<std::size_t>(options.most * blocks_a_rank()) + 256)),
        out_(cuda::raw_memory(static_cast<std::size_t>(options.most * blocks_a_rank()) + 256)),
        want_(test::expected_stretch(type_, world.size(), 1, false)),
        sums_(static_cast<std::size_t>(test::reduce_period)) {
    for (int rank = 0; rank < world.size(); ++rank) {
      std::vector<float> part(sums_.size());
      to_float(type_, test::input_stretch(type_, rank, 1, false).data(), part.data(), std::ssize(part));
      std::transform(part.begin(), part.end(), sums_.begin(), sums_.begin(),
                     [](float p, double sum) { return sum + static_cast<double>(p); });
    }
    fill();
  }

  nlohmann::json run() {
    IMBREX_CUDA_TRY(cudaMemset(out_.get(), 0, 256));
    collectives_.all_reduce(out_.get(), out_.get(), 64, Type::bf16, stream_);
    collectives_.finish(stream_);
    lead_ = std::make_unique<Lead>(collectives_, stream_);
    nlohmann::json rows = nlohmann::json::array();
    for (std::int64_t bytes = options_.least; bytes <= options_.most; bytes *= 2) rows.push_back(measure(bytes));
    lead_.reset();
    return rows;
  }

 private:
  std::int64_t blocks_a_rank() const { return options_.collective == "all_reduce" ? 1 : world_.size(); }

  void fill() {
    const std::vector<std::byte> stretch = test::input_stretch(type_, world_.rank(), 1, false);
    const auto bytes = static_cast<std::size_t>(options_.most * blocks_a_rank());
    auto* in = static_cast<std::byte*>(in_.get());
    std::size_t done = std::min(bytes, stretch.size());
    IMBREX_CUDA_TRY(cudaMemcpy(in, stretch.data(), done, cudaMemcpyHostToDevice));
    // Whole stretches, doubled: no copy overlaps its source.
    for (std::size_t n = 0; done < bytes; done += n) {
      n = std::min(done, bytes - done);
      IMBREX_CUDA_TRY(cudaMemcpy(in + done, in, n, cudaMemcpyDeviceToDevice));
    }
    IMBREX_CUDA_TRY(cudaDeviceSynchronize());
  }

  std::vector<Candidate> candidates(std::int64_t bytes) {
    if (options_.collective != "all_reduce") return exchanges();
    std::vector<Candidate> list;
    const auto ours = [&](const std::string& name, const cuda::ExactKnobs& knobs) {
      list.push_back(
          {name, Check::bits, [this, knobs](const void* in, void* out, std::int64_t count, cudaStream_t stream) {
             collectives_.all_reduce(in, out, count, type_, stream, knobs);
           }});
    };
    using cuda::ExactAlgorithm;
    ours("auto", {});
    if (bytes <= (4 << 20)) ours("one_shot", {ExactAlgorithm::one_shot});
    if (bytes >= (16 << 10)) ours("two_shot", {ExactAlgorithm::two_shot});
    if (options_.sweep) {
      if (bytes <= (1 << 20))
        for (const std::uint32_t threads : {64u, 128u, 256u, 512u})
          ours(fmt::format("one_shot t{}", threads), {ExactAlgorithm::one_shot, 0, threads});
      if (bytes >= (64 << 10))
        for (const std::uint32_t blocks : {64u, 96u, 128u, 132u})
          for (const std::uint32_t threads : {256u, 512u})
            for (const std::uint32_t batch : {1u, 2u})
              ours(fmt::format("two_shot b{} t{} x{}", blocks, threads, batch),
                   {ExactAlgorithm::two_shot, blocks, threads, batch});
      if (bytes >= (16 << 20))
        for (const std::uint32_t batch : {1u, 2u})
          for (const std::uint32_t slots : {3u, 4u, 6u})
            ours(fmt::format("two_shot x{} s{}", batch, slots), {ExactAlgorithm::two_shot, 0, 0, batch, slots});
    }
    if (bytes >= (64 << 10))
      for (const std::string& codec : options_.codecs) coded(list, codec, bytes);
#ifdef IMBREX_HAVE_LIBRARIES
    if (nccl_ != nullptr)
      list.push_back({"nccl", Check::none, [this](const void* in, void* out, std::int64_t count, cudaStream_t stream) {
                        nccl_->all_reduce(in, out, static_cast<std::size_t>(count), type_, stream);
                      }});
#endif
    if (!options_.only.empty())
      std::erase_if(list, [&](const Candidate& c) { return c.name.find(options_.only) == std::string::npos; });
    return list;
  }

  // Of blocks; their results are what gpu_exchange_test looks at.
  std::vector<Candidate> exchanges() {
    std::vector<Candidate> list;
    for (const ExchangeKind kind : {ExchangeKind::reduce_scatter, ExchangeKind::all_gather, ExchangeKind::all_to_all}) {
      if (name_of(kind) != options_.collective) continue;
      list.push_back(
          {"packets", Check::none, [this, kind](const void* in, void* out, std::int64_t count, cudaStream_t stream) {
             collectives_.exchange(kind, in, out, count, type_, stream);
           }});
#ifdef IMBREX_HAVE_LIBRARIES
      if (nccl_ == nullptr) continue;
      list.push_back(
          {"nccl", Check::none, [this, kind](const void* in, void* out, std::int64_t count, cudaStream_t stream) {
             const auto n = static_cast<std::size_t>(count);
             if (kind == ExchangeKind::reduce_scatter)
               nccl_->reduce_scatter(in, out, n, type_, stream);
             else if (kind == ExchangeKind::all_gather)
               nccl_->all_gather(in, out, n, type_, stream);
             else
               nccl_->all_to_all(in, out, n, type_, stream);
           }});
#endif
    }
    return list;
  }

  void coded(std::vector<Candidate>& list, const std::string& codec, std::int64_t bytes) {
    const CodecPair pair = parse_codec_pair(codec);
    const auto add = [&](const std::string& name, const cuda::CodedKnobs& knobs) {
      list.push_back(
          {name, Check::bound, [this, pair, knobs](const void* in, void* out, std::int64_t count, cudaStream_t stream) {
             collectives_.all_reduce(in, out, count, type_, pair, stream, knobs);
           }});
    };
    add(codec, {});
    cuda::CodedKnobs ring;
    ring.steps = cuda::CodedSteps::ring;
    if (options_.ring) add(codec + " ring", ring);
    if (!options_.sweep || bytes < (1 << 20)) return;
    for (const std::uint32_t batch : {1u, 2u}) add(fmt::format("{} x{}", codec, batch), {0, 0, batch});
    for (const std::uint32_t blocks : {32u, 48u, 64u, 96u, 132u})
      for (const std::uint32_t workers : {256u, 480u})
        add(fmt::format("{} b{} w{}", codec, blocks, workers), {blocks, workers});
  }

  float reported() {
    const cuda::CommReport own = collectives_.report();
    std::vector<cuda::CommReport> all(static_cast<std::size_t>(world_.size()));
    world_.all_gather(&own, all.data(), sizeof own);
    float worst = 0;
    for (const cuda::CommReport& one : all) worst = std::max(worst, std::bit_cast<float>(one.error_bits));
    return worst;
  }

  void verify(const Candidate& c, std::int64_t count) {
    const float bound = c.check == Check::bound ? reported() : 0;
    if (c.check != Check::none) compare(c, count, bound);
  }

  // Both ends, 4 MiB each: the same bits, or within the bound that the call reported.
  void compare(const Candidate& c, std::int64_t count, float bound) {
    const auto element = static_cast<std::int64_t>(size_of(type_));
    const std::int64_t most = (4 << 20) / element;
    std::vector<std::byte> host(static_cast<std::size_t>(std::min(count, most) * element));
    for (const std::int64_t first :
         {std::int64_t{0}, std::max<std::int64_t>(0, count - most) / test::reduce_period * test::reduce_period}) {
      const std::int64_t n = std::min(count - first, most);
      IMBREX_CUDA_TRY(cudaMemcpy(host.data(), static_cast<std::byte*>(out_.get()) + first * element,
                                 static_cast<std::size_t>(n * element), cudaMemcpyDeviceToHost));
      std::int64_t wrong = -1;
      if (c.check == Check::bits) {
        wrong = test::first_difference(type_, host.data(), n, want_);
      } else {
        std::vector<float> values(static_cast<std::size_t>(n));
        to_float(type_, host.data(), values.data(), n);
        for (std::int64_t i = n; i-- > 0;)
          if (!(std::fabs(static_cast<double>(values[static_cast<std::size_t>(i)]) -
                          sums_[static_cast<std::size_t>(i % test::reduce_period)]) <= static_cast<double>(bound)))
            wrong = i;
      }
      if (wrong >= 0)
        throw Error(ErrorCode::runtime_failure,
                    fmt::format("{} of {} elements: element {} is wrong", c.name, count, first + wrong));
    }
  }

  nlohmann::json measure(std::int64_t bytes) {
    const std::int64_t count = bytes / static_cast<std::int64_t>(size_of(type_));
    const int runs = bytes <= (8 << 20) ? options_.runs : std::max(2, options_.runs / 10);
    const std::vector<Candidate> list = candidates(bytes);
    std::vector<std::unique_ptr<cuda::Graph>> graphs;
    for (const Candidate& c : list) {
      IMBREX_CUDA_TRY(cudaMemsetAsync(out_.get(), 0xa5, static_cast<std::size_t>(bytes), stream_));
      c.call(in_.get(), out_.get(), count, stream_);
      settle(c.name);
      verify(c, count);
      graphs.push_back(
          std::make_unique<cuda::Graph>(stream_, runs, [&] { c.call(in_.get(), out_.get(), count, stream_); }));
    }
    std::vector<std::vector<double>> times(list.size());
    for (int round = -1; round < options_.rounds; ++round)
      for (std::size_t i = 0; i < list.size(); ++i) {
        const double seconds = slowest(time(list[i].name, *graphs[i])) / runs;
        if (round >= 0) times[i].push_back(seconds);
      }
    nlohmann::json row{{"bytes", bytes}, {"microseconds", nlohmann::json::object()}};
    std::string line = fmt::format("{:>10}", bytes);
    for (std::size_t i = 0; i < list.size(); ++i) {
      std::sort(times[i].begin(), times[i].end());
      const double us = times[i][times[i].size() / 2] * 1e6;
      row["microseconds"][list[i].name] = std::round(us * 100) / 100;
      line += fmt::format("  {} {:.2f}", list[i].name, us);
    }
    if (world_.rank() == 0) {
      fmt::print("{}\n", line);
      std::fflush(stdout);
    }
    return row;
  }

  // NOTE: NCCL's kernels wait without a limit, and nothing ends them but the process.
  void settle(const std::string& name) {
    const auto begin = std::chrono::steady_clock::now();
    while (cudaStreamQuery(stream_) == cudaErrorNotReady)
      if (std::chrono::steady_clock::now() - begin > std::chrono::duration<double>(3 * options_.wait_limit)) {
        fmt::print(stderr, "rank {}: {} does not end\n", world_.rank(), name);
        std::_Exit(3);
      }
    collectives_.finish(stream_);
  }

  double time(const std::string& name, const cuda::Graph& graph) {
    world_.barrier();
    lead_->launch(stream_);
    IMBREX_CUDA_TRY(cudaEventRecord(begin_, stream_));
    graph.launch(stream_);
    IMBREX_CUDA_TRY(cudaEventRecord(end_, stream_));
    settle(name);
    float milliseconds = 0;
    IMBREX_CUDA_TRY(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return static_cast<double>(milliseconds) * 1e-3;
  }

  double slowest(double seconds) {
    std::vector<double> all(static_cast<std::size_t>(world_.size()));
    world_.all_gather(&seconds, all.data(), sizeof seconds);
    return *std::max_element(all.begin(), all.end());
  }

  World& world_;
  const Options& options_;
  Type type_;
  int device_;
  cuda::CudaCollectives collectives_;
#ifdef IMBREX_HAVE_LIBRARIES
  std::unique_ptr<runtime::Communicator> nccl_;
#endif
  test::Stream stream_;
  Event begin_, end_;
  cuda::RawMemory in_, out_;
  std::vector<std::byte> want_;
  std::vector<double> sums_;  // without rounding
  std::unique_ptr<Lead> lead_;
};

int run(const Options& o) {
  const GpuSurvey survey = survey_gpus();
  if (static_cast<int>(survey.gpus.size()) < o.ranks) {
    fmt::print("{} GPUs wanted, {} found\n", o.ranks, survey.gpus.size());
    return no_gpus;
  }
  const auto body = [&](World& world) {
    Bench bench(world, o);
    const nlohmann::json rows = bench.run();
    if (world.rank() == 0 && !o.json.empty())
      std::ofstream(o.json) << nlohmann::json{{"gpu", survey.gpus.front().name}, {"ranks", o.ranks},   {"type", o.type},
                                              {"collective", o.collective},      {"rounds", o.rounds}, {"rows", rows}}
                                   .dump(1)
                            << '\n';
    return 0;
  };
  const WorldOptions world{.heap_bytes = 1 << 20, .wait_limit = o.wait_limit};
  return o.threads ? run_threads(o.ranks, world, body) : run_processes(o.ranks, world, body);
}

}  // namespace
}  // namespace imbrex

int main(int argc, char** argv) {
  imbrex::Options o;
  CLI::App app("All-reduces on this machine's GPUs, microseconds a call; exits 77 where there are too few.");
  app.add_option("--ranks", o.ranks, "GPUs")->check(CLI::Range(2, 8))->capture_default_str();
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
  app.add_option("--collective", o.collective, "sizes are then of a block")
      ->check(CLI::IsMember({"all_reduce", "reduce_scatter", "all_gather", "all_to_all"}))
      ->capture_default_str();
  app.add_option("--only", o.only, "candidates whose name holds this text");
  app.add_option("--json", o.json, "file for the results");
  app.add_option("--wait-limit", o.wait_limit, "seconds that a wait may last")
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  app.add_flag("--threads", o.threads, "ranks are threads, not processes");
  app.add_flag("--ring", o.ring, "also rings through the codecs");
  app.add_flag("--sweep", o.sweep, "also blocks, threads and batches");
  app.add_flag("!--no-nccl", o.nccl, "leave NCCL out");
  CLI11_PARSE(app, argc, argv);
  try {
    return imbrex::run(o);
  } catch (const imbrex::Error& error) {
    fmt::print(stderr, "all_reduce_bench: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
