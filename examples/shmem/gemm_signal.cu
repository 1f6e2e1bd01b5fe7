// A product whose tiles go to the next PE one by one, which works on each as soon as its signal is there.
//   imbrex launch -n 4 -- shmem_gemm_signal [PES_PER_GPU]
#include <cstdio>
#include <cstdlib>
#include <imbrex/shmem.hpp>
#include <vector>

namespace {
namespace shmem = imbrex::shmem;
constexpr auto set = shmem::SignalOperation::set;
constexpr int n = 64, edge = 16, tile = edge * edge, across = n / edge, tiles = across * across, blocks = 4;

// A times itself. `made` and `came` hold tiles one behind the other; what came is made positive in place.
IMBREX_KERNEL square(shmem::Handle handle, const float* a, float* made, float* came, shmem::Signal* signals) {
  shmem::Context context(handle);
  const shmem::Block block;
  const auto next = (context.pe() + 1) % context.pes();
  const int first = static_cast<int>(block.thread_rank()), step = static_cast<int>(block.size());
  for (int t = static_cast<int>(shmem::block_index()); t < tiles; t += blocks) {
    for (int i = first; i < tile; i += step) {
      const int row = t / across * edge + i / edge, column = t % across * edge + i % edge;
      float sum = 0;
      for (int k = 0; k < n; ++k) sum += a[row * n + k] * a[k * n + column];
      made[t * tile + i] = sum;
    }
    block.sync();  // the put reads what other threads wrote; its end is not awaited here
    context.put_signal_nbi(came + t * tile, made + t * tile, tile, signals + t, 1, set, next, block);
  }
  for (int t = static_cast<int>(shmem::block_index()); t < tiles; t += blocks) {
    if (!context.signal_wait_until(signals + t, shmem::Compare::equal, 1, block)) return;
    for (int i = t * tile + first; i < (t + 1) * tile; i += step) came[i] = came[i] > 0 ? came[i] : 0;
  }
  context.quiet(block);
}
float value(int pe, int i) { return static_cast<float>((i * 7 + pe * 5) % 9 - 4); }
}  // namespace

int main(int argc, char** argv) try {
  const auto world = imbrex::World::from_environment();
  shmem::Heap heap(*world, {.device = shmem::kernel_device, .ranks_per_gpu = argc > 1 ? std::atoi(argv[1]) : 1});
  const auto a = heap.array<float>(n * n), made = heap.array<float>(n * n), came = heap.array<float>(n * n);
  const auto signals = heap.array<shmem::Signal>(tiles);
  const int before = (heap.pe() + heap.pes() - 1) % heap.pes();
  std::vector<float> own(n * n), here(n * n);
  for (int i = 0; i < n * n; ++i) own[i] = value(heap.pe(), i);
  heap.write(a.data(), own.data(), n * n * sizeof(float), heap.pe());
  shmem::launch(heap, {.blocks = blocks, .threads = 128}, square, heap.handle(), a.data(), made.data(), came.data(),
                signals.data());
  heap.finish();  // throws what a wait gave up
  heap.read(here.data(), came.data(), n * n * sizeof(float), heap.pe());
  for (int i = 0; i < n * n; ++i) {
    const int t = i / tile, row = t / across * edge + i % tile / edge, column = t % across * edge + i % edge;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += value(before, row * n + k) * value(before, k * n + column);
    if (here[i] != (sum > 0 ? sum : 0)) return std::printf("PE %d: WRONG at element %d\n", heap.pe(), i), 1;
  }
  return std::printf("PE %d: right\n", heap.pe()), 0;
} catch (const imbrex::Error& error) {
  return std::fprintf(stderr, "gemm_signal: %s\n", error.what()), static_cast<int>(error.code());
}
