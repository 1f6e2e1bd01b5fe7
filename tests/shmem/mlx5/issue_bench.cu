// How long one thread of a GPU takes to issue a put, by each way to write its work request. No NIC is there: the ring
// has room for all, no NIC drains it, and the doorbell is a word of memory, the GPU's or the host's (pinned), where a
// NIC's register would be reached over the bus as well.
//
// usage: shmem_mlx5_issue [PUTS]      prints a table; exits 77 without a GPU
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "shmem/mlx5/builders.hpp"

namespace imbrex::shmem::mlx5::test {
namespace {

constexpr int rounds = 9;

void expect(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "shmem_mlx5_issue: %s: %s\n", call, cudaGetErrorString(status));
  std::exit(1);
}

template <Builder builder, Reach reach>
__global__ void issue_puts(Queue* queue, const Fixed* fixed, std::uint32_t puts, std::uint64_t* ns) {
  const std::uint64_t begin = device::now_ns();
  for (std::uint32_t i = 0; i < puts; ++i)
    issue<builder, reach>(*queue, *fixed, {.remote = i * 64ull, .local = i * 8ull, .bytes = 8 + (i & 7)});
  *ns = device::now_ns() - begin;
}

// What a ring that a host thread drains costs: one store of 16 bytes a put, and no fence.
__global__ void issue_descriptors(std::uint32_t* ring, std::uint32_t puts, std::uint64_t* ns) {
  const std::uint64_t begin = device::now_ns();
  for (std::uint32_t i = 0; i < puts; ++i)
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(ring + i % 4096 * 4), "r"(i), "r"(i * 8),
                 "r"(i * 64), "r"(i / 4096)
                 : "memory");
  *ns = device::now_ns() - begin;
}

struct Room {
  Queue* queue;
  Fixed* fixed;
  std::uint64_t* ns;
  Request* ring;
  std::uint32_t* record;
  std::uint64_t* doorbell;
};

// Median nanoseconds a put.
template <typename Launch>
double time(const Room& room, std::uint32_t puts, Launch&& launch) {
  std::array<double, rounds> times{};
  for (double& one : times) {
    launch();
    expect(cudaDeviceSynchronize(), "kernel");
    std::uint64_t ns = 0;
    expect(cudaMemcpy(&ns, room.ns, sizeof ns, cudaMemcpyDeviceToHost), "cudaMemcpy");
    one = static_cast<double>(ns) / puts;
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[rounds / 2];
}

template <Builder builder, Reach reach>
void row(const char* name, const char* where, const Room& room, std::uint32_t puts) {
  const Fixed fixed{0x1234, 0xaabbccdd, 0x11223344};
  std::vector<Request> prepared(most_slots);
  for (Request& slot : prepared) prepare(slot, Verb::write, fixed, 0);
  expect(cudaMemcpy(room.ring, prepared.data(), prepared.size() * sizeof(Request), cudaMemcpyDefault), "cudaMemcpy");
  expect(cudaMemcpy(room.fixed, &fixed, sizeof fixed, cudaMemcpyDefault), "cudaMemcpy");
  const auto launch = [&] {
    Queue queue{};
    queue.ring = room.ring, queue.record = room.record, queue.doorbell = room.doorbell;
    queue.queue_word = be32(fixed.queue << 8), queue.mask = most_slots - 1;
    expect(cudaMemcpy(room.queue, &queue, sizeof queue, cudaMemcpyDefault), "cudaMemcpy");
    issue_puts<builder, reach><<<1, 1>>>(room.queue, room.fixed, puts, room.ns);
  };
  const double ns = time(room, puts, launch);
  // What a NIC would read is what it must be.
  Request last, expected;
  const std::uint32_t i = puts - 1;
  build<Verb::write>(expected = {}, i, fixed, {.remote = i * 64ull, .local = i * 8ull, .bytes = 8 + (i & 7)});
  expect(cudaMemcpy(&last, room.ring + i, sizeof last, cudaMemcpyDefault), "cudaMemcpy");
  cudaFuncAttributes attributes{};
  expect(cudaFuncGetAttributes(&attributes, issue_puts<builder, reach>), "cudaFuncGetAttributes");
  std::printf("%-8s %-8s %-8s %9.1f ns a put %5d registers  %s\n", name, reach == Reach::gpu ? "gpu" : "system", where,
              ns, attributes.numRegs, std::memcmp(&last, &expected, sizeof last) == 0 ? "right" : "WRONG");
  if (std::memcmp(&last, &expected, sizeof last) != 0) std::exit(1);
}

template <Reach reach>
void rows(const char* where, const Room& room, std::uint32_t puts) {
  row<Builder::filled, reach>("filled", where, room, puts);
  row<Builder::whole, reach>("whole", where, room, puts);
  row<Builder::words, reach>("words", where, room, puts);
}

int run(std::uint32_t puts) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::printf("skipped: no GPU\n");
    return 77;
  }
  cudaDeviceProp properties{};
  expect(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  std::printf("%s, %u puts by one thread, median of %d\n%-8s %-8s %s\n", properties.name, puts, rounds, "request",
              "fence", "doorbell");
  Room room{};
  expect(cudaMalloc(&room.queue, sizeof(Queue)), "cudaMalloc");
  expect(cudaMalloc(&room.fixed, sizeof(Fixed)), "cudaMalloc");
  expect(cudaMalloc(&room.ns, sizeof(std::uint64_t)), "cudaMalloc");
  expect(cudaMalloc(&room.ring, most_slots * sizeof(Request)), "cudaMalloc");
  expect(cudaMalloc(&room.record, 64), "cudaMalloc");
  std::uint64_t *near = nullptr, *far = nullptr;
  std::uint32_t* host_ring = nullptr;
  expect(cudaMalloc(&near, 64), "cudaMalloc");
  expect(cudaHostAlloc(&far, 64, cudaHostAllocMapped), "cudaHostAlloc");
  expect(cudaHostAlloc(&host_ring, 4096 * 16, cudaHostAllocMapped), "cudaHostAlloc");
  room.doorbell = near;
  rows<Reach::gpu>("gpu", room, puts);
  rows<Reach::system>("gpu", room, puts);
  room.doorbell = far;
  rows<Reach::gpu>("host", room, puts);
  rows<Reach::system>("host", room, puts);
  const double ns = time(room, puts, [&] { issue_descriptors<<<1, 1>>>(host_ring, puts, room.ns); });
  std::printf("16 bytes to a ring of the host, no fence %5.1f ns a put\n", ns);
  return 0;
}

}  // namespace
}  // namespace imbrex::shmem::mlx5::test

int main(int argc, char** argv) {
  const long puts = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 16384;
  if (argc > 2 || puts < 1 || puts > static_cast<long>(imbrex::shmem::mlx5::most_slots)) {
    std::fprintf(stderr, "shmem_mlx5_issue: PUTS is from 1 to %u\n", imbrex::shmem::mlx5::most_slots);
    return 2;
  }
  return imbrex::shmem::mlx5::test::run(static_cast<std::uint32_t>(puts));
}
