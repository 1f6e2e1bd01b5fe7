// How long one thread of a GPU takes to issue a put to a ring in memory of the host: as one descriptor of 16 bytes, or
// with every field, 64 bytes; and by the transport, whole, with room, parity and fence, as one thread's context and as
// one that all threads share. The ring has room for all, and no thread drains it.
//
// usage: shmem_ring_issue [PUTS]      prints a table; exits 77 without a GPU
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "imbrex/device/shmem.cuh"
#include "shmem/ring/issue.hpp"

namespace imbrex::shmem::ring::test {
namespace {

constexpr int rounds = 9;
constexpr std::uint32_t log_slots = 15, most_puts = (1u << log_slots) / 2;

void expect(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "shmem_ring_issue: %s: %s\n", call, cudaGetErrorString(status));
  std::exit(1);
}

template <Way way, bool fenced>
__global__ void issue_puts(Queue* shared, const Fields* fields, std::uint32_t puts, std::uint64_t* payload,
                           std::uint64_t* ns) {
  Queue queue = *shared;
  const std::uint64_t begin = device::now_ns();
  for (std::uint32_t i = 0; i < puts; ++i) {
    if constexpr (fenced) {
      payload[i & 1023] = i;
      asm volatile("fence.acq_rel.gpu;" ::: "memory");
    }
    if (!issue<way>(queue, fields, number_of<Standard::put>(), i & 3, i * 64ull, i * 8ull, 8 + (i & 7), i)) return;
  }
  *ns = device::now_ns() - begin;
  shared->posted = queue.posted;
}

enum class Call { put_nbi, put_registered, p, put_signal_nbi };
constexpr const char* call_names[] = {"put_nbi", "put_registered", "p", "put_signal_nbi"};

// The destructor would wait for a host's thread that is not there: the proxy's words say that all is complete.
template <typename Transport, Call call>
__global__ void call_transport(Handle handle, std::uint32_t puts, std::uint64_t* data, std::uint64_t* ns) {
  Context<Transport> context(handle);
  const std::uint64_t begin = device::now_ns();
  for (std::uint32_t i = 0; i < puts; ++i) {
    std::uint64_t* to = data + (i & 1023) * 8;
    if constexpr (call == Call::put_nbi) context.put_nbi(to, data, 8, 0);
    if constexpr (call == Call::put_registered) context.transport().put_registered(handle, first_own, i, 0);
    if constexpr (call == Call::p) context.p(to, i, 0);
    if constexpr (call == Call::put_signal_nbi)
      context.put_signal_nbi(to, data, 8, data + 8192, i, SignalOperation::set, 0);
  }
  *ns = device::now_ns() - begin;
}

// Median nanoseconds a put.
template <typename Launch>
double time(const std::uint64_t* ns, std::uint32_t puts, Launch&& launch) {
  std::array<double, rounds> times{};
  for (double& one : times) {
    launch();
    expect(cudaDeviceSynchronize(), "kernel");
    std::uint64_t taken = 0;
    expect(cudaMemcpy(&taken, ns, sizeof taken, cudaMemcpyDeviceToHost), "cudaMemcpy");
    one = static_cast<double>(taken) / puts;
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[rounds / 2];
}

template <typename Kernel>
int registers_of(Kernel* kernel) {
  cudaFuncAttributes attributes{};
  expect(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  return attributes.numRegs;
}

struct Room {
  words::Pair* ring;  // of the host
  Queue* queue;
  Fields* fields;
  std::uint64_t *payload, *ns;
};

template <Way way, bool fenced>
void row(const Room& room, std::uint32_t puts) {
  const auto launch = [&] {
    const Queue queue{room.ring, log_slots, 0, 1u << log_slots};
    expect(cudaMemcpy(room.queue, &queue, sizeof queue, cudaMemcpyDefault), "cudaMemcpy");
    issue_puts<way, fenced><<<1, 1>>>(room.queue, room.fields, puts, room.payload, room.ns);
  };
  const double ns = time(room.ns, puts, launch);
  std::printf("%-28s %-22s %8.1f ns a put %4d registers\n",
              way == Way::descriptor ? "descriptor, 16 bytes" : "every field, 4 x 16 bytes",
              fenced ? "8 bytes, fence before" : "", ns, registers_of(issue_puts<way, fenced>));
  if (way == Way::fields) return;
  // What the host would read is what it must be.
  const std::uint32_t i = puts - 1;
  const Descriptor last = descriptor_of(room.ring[i]);
  if (last.there != i * 64ull || last.here != i * 8ull || last.bytes != 8 + (i & 7) || last.pe != (i & 3)) {
    std::fprintf(stderr, "shmem_ring_issue: the last descriptor is wrong\n");
    std::exit(1);
  }
}

template <typename Transport, Call call>
void call_row(const char* whose, const Handle& handle, Shared* shared, const Shared& first, std::uint32_t puts,
              std::uint64_t* data, std::uint64_t* ns) {
  const double taken = time(ns, puts, [&] {
    expect(cudaMemcpy(shared, &first, sizeof first, cudaMemcpyDefault), "cudaMemcpy");
    call_transport<Transport, call><<<1, 1>>>(handle, puts, data, ns);
  });
  std::printf("%-28s %-22s %8.1f ns a put %4d registers\n", whose, call_names[static_cast<int>(call)], taken,
              registers_of(call_transport<Transport, call>));
}

template <typename Transport>
void call_rows(const char* whose, const Handle& handle, Shared* shared, const Shared& first, std::uint32_t puts,
               std::uint64_t* data, std::uint64_t* ns) {
  call_row<Transport, Call::p>(whose, handle, shared, first, puts, data, ns);
  call_row<Transport, Call::put_nbi>(whose, handle, shared, first, puts, data, ns);
  call_row<Transport, Call::put_registered>(whose, handle, shared, first, puts, data, ns);
  call_row<Transport, Call::put_signal_nbi>(whose, handle, shared, first, puts, data, ns);
}

template <typename T>
T* on_gpu(std::size_t count) {
  void* memory = nullptr;
  expect(cudaMalloc(&memory, count * sizeof(T)), "cudaMalloc");
  expect(cudaMemset(memory, 0, count * sizeof(T)), "cudaMemset");
  return static_cast<T*>(memory);
}
template <typename T>
T* on_host(std::size_t count) {
  void* memory = nullptr;
  expect(cudaHostAlloc(&memory, count * sizeof(T), cudaHostAllocMapped), "cudaHostAlloc");
  std::fill_n(static_cast<unsigned char*>(memory), count * sizeof(T), static_cast<unsigned char>(0));
  return static_cast<T*>(memory);
}

int run(std::uint32_t puts) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::printf("skipped: no GPU\n");
    return 77;
  }
  cudaDeviceProp properties{};
  expect(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  std::printf("%s, %u puts by one thread to a ring of the host, median of %d\n", properties.name, puts, rounds);
  const Room room{on_host<words::Pair>(std::size_t{4} << log_slots), on_gpu<Queue>(1), on_gpu<Fields>(1),
                  on_gpu<std::uint64_t>(16384), on_gpu<std::uint64_t>(1)};
  row<Way::descriptor, false>(room, puts);
  row<Way::fields, false>(room, puts);
  row<Way::descriptor, true>(room, puts);
  row<Way::fields, true>(room, puts);

  // A heap of one PE, by hand.
  auto* heap = on_gpu<std::byte>(1 << 20);
  auto* progress = on_host<Progress>(1);
  auto* fault = on_host<device::Fault>(1);
  auto* endpoint = on_gpu<Endpoint>(1);
  auto* shared = reinterpret_cast<Shared*>(heap + 4096);
  const Shared first{room.ring, progress, heap + 8192, log_slots, 0, 1u << log_slots, 0, 0, 0};
  const Endpoint own{shared, 1, 1024, 1, 0};
  expect(cudaMemcpy(endpoint, &own, sizeof own, cudaMemcpyDefault), "cudaMemcpy");
  progress->word = progress_word(0, 2 * most_puts);
  Handle handle{};
  handle.group.own = reinterpret_cast<device::State*>(heap);
  handle.group.states = heap;
  handle.group.limit = imbrex::device::ticks_of(1000000000);
  handle.group.fault = fault;
  handle.group.ranks = 1;
  handle.own = heap, handle.bytes = 1 << 20, handle.contexts = 1, handle.transport = endpoint;
  auto* data = reinterpret_cast<std::uint64_t*>(heap + (1 << 16));
  call_rows<OwnRing>("a context of one thread", handle, shared, first, puts, data, room.ns);
  call_rows<Ring>("a context of all threads", handle, shared, first, puts, data, room.ns);
  if (fault->state != device::Fault::clear) std::printf("a wait gave up\n");
  return fault->state == device::Fault::clear ? 0 : 1;
}

}  // namespace
}  // namespace imbrex::shmem::ring::test

int main(int argc, char** argv) {
  const long puts = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 8192;
  if (argc > 2 || puts < 1 || puts > static_cast<long>(imbrex::shmem::ring::test::most_puts)) {
    std::fprintf(stderr, "shmem_ring_issue: PUTS is from 1 to %u\n", imbrex::shmem::ring::test::most_puts);
    return 2;
  }
  return imbrex::shmem::ring::test::run(static_cast<std::uint32_t>(puts));
}
