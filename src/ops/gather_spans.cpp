
#include <algorithm>
#include <cstring>
#include <limits>

#include "imbrex/ops.hpp"
#include "ops/span_bytes.hpp"
#include "runtime/one_process.hpp"

namespace imbrex {
namespace {

struct Packed {
  std::int32_t rank, kind;
  double begin, end;
  char row[24], name[88];
};

}  // namespace

// A tile leaves a span for every K slice and every wait.
std::size_t ops::span_bytes(std::size_t tasks) { return (8 * tasks + 1024) * sizeof(Packed); }

std::vector<Span> gather_spans(World& world, const std::vector<Span>& own) {
  runtime::expect_one_host(world, "a timeline of all ranks");
  std::vector<std::size_t> counts(static_cast<std::size_t>(world.size()));
  const std::size_t count = own.size();
  world.all_gather(&count, counts.data(), sizeof count);
  const std::size_t most = *std::max_element(counts.begin(), counts.end());
  const std::size_t offset = world.heap().allocate(std::max<std::size_t>(1, most) * sizeof(Packed));
  const HeapHandle heap = world.heap().handle();
  for (std::size_t i = 0; i < count; ++i) {
    const Span& s = own[i];
    Packed packed{s.rank, static_cast<std::int32_t>(s.kind), s.begin, s.end, {}, {}};
    s.row.copy(packed.row, sizeof packed.row - 1);
    s.name.copy(packed.name, sizeof packed.name - 1);
    std::memcpy(heap.at(world.rank(), offset + i * sizeof packed), &packed, sizeof packed);
  }
  world.barrier();
  std::vector<Span> spans;
  if (world.rank() == 0) {
    double first = std::numeric_limits<double>::max();
    for (int rank = 0; rank < world.size(); ++rank)
      for (std::size_t i = 0; i < counts[static_cast<std::size_t>(rank)]; ++i) {
        Packed packed;
        std::memcpy(&packed, heap.at(rank, offset + i * sizeof packed), sizeof packed);
        spans.push_back(
            {packed.rank, packed.row, packed.name, static_cast<Span::Kind>(packed.kind), packed.begin, packed.end});
        first = std::min(first, packed.begin);
      }
    for (Span& s : spans) s.begin -= first, s.end -= first;
  }
  world.barrier();
  world.heap().release(offset);
  return spans;
}

}  // namespace imbrex
