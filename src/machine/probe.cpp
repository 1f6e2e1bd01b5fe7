// This host as a machine.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/blas.hpp"
#include "imbrex/machine.hpp"

namespace imbrex {
namespace {

using Clock = std::chrono::steady_clock;

// Best of repetitions for about `budget` seconds, two at least: the first one warms caches and threads.
template <typename Body>
double best_seconds(double budget, const Body& body) {
  double best = 1e9, spent = 0;
  for (int i = 0; i < 2 || spent < budget; ++i) {
    const auto begin = Clock::now();
    body();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    best = std::min(best, std::max(seconds, 1e-9));
    spent += seconds;
  }
  return best;
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) {
      const auto colon = line.find(": ");
      if (colon != std::string::npos) return line.substr(colon + 2);
    }
  return "unknown CPU";
}

Constant unknown(double value, std::string why) { return {value, Provenance::unverified, std::move(why)}; }

}  // namespace

Machine probe_machine() {
  const unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  const double cores = threads;
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));

  constexpr int n = 384;
  base::reserve_blas(static_cast<int>(threads));
  const std::vector<float> a(n * n, 1.0f), b(n * n, 0.5f);
  std::vector<std::vector<float>> products(threads, std::vector<float>(n * n));
  // As ranks do, all cores multiply at once.
  const double gemm = best_seconds(0.08, [&] {
    std::vector<std::jthread> workers;
    for (std::vector<float>& c : products)
      workers.emplace_back([&] { base::multiply({n, n, n, a.data(), n, b.data(), n, false, 0.0f, c.data(), n}); });
  });
  const double flops = 2.0 * n * n * n / gemm;

  // Larger than most last-level caches, so that memory is what is timed.
  std::vector<char> from(std::size_t{48} << 20, 1), to(from.size());
  const double copy = best_seconds(0.06, [&] { std::memcpy(to.data(), from.data(), from.size()); });
  const double copied = static_cast<double>(from.size()) / copy;

  const std::string gemm_from = fmt::format("OpenBLAS sgemm {0}x{0}x{0} on each of {1} cores at once", n, cores);
  const std::string copy_from = "one thread's memcpy of 48 MiB";

  Machine machine;
  machine.name = "this-host";
  machine.about = fmt::format("{}, {} cores, {:.0f} GiB; ranks are processes that share it", cpu_name(), cores,
                              memory / (1u << 30));
  machine.devices = 64;
  machine.sms = {cores, Provenance::measured, "cores that the operating system offers"};
  machine.memory_bandwidth = {2 * copied, Provenance::measured, copy_from + ", reads plus writes"};
  machine.sm_memory_bandwidth = {2 * copied, Provenance::measured, copy_from + ", reads plus writes"};
  machine.l2_bytes = unknown(8.0 * (1 << 20), "not probed");
  machine.sm_rate[Type::fp32] = {flops, Provenance::measured, gemm_from};
  for (Type type : {Type::bf16, Type::fp16})
    machine.sm_rate[type] = {flops, Provenance::derived, "as fp32: the CPU executor converts, then multiplies in fp32"};
  machine.tiles = {
      {128, 128, unknown(1, "the rate is of whole products"), unknown(0, "not probed"), unknown(0, "not probed"), {}}};
  machine.sustained_ratio = unknown(1, "not probed");
  machine.sustained_onset = unknown(1, "not probed");
  machine.launch_gap = unknown(0, "a CPU queue starts with its thread");
  machine.copy_fixed = unknown(1e-6, "not probed");
  machine.copy_flag = unknown(0, "a store after the copy");
  machine.copy_latency = unknown(0, "memcpy returns when done");
  machine.copy_bandwidth = {copied, Provenance::measured, copy_from};
  machine.store_sm_bandwidth = {copied, Provenance::derived, copy_from};
  machine.store_bandwidth = {copied, Provenance::derived, copy_from};
  machine.egress_bandwidth = {copied, Provenance::derived, copy_from};
  machine.ingress_bandwidth = {copied, Provenance::derived, copy_from};
  machine.link_latency = unknown(1e-7, "not probed");
  machine.flag_latency = unknown(2e-7, "not probed");
  machine.flag_latency_local = unknown(1e-7, "not probed");
  machine.poll = unknown(1e-7, "not probed");
  machine.fence = unknown(0, "a release store");
  machine.collective_sms = unknown(0, "the library thread copies");
  const Curve curve{{{4096, 5e-6}, {1u << 24, 5e-6 + (1u << 24) / copied}},
                    Provenance::derived,
                    "5 us plus wire bytes at the rate of memcpy; not measured"};
  machine.all_gather = machine.reduce_scatter = machine.all_reduce = machine.all_to_all = curve;
  machine.coding_bandwidth = unknown(1e9, "not probed");
  return machine;
}

}  // namespace imbrex
