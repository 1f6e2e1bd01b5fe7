#include "shmem/ring/words.hpp"

#include <fmt/format.h>

namespace imbrex::shmem::ring {

std::string refusal_words(std::uint64_t refusal) {
  switch (static_cast<Refusal>(refusal)) {
    case Refusal::unknown_template: return "it names a template that is not registered";
    case Refusal::unknown_pe: return "there is no such PE";
    case Refusal::outside_here: return "the heap does not hold its bytes here";
    case Refusal::outside_there: return "the heap does not hold its bytes there";
    case Refusal::odd_place: return "its word is not aligned there";
  }
  return fmt::format("reason {}", refusal);
}

}  // namespace imbrex::shmem::ring
