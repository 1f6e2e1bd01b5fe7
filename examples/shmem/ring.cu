// A ring of puts: numbers go round all PEs, and each PE adds its own to them.
//   imbrex launch -n 4 -- shmem_ring [PES_PER_GPU]
#include <cstdio>
#include <cstdlib>
#include <imbrex/shmem.hpp>
#include <vector>

namespace {
namespace shmem = imbrex::shmem;
constexpr int count = 1024, blocks = 2, each = count / blocks, laps = 10;

// Each block passes on its part of the numbers. PE 0 begins a lap when the one before has come back.
IMBREX_KERNEL ring(shmem::Handle handle, int* numbers, int* sums, shmem::Signal* signals) {
  shmem::Context context(handle);
  const shmem::Block block;
  const int me = static_cast<int>(context.pe()), size = static_cast<int>(block.size());
  const auto next = (context.pe() + 1) % context.pes();
  const auto part = static_cast<int>(shmem::block_index());
  int *mine = numbers + part * each, *sum = sums + part * each;
  shmem::Signal* came = signals + part;
  for (int lap = 1; lap <= laps; ++lap) {
    const auto before = static_cast<shmem::Signal>(me == 0 ? lap - 1 : lap);
    if (!context.signal_wait_until(came, shmem::Compare::greater_equal, before, block)) return;
    for (int i = static_cast<int>(block.thread_rank()); i < each; i += size) sum[i] = mine[i] + me + 1;
    block.sync();  // the put reads what other threads wrote
    context.put_signal(mine, sum, each, came, 1, shmem::SignalOperation::add, next, block);
  }
  if (me == 0) context.signal_wait_until(came, shmem::Compare::greater_equal, laps, block);
}
}  // namespace

int main(int argc, char** argv) try {
  const auto world = imbrex::World::from_environment();
  shmem::Heap heap(*world, {.device = shmem::kernel_device, .ranks_per_gpu = argc > 1 ? std::atoi(argv[1]) : 1});
  const auto numbers = heap.array<int>(count), sums = heap.array<int>(count);
  const auto signals = heap.array<shmem::Signal>(blocks);
  shmem::launch(heap, {.blocks = blocks, .threads = 128}, ring, heap.handle(), numbers.data(), sums.data(),
                signals.data());
  heap.finish();  // throws what a wait gave up
  std::vector<int> came(count);
  heap.read(came.data(), numbers.data(), count * sizeof(int), heap.pe());
  // After the last lap, PE 0 has all PEs' numbers of all laps; another PE has what those before it add.
  const int all = heap.pes() * (heap.pes() + 1) / 2, before = heap.pe() * (heap.pe() + 1) / 2;
  const int expected = heap.pe() == 0 ? laps * all : (laps - 1) * all + before;
  for (const int number : came)
    if (number != expected) return std::printf("PE %d: WRONG: %d, not %d\n", heap.pe(), number, expected), 1;
  std::printf("PE %d: right: %d\n", heap.pe(), expected);
  return 0;
} catch (const imbrex::Error& error) {
  return std::fprintf(stderr, "ring: %s\n", error.what()), static_cast<int>(error.code());
}
