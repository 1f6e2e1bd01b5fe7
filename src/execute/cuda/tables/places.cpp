#include "execute/cuda/tables/places.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/narrow.hpp"
#include "plan/operand_buffers.hpp"
#include "problem/descriptor.hpp"

namespace imbrex::cuda {
namespace {

static_assert(most_products == max_products);

class Places {
 public:
  Places(const Plan& frame, const execute::HeapLayout& layout, int rank, const HeapHandle& heap, std::size_t offset)
      : plan_(frame), layout_(layout), rank_(rank), heap_(heap), offset_(offset) {}

  BufferPlace place_of(int buffer) const {
    const Buffer& b = plan_.buffers[static_cast<std::size_t>(buffer)];
    const bool is_output = b.role == BufferRole::output,
               is_bias = plan::is_bias(plan_.problem, {rank_, buffer, 0, 0, b.rows, b.cols});
    BufferPlace place;
    place.element = size_of(b.type);
    place.row_stride = static_cast<std::uint64_t>(layout_.pitch(buffer)) * place.element;
    place.pitch = is_bias ? 0 : place.row_stride;
    if (is_output || is_bias) place.output = output_of(buffer);
    if (layout_.in_heap(buffer)) {
      place.rank_stride = heap_.stride;
      place.copy_stride = layout_.offset(buffer, 1) - layout_.offset(buffer, 0);
      place.address = address(0, layout_.offset(buffer, 0));
      if (!is_output) return place;
      IMBREX_EXPECTS(buffer == first_output(),
                     "{} is touched by other ranks: of a rank's outputs, others touch `out` only on the CUDA executor",
                     b.name);
      // All ranks' outputs lie at one offset of the heap, which only a run knows: the distance to this rank's is
      // enough.
      place.address = address(0, 0) - address(rank_, 0);
      place.copy_stride = 0;
    }
    place.base = is_output ? Base::out : is_bias ? Base::bias : is_a_scale(buffer) ? Base::a_scale : Base::a;
    return place;
  }

 private:
  std::uint64_t address(int rank, std::size_t at) const {
    return reinterpret_cast<std::uint64_t>(heap_.at(rank, offset_ + at));
  }
  int first_output() const {
    const auto is_output = [](const Buffer& b) { return b.role == BufferRole::output; };
    return base::narrow<int>(
        std::find_if(plan_.buffers.begin(), plan_.buffers.end(), is_output) - plan_.buffers.begin(), "buffers");
  }
  bool is_a_scale(int buffer) const {
    return plan_.problem.scales != Scales::none && buffer == plan::buffer_a_scale(plan_.problem);
  }
  // Operators that multiply nothing have their operands by number.
  std::uint32_t output_of(int buffer) const {
    if (!problem::multiplies(plan_.problem)) return base::narrow<std::uint32_t>(buffer, "output");
    const auto [what, product] = plan::operand_at(plan_.problem, buffer);
    return base::narrow<std::uint32_t>(what == plan::OperandPlace::What::gathered ? gathered_output : product,
                                       "output");
  }

  const Plan& plan_;
  const execute::HeapLayout& layout_;
  int rank_;
  const HeapHandle& heap_;
  std::size_t offset_;
};

}  // namespace

std::vector<BufferPlace> places_of(const Plan& frame, const execute::HeapLayout& layout, int rank,
                                   const HeapHandle& heap, std::size_t offset) {
  const Places all(frame, layout, rank, heap, offset);
  std::vector<BufferPlace> places;
  for (int buffer = 0; buffer < std::ssize(frame.buffers); ++buffer) places.push_back(all.place_of(buffer));
  return places;
}

}  // namespace imbrex::cuda
