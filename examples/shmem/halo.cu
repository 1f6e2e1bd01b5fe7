// A halo exchange behind computation: heat spreads up and down the columns of a field, whose rows PEs share out.
//   imbrex launch -n 4 -- shmem_halo [PES_PER_GPU]
#include <cstdio>
#include <cstdlib>
#include <imbrex/shmem.hpp>
#include <vector>

namespace {
namespace shmem = imbrex::shmem;
constexpr int rows = 64, columns = 256, steps = 50, blocks = 4, size = (rows + 2) * columns;  // of a PE, with its halo

IMBREX_KERNEL spread(shmem::Handle handle, float* even, float* odd, shmem::Signal* signals) {
  shmem::Context context(handle);
  const shmem::Block block;
  const auto me = context.pe(), last = context.pes() - 1;
  constexpr int width = columns / blocks;
  const int first = static_cast<int>(shmem::block_index()) * width;  // of this block's columns
  shmem::Signal *above = signals + 2 * shmem::block_index(), *below = above + 1;
  constexpr auto add = shmem::SignalOperation::add;
  for (shmem::Signal step = 1; step <= steps; ++step) {
    float *now = step % 2 == 0 ? odd : even, *then = step % 2 == 0 ? even : odd;
    const auto compute = [&](int row) {
      for (int c = first + static_cast<int>(block.thread_rank()); c < first + width;
           c += static_cast<int>(block.size()))
        then[row * columns + c] = 0.5f * (now[(row - 1) * columns + c] + now[(row + 1) * columns + c]);
    };
    compute(1), compute(rows);  // what neighbours wait for comes first
    block.sync();
    float *top = then + columns + first, *bottom = then + rows * columns + first;
    if (me > 0) context.put_signal(bottom + columns, top, width, below, 1, add, me - 1, block);
    if (me < last) context.put_signal(top - columns, bottom, width, above, 1, add, me + 1, block);
    for (int row = 2; row < rows; ++row) compute(row);  // while the halos travel
    if (me > 0 && !context.signal_wait_until(above, shmem::Compare::greater_equal, step, block)) return;
    if (me < last && !context.signal_wait_until(below, shmem::Compare::greater_equal, step, block)) return;
  }
}
}  // namespace

int main(int argc, char** argv) try {
  const auto world = imbrex::World::from_environment();
  shmem::Heap heap(*world, {.device = shmem::kernel_device, .ranks_per_gpu = argc > 1 ? std::atoi(argv[1]) : 1});
  const auto even = heap.array<float>(size), odd = heap.array<float>(size);
  const auto signals = heap.array<shmem::Signal>(2 * blocks);
  const int end = (rows * heap.pes() + 1) * columns, own = rows * heap.pe() * columns;
  std::vector<float> field(end + columns), next(field), came(size);
  for (int i = columns; i < end; ++i) field[i] = static_cast<float>(i * 37 % 64);
  heap.write(even.data(), &field[own], size * sizeof(float), heap.pe());
  heap.barrier(heap.world_team());
  shmem::launch(heap, {.blocks = blocks, .threads = 64}, spread, heap.handle(), even.data(), odd.data(),
                signals.data());
  heap.finish();  // throws what a wait gave up
  heap.read(came.data(), even.data(), size * sizeof(float), heap.pe());
  for (int step = 0; step < steps; ++step, field.swap(next))  // the whole field, by one processor
    for (int i = columns; i < end; ++i) next[i] = 0.5f * (field[i - columns] + field[i + columns]);
  for (int i = columns; i < size - columns; ++i)
    if (came[i] != field[own + i]) return std::printf("PE %d: WRONG at %d: %g\n", heap.pe(), i, double(came[i])), 1;
  return std::printf("PE %d: right\n", heap.pe()), 0;
} catch (const imbrex::Error& error) {
  return std::fprintf(stderr, "halo: %s\n", error.what()), static_cast<int>(error.code());
}
