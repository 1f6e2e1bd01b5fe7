#include "shmem/gpu_parts.hpp"

namespace imbrex::shmem::test {
namespace {

IMBREX_KERNEL ring(Handle handle, Replayed* own) {
  Context context(handle);
  const Block block;
  const std::uint64_t round = words::load(&own->round) + 1;
  const std::uint32_t i = block.thread_rank(), pes = context.pes(), me = context.pe();
  own->sent[i] = round * 1000 + me * 100 + i;
  block.sync();
  if (is_leader(block)) words::store(&own->round, round);
  context.put_signal(own->came, own->sent, 64, &own->signal, 1, SignalOperation::add, (me + 1) % pes, block);
  const bool well = context.signal_wait_until(&own->signal, Compare::equal, round, block);
  if (!well || own->came[i] != round * 1000 + (me + pes - 1) % pes * 100 + i)
    atomicAdd(reinterpret_cast<unsigned long long*>(&own->wrong), 1ull);
  own->part[i] = static_cast<std::int64_t>(round * 3 + i) - static_cast<std::int64_t>(me);
}

IMBREX_KERNEL meet(Handle handle, Team team) {
  Context context(handle);
  barrier(context, team, Block{});
}

IMBREX_KERNEL add_up(Handle handle, Team team, Replayed* own) {
  Context context(handle);
  const Block block;
  const bool well = reduce(context, team, Reduction::sum, own->sum, own->part, 64, block);
  const auto pes = static_cast<std::int64_t>(context.pes());
  const auto i = static_cast<std::int64_t>(block.thread_rank()), round = static_cast<std::int64_t>(own->round);
  if (!well || own->sum[i] != pes * (round * 3 + i) - pes * (pes - 1) / 2)
    atomicAdd(reinterpret_cast<unsigned long long*>(&own->wrong), 1ull);
}

IMBREX_KERNEL lonely(Handle handle, Signal* signal) {
  Context context(handle);
  context.signal_wait_until(signal, Compare::greater_equal, 1, Block{});
}

}  // namespace

void queue_replayed(Heap& heap, CudaStream stream, Replayed* own) {
  const Grid grid{.blocks = 1, .threads = 64, .stream = stream};
  launch(heap, grid, ring, heap.handle(), own);
  launch(heap, grid, meet, heap.handle(), heap.world_team());
  launch(heap, grid, add_up, heap.handle(), heap.world_team(), own);
}

void queue_lonely(Heap& heap, CudaStream stream, Signal* signal) {
  launch(heap, {.blocks = 2, .threads = 64, .stream = stream}, lonely, heap.handle(), signal);
}

}  // namespace imbrex::shmem::test
