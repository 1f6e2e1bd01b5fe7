// NVSHMEM's calls, timed as `imbrex bench shmem` times its own: a PE that bench/shmem/peers.py starts twice.
//
// usage: nvshmem_peer PE ROUNDS [GPU]
//
// PE 0 prints "id HEX", which PE 1 reads as its first line. Cases follow from standard input, a line each:
// MEASURE CALL SCOPE BLOCKS THREADS BYTES CALLS. PE 0 answers, in their order: MICROSECONDS CYCLES, medians over
// rounds in which the cases take turns; then "right", if what came is what was sent.
#include <nvshmem.h>
#include <nvshmemx.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr std::uint64_t largest = 4 << 20, limit_ns = 10'000'000'000;
constexpr int most_blocks = 32, apart = 16;

void expect(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "nvshmem_peer: %s: %s\n", what, cudaGetErrorString(status));
  std::exit(3);
}

enum class Call { put, get, p, g, put_signal, add, fetch_add, fence, quiet };
enum class Scope { thread, warp, block };

struct Case {
  std::string measure;
  Call call;
  Scope scope;
  int blocks, threads;
  std::uint64_t bytes;
  int calls;
};

struct Span {
  std::uint64_t begin, returned, end, cycles;
};

struct Arguments {
  std::uint64_t *to, *from, *signals, *echo, *counter, *scratch;
  Span* spans;
  std::uint64_t bytes, before;
  int calls, warm, peer;
  bool leads, each;
};

__device__ std::uint64_t now_ns() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

template <Scope scope>
__device__ void meet() {
  if (scope == Scope::warp) __syncwarp();
  if (scope == Scope::block) __syncthreads();
}

template <Scope scope>
__device__ bool leader() {
  return scope == Scope::thread || threadIdx.x == 0;
}

template <Call call, Scope scope>
__device__ void make_call(const Arguments& a, std::uint64_t number, std::uint64_t value) {
  const std::uint64_t words = a.bytes / 8;
  std::uint64_t *to = a.to + blockIdx.x * words, *from = a.from + blockIdx.x * words;
  std::uint64_t* signal = a.signals + blockIdx.x * apart;
  if constexpr (call == Call::put) {
    if constexpr (scope == Scope::thread) nvshmem_uint64_put_nbi(to, from, words, a.peer);
    if constexpr (scope == Scope::warp) nvshmemx_uint64_put_nbi_warp(to, from, words, a.peer);
    if constexpr (scope == Scope::block) nvshmemx_uint64_put_nbi_block(to, from, words, a.peer);
  } else if constexpr (call == Call::get) {
    if constexpr (scope == Scope::thread) nvshmem_uint64_get(to, from, words, a.peer);
    if constexpr (scope == Scope::warp) nvshmemx_uint64_get_warp(to, from, words, a.peer);
    if constexpr (scope == Scope::block) nvshmemx_uint64_get_block(to, from, words, a.peer);
  } else if constexpr (call == Call::p) {
    const int step = scope == Scope::thread ? 1 : blockDim.x, first = scope == Scope::thread ? 0 : threadIdx.x;
    for (std::uint64_t i = first; i < words; i += step) nvshmem_uint64_p(to + i, from[i], a.peer);
  } else if constexpr (call == Call::g) {
    const int step = scope == Scope::thread ? 1 : blockDim.x, first = scope == Scope::thread ? 0 : threadIdx.x;
    for (std::uint64_t i = first; i < words; i += step) to[i] = nvshmem_uint64_g(from + i, a.peer);
  } else if constexpr (call == Call::put_signal) {
    const std::uint64_t signal_value = a.before + number;
    if constexpr (scope == Scope::thread)
      nvshmem_uint64_put_signal(to, from, words, signal, signal_value, NVSHMEM_SIGNAL_SET, a.peer);
    if constexpr (scope == Scope::warp)
      nvshmemx_uint64_put_signal_warp(to, from, words, signal, signal_value, NVSHMEM_SIGNAL_SET, a.peer);
    if constexpr (scope == Scope::block)
      nvshmemx_uint64_put_signal_block(to, from, words, signal, signal_value, NVSHMEM_SIGNAL_SET, a.peer);
  } else if constexpr (call == Call::add) {
    nvshmem_uint64_atomic_add(a.scratch + blockIdx.x * apart, 1, a.peer);
  } else if constexpr (call == Call::fetch_add) {
    const std::uint64_t seen = nvshmem_uint64_atomic_fetch_add(a.scratch + blockIdx.x * apart, 1, a.peer);
    if (seen == ~std::uint64_t{0}) *to = seen;
  } else {
    nvshmem_uint64_p(to, value, a.peer);
    if (call == Call::fence)
      nvshmem_fence();
    else
      nvshmem_quiet();
  }
}

// NVSHMEM's waits are these polls without a bound.
template <Scope scope>
__device__ bool await(std::uint64_t* word, std::uint64_t wanted) {
  if (leader<scope>()) {
    std::uint64_t begin = 0;
    for (unsigned polls = 1; nvshmem_signal_fetch(word) < wanted; ++polls)
      if (polls % 1024 == 0) {
        if (begin == 0) begin = now_ns();
        if (now_ns() - begin > limit_ns) __trap();
      }
  }
  meet<scope>();
  return true;
}

template <Call call, Scope scope>
__global__ void __launch_bounds__(1024) ping_pong(const Arguments a) {
  const std::uint64_t value = *a.from;
  std::uint64_t begin = 0;
  const auto send = [&](int number) {
    if constexpr (call == Call::p)
      nvshmem_uint64_p(a.echo, a.before + number, a.peer);
    else if constexpr (call == Call::add)
      nvshmem_uint64_atomic_add(a.counter, 1, a.peer);
    else
      make_call<call, scope>(a, number, value);
  };
  std::uint64_t* word = call == Call::p ? a.echo : call == Call::add ? a.counter : a.signals;
  for (int i = 1; i <= a.warm + a.calls; ++i) {
    if (i == a.warm + 1) begin = now_ns();
    if (a.leads) send(i);
    if (!await<scope>(word, a.before + i)) return;
    if (!a.leads) send(i);
  }
  if (leader<scope>()) *a.spans = {begin, begin, now_ns(), 0};
}

template <Scope scope>
__device__ void quiet() {
  meet<scope>();
  if (leader<scope>()) nvshmem_quiet();
  meet<scope>();
}

template <Call call, Scope scope>
__global__ void __launch_bounds__(1024) stream(const Arguments a) {
  const std::uint64_t value = *a.from;
  int number = 0;
  for (int i = 0; i < a.warm; ++i) make_call<call, scope>(a, ++number, value);
  quiet<scope>();
  const std::uint64_t begin = now_ns();
  const long long clock = clock64();
#pragma unroll 1
  for (int i = 0; i < a.calls; ++i) {
    make_call<call, scope>(a, ++number, value);
    if (a.each) quiet<scope>();
  }
  const std::uint64_t returned = now_ns();
  const long long took = clock64() - clock;
  quiet<scope>();
  if (leader<scope>()) a.spans[blockIdx.x] = {begin, returned, now_ns(), static_cast<std::uint64_t>(took)};
}

template <Call call, Scope scope>
void launch_in(const Case& one, const Arguments& a) {
  if (one.measure == "latency") {
    if constexpr (call == Call::p || call == Call::add || call == Call::put_signal)
      ping_pong<call, scope><<<one.blocks, one.threads>>>(a);
  } else if (a.leads) {
    stream<call, scope><<<one.blocks, one.threads>>>(a);
  }
}

template <Call call>
void launch(const Case& one, const Arguments& a) {
  constexpr bool moves = call == Call::put || call == Call::get || call == Call::put_signal;
  if constexpr (moves)
    if (one.scope == Scope::warp) return launch_in<call, Scope::warp>(one, a);
  if constexpr (moves || call == Call::p || call == Call::g)
    if (one.scope == Scope::block) return launch_in<call, Scope::block>(one, a);
  launch_in<call, Scope::thread>(one, a);
}

void launch(const Case& one, const Arguments& a) {
  switch (one.call) {
    case Call::put: launch<Call::put>(one, a); break;
    case Call::get: launch<Call::get>(one, a); break;
    case Call::p: launch<Call::p>(one, a); break;
    case Call::g: launch<Call::g>(one, a); break;
    case Call::put_signal: launch<Call::put_signal>(one, a); break;
    case Call::add: launch<Call::add>(one, a); break;
    case Call::fetch_add: launch<Call::fetch_add>(one, a); break;
    case Call::fence: launch<Call::fence>(one, a); break;
    case Call::quiet: launch<Call::quiet>(one, a); break;
  }
  expect(cudaGetLastError(), "launch");
}

int position(const std::vector<std::string>& names, const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<int>(found - names.begin());
  std::fprintf(stderr, "nvshmem_peer: '%s' is none of what it knows\n", name.c_str());
  std::exit(2);
}

std::vector<Case> read_cases() {
  std::vector<Case> cases;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    Case one;
    std::string call, scope;
    if (!(words >> one.measure >> call >> scope >> one.blocks >> one.threads >> one.bytes >> one.calls)) continue;
    one.call =
        static_cast<Call>(position({"put", "get", "p", "g", "put_signal", "add", "fetch_add", "fence", "quiet"}, call));
    one.scope = static_cast<Scope>(position({"thread", "warp", "block"}, scope));
    if (one.blocks < 1 || one.blocks > most_blocks || one.bytes > largest || one.calls < 1) {
      std::fprintf(stderr, "nvshmem_peer: '%s': too much\n", line.c_str());
      std::exit(2);
    }
    cases.push_back(one);
  }
  return cases;
}

nvshmemx_uniqueid_t exchange_id(int pe) {
  nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
  auto* bytes = reinterpret_cast<unsigned char*>(&id);
  if (pe == 0) {
    if (nvshmemx_get_uniqueid(&id) != 0) std::exit(3);
    std::string hex;
    for (std::size_t i = 0; i < sizeof id; ++i) {
      char two[3];
      std::snprintf(two, sizeof two, "%02x", bytes[i]);
      hex += two;
    }
    std::printf("id %s\n", hex.c_str());
    std::fflush(stdout);
  } else {
    std::string hex;
    std::getline(std::cin, hex);
    if (hex.size() != 2 * sizeof id) std::exit(2);
    for (std::size_t i = 0; i < sizeof id; ++i)
      bytes[i] = static_cast<unsigned char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}

std::uint64_t pattern(int pe, std::uint64_t i) {
  return (i + 1) * 0x9e3779b97f4a7c15u ^ static_cast<std::uint64_t>(pe + 1);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <typename T>
T* allocate(std::size_t count) {
  auto* data = static_cast<T*>(nvshmem_calloc(count, sizeof(T)));
  if (data != nullptr) return data;
  std::fprintf(stderr, "nvshmem_peer: no memory for %zu elements\n", count);
  std::exit(3);
}

struct Times {
  std::vector<double> seconds, cycles;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: nvshmem_peer PE ROUNDS [GPU]\n"), 2;
  const int pe = std::atoi(argv[1]), rounds = std::atoi(argv[2]);
  expect(cudaSetDevice(argc > 3 ? std::atoi(argv[3]) : 0), "cudaSetDevice");
  nvshmemx_uniqueid_t id = exchange_id(pe);
  nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
  nvshmemx_set_attr_uniqueid_args(pe, 2, &id, &attributes);
  if (nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes) != 0) return 3;
  const std::vector<Case> cases = read_cases();

  constexpr std::size_t each = most_blocks * apart;
  Arguments a{};
  a.to = allocate<std::uint64_t>(largest / 8), a.from = allocate<std::uint64_t>(largest / 8);
  a.signals = allocate<std::uint64_t>(each), a.scratch = allocate<std::uint64_t>(each);
  a.echo = allocate<std::uint64_t>(apart), a.counter = allocate<std::uint64_t>(apart);
  a.spans = allocate<Span>(most_blocks);
  a.leads = pe == 0, a.peer = 1 - pe;
  std::vector<std::uint64_t> words(largest / 8);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = pattern(pe, i);
  expect(cudaMemcpy(a.from, words.data(), largest, cudaMemcpyHostToDevice), "cudaMemcpy");

  std::vector<Times> times(cases.size());
  std::uint64_t signals = 0, additions = 0, puts = 0, gets = 0;
  for (int round = -1; round < rounds; ++round)
    for (std::size_t turn = 0; turn < cases.size(); ++turn) {
      const std::size_t at = round % 2 == 0 ? turn : cases.size() - 1 - turn;
      const Case& one = cases[at];
      const bool latency = one.measure == "latency", adds = one.call == Call::add;
      a.calls = one.calls, a.warm = std::max(4, one.calls / 8), a.bytes = one.bytes / one.blocks;
      a.each = one.measure == "complete" &&
               (one.call == Call::put || one.call == Call::p || adds || one.call == Call::put_signal);
      std::uint64_t& before = adds ? additions : signals;
      a.before = before;
      if (!adds || latency) before += a.calls + a.warm;
      nvshmem_barrier_all();
      launch(one, a);
      expect(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      nvshmem_barrier_all();
      const bool got = one.call == Call::get || one.call == Call::g;
      if (got)
        gets = std::max(gets, one.bytes);
      else if (!adds && one.call != Call::fetch_add && !(latency && one.call == Call::p))
        puts = std::max(puts, one.bytes);
      if (!a.leads || round < 0) continue;
      std::vector<Span> spans(one.blocks);
      expect(cudaMemcpy(spans.data(), a.spans, spans.size() * sizeof(Span), cudaMemcpyDeviceToHost), "cudaMemcpy");
      std::uint64_t begin = spans[0].begin, returned = 0, end = 0, took = 0;
      for (const Span& span : spans) {
        begin = std::min(begin, span.begin), returned = std::max(returned, span.returned);
        end = std::max(end, span.end), took = std::max(took, span.cycles);
      }
      const bool issue = one.measure == "issue";
      const auto nanoseconds = static_cast<double>((issue ? returned : end) - begin);
      times[at].seconds.push_back(nanoseconds * 1e-9 / one.calls / (latency ? 2 : 1));
      times[at].cycles.push_back(issue ? static_cast<double>(took) / one.calls : 0);
    }
  if (a.leads)
    for (const Times& t : times) std::printf("%.6f %.2f\n", median(t.seconds) * 1e6, median(t.cycles));
  const std::uint64_t bytes = a.leads ? gets : puts;
  expect(cudaMemcpy(words.data(), a.to, largest, cudaMemcpyDeviceToHost), "cudaMemcpy");
  bool right = true;
  for (std::uint64_t i = 0; i < bytes / 8; ++i) right = right && words[i] == pattern(1 - pe, i);
  if (right) std::printf("right\n");
  std::fflush(stdout);
  nvshmem_barrier_all();
  nvshmem_finalize();
  return right ? 0 : 1;
}
