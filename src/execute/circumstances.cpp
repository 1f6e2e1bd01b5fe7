#include "execute/circumstances.hpp"

#include <fmt/format.h>

#include "problem/descriptor.hpp"
#include "runtime/calls.hpp"

namespace imbrex::execute {

std::string circumstances(World& world, const Problem& problem, std::string_view last_call) {
  return fmt::format(", in {} {} {} over {} ranks{}", name_of(problem.op), problem::sizes_text(problem),
                     name_of(problem.type), problem.ranks, runtime::calls_of(world).absence(last_call));
}

}  // namespace imbrex::execute
