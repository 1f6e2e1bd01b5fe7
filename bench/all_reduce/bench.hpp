// Times all-reduces on one rank's GPU, candidates in turn, and compares their results first.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "all_reduce/reference.hpp"
#include "collectives/cuda/cuda_collectives.hpp"
#include "imbrex/world.hpp"
#include "program/measure/cuda/call_meter.hpp"
#include "runtime/cuda/raw_memory.hpp"
#ifdef IMBREX_HAVE_LIBRARIES
#include "runtime/cuda/libraries/nccl.hpp"
#endif

namespace imbrex {

struct BenchOptions {
  int ranks = 4, ranks_per_gpu = 1, rounds = 5, runs = 20;
  std::int64_t least = 1024, most = std::int64_t{1} << 30;
  std::string type = "bf16", json;
  std::vector<std::string> codecs, only;
  bool quantized = false, ctas_sweep = false, errors = false, ring = false;
  bool threads = false, sweep = false, nccl = true, serve = false;
  double wait_limit = 10;
  bool rms_norm = false;
  std::int64_t hidden = 8192;
};

enum class Check { bits, bound, own, none };

struct Contender {
  std::string name;
  Check check;
  std::function<void(const void* in, void* out, std::int64_t count, cudaStream_t stream)> call;
  int conversions = 0;                      ///< times that a value is quantized and decoded on its way, at most
  std::function<std::string()> fault = {};  ///< Check::own: what is wrong with this rank's result
};

class RmsNormOperandsOnGpu;

class Bench {
 public:
  /// Collective.
  Bench(World& world, const BenchOptions& options);
  ~Bench();
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  /// Collective: every candidate for vectors of so many bytes. {"bytes", "microseconds": {name: a call}, "errors",
  /// "failed": {name: why}}; what failed was not timed.
  nlohmann::json measure(std::int64_t bytes);

  /// Collective: numbers of CTAs for vectors of so many bytes. {"bytes", "microseconds": {codec or "exact": {ctas: a
  /// call}}}.
  nlohmann::json measure_ctas(std::int64_t bytes);

  /// Collective: the all-reduce with residual and RMSNorm of as many whole rows as so many bytes hold. {"bytes",
  /// "rows", "hidden", "microseconds", "failed"}; null where they hold none.
  nlohmann::json measure_rms_norm(std::int64_t bytes);

  /// Whether no candidate failed so far.
  bool sound() const { return sound_; }

  /// {"nccl", "cuda", "driver"}, as far as they are known.
  nlohmann::json versions() const;

 private:
  void fill();
  std::vector<Contender> candidates(std::int64_t bytes);
  std::vector<Contender> wanted(std::vector<Contender> list) const;
  Contender exact(const std::string& name, const cuda::ExactKnobs& knobs);
  Contender quantized(const std::string& name, const std::string& codec, const cuda::QuantizedKnobs& knobs);
  void add_sweep(std::vector<Contender>& list, std::int64_t bytes);
  void add_quantized(std::vector<Contender>& list, const std::string& codec, bool ring, std::int64_t bytes);

  struct Samples {
    std::vector<double> microseconds;  // of each candidate; 0 for what failed
    nlohmann::json errors = nlohmann::json::object(), failed = nlohmann::json::object();
  };
  void tell(const std::vector<Contender>& list, const Samples& found, nlohmann::json& row, std::string line) const;
  Samples times(const std::vector<Contender>& list, std::int64_t bytes, bool whole);
  void run_once(const Contender& c, std::int64_t count, bool whole, Samples& to);
  std::string verify(const Contender& c, std::int64_t count, bool whole, Samples& to);
  Errors compare(const Contender& c, std::int64_t first, std::int64_t count);
  std::string first_of(const std::string& own);
  float reported();
  void settle(const std::string& name);

  World& world_;
  const BenchOptions& options_;
  Type type_;
  int device_;
  cuda::CudaCollectives collectives_;
#ifdef IMBREX_HAVE_LIBRARIES
  std::unique_ptr<runtime::Communicator> nccl_;
#endif
  test::Stream stream_;
  cuda::RawMemory in_, out_;
  Reference reference_;
  cuda::CallMeter meter_;
  std::vector<std::string> timed_;              // what the meter waits for, by name
  std::shared_ptr<RmsNormOperandsOnGpu> norm_;  // once asked for
  bool sound_ = true;
};

}  // namespace imbrex
