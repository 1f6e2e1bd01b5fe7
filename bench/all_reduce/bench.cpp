#include "all_reduce/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <numeric>

#include "base/check.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/device.hpp"

namespace imbrex {
namespace {

#ifdef IMBREX_HAVE_LIBRARIES
std::vector<int> all_ranks(const World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}
#endif

constexpr std::int64_t kib = 1024, mib = 1024 * kib;
// What --coded measures, and what of it in a ring, too.
const std::vector<std::string> standard_codecs{"int8", "int8-g128", "fp8-g128", "int6", "flash6", "int4-g128+int8-g128",
                                               "int4", "flash4",    "int4-g128"};
const std::vector<std::string> ring_codecs{"int8", "flash6", "int4"};
constexpr std::uint32_t cta_counts[] = {8, 16, 24, 32, 48, 64, 96, 132};

double rounded(double value) { return std::round(value * 100) / 100; }

bool is_in(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

}  // namespace

Bench::Bench(World& world, const BenchOptions& options)
    : world_(world),
      options_(options),
      type_(parse_type(options.type)),
      device_(runtime::select_device(world, options.ranks_per_gpu)),
      collectives_(world, device_, {.ranks_per_gpu = options.ranks_per_gpu}),
#ifdef IMBREX_HAVE_LIBRARIES
      nccl_(options.nccl ? std::make_unique<runtime::Communicator>(world, device_, all_ranks(world)) : nullptr),
#endif
      stream_(world),
      in_(cuda::raw_memory(static_cast<std::size_t>(options.most) + 256)),
      out_(cuda::raw_memory(static_cast<std::size_t>(options.most) + 256)),
      reference_(type_, world.size()),
      meter_(world, collectives_, stream_, [this](std::size_t i) { settle(timed_[i]); }) {
  fill();
  // Where ranks share a GPU, taking memory waits for whatever runs there.
  world.barrier();
}

Bench::~Bench() = default;

void Bench::fill() {
  const std::vector<std::byte> stretch = test::input_stretch(type_, world_.rank(), 1, false);
  const auto bytes = static_cast<std::size_t>(options_.most);
  auto* in = static_cast<std::byte*>(in_.get());
  std::size_t done = std::min(bytes, stretch.size());
  cuda::upload(in, stretch.data(), done);
  // Whole stretches, doubled: no copy overlaps its source.
  for (std::size_t n = 0; done < bytes; done += n) {
    n = std::min(done, bytes - done);
    IMBREX_CUDA_TRY(cudaMemcpy(in + done, in, n, cudaMemcpyDeviceToDevice));
  }
  IMBREX_CUDA_TRY(cudaDeviceSynchronize());
}

nlohmann::json Bench::versions() const {
  nlohmann::json found;
  const auto dotted = [](int v, int thousands) { return fmt::format("{}.{}", v / thousands, v % thousands / 10); };
  int version = 0;
  if (cudaRuntimeGetVersion(&version) == cudaSuccess) found["cuda"] = dotted(version, 1000);
#ifdef IMBREX_HAVE_LIBRARIES
  if (nccl_ != nullptr && runtime::nccl().get_version(&version) == ncclSuccess)
    found["nccl"] = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
#endif
  std::ifstream driver("/proc/driver/nvidia/version");
  for (std::string word; driver >> word;)
    if (std::count(word.begin(), word.end(), '.') >= 1 && word.find_first_not_of("0123456789.") == std::string::npos) {
      found["driver"] = word;
      break;
    }
  return found;
}

Contender Bench::exact(const std::string& name, const cuda::ExactKnobs& knobs) {
  return {name, Check::bits, [this, knobs](const void* in, void* out, std::int64_t count, cudaStream_t stream) {
            collectives_.all_reduce(in, out, count, type_, stream, knobs);
          }};
}

// Two-shot quantizes every part and every sum; a ring quantizes a partial sum at each hop, and the sum once more.
Contender Bench::quantized(const std::string& name, const std::string& codec, const cuda::QuantizedKnobs& knobs) {
  const CodecPair pair = parse_codec_pair(codec);
  return {name, Check::bound,
          [this, pair, knobs](const void* in, void* out, std::int64_t count, cudaStream_t stream) {
            collectives_.all_reduce(in, out, count, type_, pair, stream, knobs);
          },
          knobs.steps == cuda::QuantizedSteps::ring ? world_.size() : 2};
}

std::vector<Contender> Bench::wanted(std::vector<Contender> list) const {
  if (!options_.only.empty())
    std::erase_if(list, [&](const Contender& c) {
      return std::none_of(options_.only.begin(), options_.only.end(),
                          [&](const std::string& text) { return c.name.find(text) != std::string::npos; });
    });
  return list;
}

std::vector<Contender> Bench::candidates(std::int64_t bytes) {
  std::vector<Contender> list;
  using cuda::ExactAlgorithm;
  list.push_back(exact("auto", {}));
  if (bytes <= 4 * mib) list.push_back(exact("one_shot", {ExactAlgorithm::one_shot}));
  if (bytes >= 16 * kib) list.push_back(exact("two_shot", {ExactAlgorithm::two_shot}));
  if (options_.sweep) add_sweep(list, bytes);
  if (bytes >= 64 * kib)
    for (const std::string& codec : options_.codecs)
      add_quantized(list, codec, options_.ring || (options_.quantized && is_in(ring_codecs, codec)), bytes);
  if (options_.quantized && bytes >= mib)
    for (const std::string& codec : standard_codecs)
      if (!is_in(options_.codecs, codec)) add_quantized(list, codec, is_in(ring_codecs, codec), bytes);
#ifdef IMBREX_HAVE_LIBRARIES
  if (nccl_ != nullptr)
    list.push_back({"nccl", Check::none, [this](const void* in, void* out, std::int64_t count, cudaStream_t stream) {
                      nccl_->all_reduce(in, out, static_cast<std::size_t>(count), type_, stream);
                    }});
#endif
  return wanted(std::move(list));
}

void Bench::add_sweep(std::vector<Contender>& list, std::int64_t bytes) {
  using cuda::ExactAlgorithm;
  if (bytes <= mib)
    for (const std::uint32_t threads : {64u, 128u, 256u, 512u})
      list.push_back(exact(fmt::format("one_shot t{}", threads), {ExactAlgorithm::one_shot, 0, threads}));
  std::vector<std::uint32_t> batches;
  for (std::uint32_t batch = 1; batch <= cuda::most_batch(static_cast<std::uint32_t>(options_.ranks)); batch *= 2)
    batches.push_back(batch);
  if (bytes >= 64 * kib)
    for (const std::uint32_t blocks : {64u, 96u, 128u, 132u})
      for (const std::uint32_t threads : {256u, 512u})
        for (const std::uint32_t batch : batches)
          list.push_back(exact(fmt::format("two_shot b{} t{} x{}", blocks, threads, batch),
                               {ExactAlgorithm::two_shot, blocks, threads, batch}));
  if (bytes >= 16 * mib)
    for (const std::uint32_t batch : batches)
      for (const std::uint32_t slots : {3u, 4u, 6u})
        list.push_back(
            exact(fmt::format("two_shot x{} s{}", batch, slots), {ExactAlgorithm::two_shot, 0, 0, batch, slots}));
}

void Bench::add_quantized(std::vector<Contender>& list, const std::string& codec, bool ring, std::int64_t bytes) {
  list.push_back(quantized(codec, codec, {}));
  cuda::QuantizedKnobs around;
  around.steps = cuda::QuantizedSteps::ring;
  if (ring) list.push_back(quantized(codec + " ring", codec, around));
  if (!options_.sweep) return;
  const bool packets = cuda::quantized_packets_kernel(type_, static_cast<std::uint32_t>(world_.size()),
                                                      parse_codec_pair(codec), false) != nullptr;
  for (const cuda::QuantizedWay way : {cuda::QuantizedWay::packets, cuda::QuantizedWay::copies}) {
    if (way == cuda::QuantizedWay::packets && (!packets || bytes > cuda::most_packet_vector)) continue;
    cuda::QuantizedKnobs knobs;
    knobs.way = way;
    list.push_back(quantized(codec + (way == cuda::QuantizedWay::packets ? " packets" : " copies"), codec, knobs));
  }
  cuda::QuantizedKnobs once;
  once.steps = cuda::QuantizedSteps::one_shot;
  list.push_back(quantized(codec + " one step", codec, once));
  if (bytes < mib) return;
  for (const std::uint32_t span : {512u, 1024u, 1536u, 2048u})
    for (const std::uint32_t slots : {4u, 0u})
      list.push_back(quantized(fmt::format("{} span {} s{}", codec, span, slots), codec, {0, span, slots}));
}

float Bench::reported() {
  const cuda::CommReport own = collectives_.report();
  std::vector<cuda::CommReport> all(static_cast<std::size_t>(world_.size()));
  world_.all_gather(&own, all.data(), sizeof own);
  float worst = 0;
  for (const cuda::CommReport& one : all) worst = std::max(worst, std::bit_cast<float>(one.error_bits));
  return worst;
}

// What the first rank that has something to say says, on all ranks.
std::string Bench::first_of(const std::string& own) {
  std::array<char, 256> mine{};
  own.copy(mine.data(), mine.size() - 1);
  std::vector<std::array<char, 256>> all(static_cast<std::size_t>(world_.size()));
  world_.all_gather(mine.data(), all.data(), mine.size());
  for (const std::array<char, 256>& one : all)
    if (one[0] != 0) return one.data();
  return {};
}

// What is wrong with a result, on all ranks: not the bits of exact sums, or further off than the call reported. Both
// ends are looked at, or the whole vector; then `to` has what a codec did to all ranks' results.
std::string Bench::verify(const Contender& c, std::int64_t count, bool whole, Samples& to) {
  if (c.check == Check::none) return {};
  if (c.check == Check::own) return first_of(c.fault());
  const std::int64_t together = test::reduce_period * 32;  // elements looked at
  const double bound = c.check == Check::bound ? static_cast<double>(reported()) : 0;
  Errors own;
  for (std::int64_t first = 0; first < count; first += together) {
    const bool inner = first > 0 && first + together < count;
    if (!inner || whole) own.add(compare(c, first, std::min(together, count - first)));
  }
  const std::string fault =
      first_of(own.largest <= bound ? ""
                                    : fmt::format("rank {}: an element of {} is {} off, at most {} is right",
                                                  world_.rank(), count, own.largest, bound));
  if (!fault.empty() || !whole || c.check == Check::bits) return fault;
  std::vector<Errors> all(static_cast<std::size_t>(world_.size()));
  world_.all_gather(&own, all.data(), sizeof own);
  Errors sum;
  for (const Errors& one : all) sum.add(one);
  to.errors[c.name] = {{"conversions", c.conversions},
                       {"largest_error", sum.largest},
                       {"bound", bound},
                       {"sqnr_db", rounded(sum.sqnr_db())}};
  return {};
}

// Elements from `first` on, which begins a stretch.
Errors Bench::compare(const Contender& c, std::int64_t first, std::int64_t count) {
  const auto element = static_cast<std::int64_t>(size_of(type_));
  std::vector<std::byte> host(static_cast<std::size_t>(count * element));
  IMBREX_CUDA_TRY(cudaMemcpy(host.data(), static_cast<std::byte*>(out_.get()) + first * element, host.size(),
                             cudaMemcpyDeviceToHost));
  if (c.check == Check::bound) return reference_.errors(host.data(), count);
  Errors e;
  if (reference_.first_wrong(host.data(), count) >= 0) {
    e = reference_.errors(host.data(), count);
    e.largest = std::max(e.largest, std::numeric_limits<double>::min());  // the bits count, not the distance
  }
  return e;
}

nlohmann::json Bench::measure(std::int64_t bytes) {
  const std::vector<Contender> list = candidates(bytes);
  const bool whole = options_.errors && (bytes == 64 * mib || bytes == 256 * mib);
  nlohmann::json row{{"bytes", bytes}};
  tell(list, times(list, bytes, whole), row, fmt::format("{:>10}", bytes));
  return row;
}

// Completes a result's row, and prints it.
void Bench::tell(const std::vector<Contender>& list, const Samples& found, nlohmann::json& row,
                 std::string line) const {
  row["microseconds"] = nlohmann::json::object();
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (found.failed.contains(list[i].name)) continue;
    row["microseconds"][list[i].name] = rounded(found.microseconds[i]);
    line += fmt::format("  {} {:.2f}", list[i].name, found.microseconds[i]);
  }
  for (const auto& [name, e] : found.errors.items())
    line += fmt::format("\n{:>10}  {}: quantized {} times, at most {:.4f} off (bound {:.4f}), {:.2f} dB", "", name,
                        e["conversions"].get<int>(), e["largest_error"].get<double>(), e["bound"].get<double>(),
                        e["sqnr_db"].get<double>());
  if (!found.errors.empty()) row["errors"] = found.errors;
  if (!found.failed.empty()) row["failed"] = found.failed;
  if (world_.rank() == 0 && !options_.serve) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }
}

nlohmann::json Bench::measure_ctas(std::int64_t bytes) {
  std::vector<Contender> list;
  for (const std::uint32_t ctas : cta_counts) {
    list.push_back(exact(fmt::format("exact/{}", ctas), {cuda::ExactAlgorithm::two_shot, ctas}));
    for (const std::string& codec : ring_codecs)
      list.push_back(quantized(fmt::format("{}/{}", codec, ctas), codec, {ctas}));
  }
  list = wanted(std::move(list));
  const Samples found = times(list, bytes, false);
  nlohmann::json row{{"bytes", bytes}, {"microseconds", nlohmann::json::object()}};
  std::string line = fmt::format("{:>10}  by CTAs:", bytes);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (found.failed.contains(list[i].name)) continue;
    const std::size_t slash = list[i].name.find('/');
    row["microseconds"][list[i].name.substr(0, slash)][list[i].name.substr(slash + 1)] = rounded(found.microseconds[i]);
    line += fmt::format("  {} {:.2f}", list[i].name, found.microseconds[i]);
  }
  if (!found.failed.empty()) row["failed"] = found.failed;
  if (world_.rank() == 0) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }
  return row;
}

// Notes down what is refused, and what is wrong.
void Bench::run_once(const Contender& c, std::int64_t count, bool whole, Samples& to) {
  std::string fault;
  try {
    IMBREX_CUDA_TRY(cudaMemsetAsync(out_.get(), 0xa5, static_cast<std::size_t>(count) * size_of(type_), stream_));
    c.call(in_.get(), out_.get(), count, stream_);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_input) throw;
    fault = error.what();
  }
  settle(c.name);
  if (fault.empty()) fault = verify(c, count, whole, to);
  if (fault.empty()) return;
  to.failed[c.name] = fault;
  sound_ = false;
  if (world_.rank() == 0) fmt::print(stderr, "{} of {} elements: {}\n", c.name, count, fault);
}

// Medians of the rounds.
Bench::Samples Bench::times(const std::vector<Contender>& list, std::int64_t bytes, bool whole) {
  const std::int64_t count = bytes / static_cast<std::int64_t>(size_of(type_));
  Samples found;
  std::vector<cuda::CallMeter::Call> calls;
  timed_.clear();
  for (const Contender& c : list) {
    run_once(c, count, whole, found);
    timed_.push_back(c.name);
    calls.push_back(found.failed.contains(c.name) ? cuda::CallMeter::Call()
                                                  : [&] { c.call(in_.get(), out_.get(), count, stream_); });
  }
  for (const double seconds : meter_.times(calls, cuda::CallMeter::runs_for(bytes, options_.runs), options_.rounds))
    found.microseconds.push_back(seconds * 1e6);
  return found;
}

// NOTE: NCCL's kernels wait without a limit, and nothing ends them but the process.
void Bench::settle(const std::string& name) {
  const auto begin = std::chrono::steady_clock::now();
  while (cudaStreamQuery(stream_) == cudaErrorNotReady)
    if (std::chrono::steady_clock::now() - begin > std::chrono::duration<double>(3 * options_.wait_limit)) {
      fmt::print(stderr, "rank {}: {} does not end\n", world_.rank(), name);
      std::_Exit(3);
    }
  collectives_.finish(stream_);
}

}  // namespace imbrex
