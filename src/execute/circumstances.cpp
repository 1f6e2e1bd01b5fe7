#include "execute/circumstances.hpp"

#include <fmt/format.h>

#include "problem/descriptor.hpp"
#include "runtime/calls.hpp"

namespace imbrex::execute {
namespace {

std::string text_of(const Problem& problem) {
  return fmt::format("{} {} {} over {} ranks", name_of(problem.op), problem::sizes_text(problem), name_of(problem.type),
                     problem.ranks);
}

}  // namespace

std::string circumstances(World& world, const Problem& problem, std::string_view last_call) {
  return fmt::format(", in {}{}", text_of(problem), runtime::calls_of(world).absence(last_call));
}

std::string call_text(World& world, const Problem& problem) {
  const std::uint32_t number = runtime::calls_of(world).last();
  return number == 0 ? text_of(problem) : fmt::format("call {}, {}", number, text_of(problem));
}

std::string epoch_text(World& world, const Problem& problem, std::uint64_t epoch, int late) {
  const runtime::Calls& calls = runtime::calls_of(world);
  return fmt::format("epoch {} of {} (its last call is {}, this rank's {})", epoch, text_of(problem), calls.last(late),
                     calls.last());
}

}  // namespace imbrex::execute
