#include "plan/work.hpp"

#include <deque>
#include <utility>

#include "base/check.hpp"
#include "base/narrow.hpp"
#include "base/text.hpp"

namespace imbrex::plan {
namespace {

// A deque: descriptors stay where they are.
std::deque<WorkDescriptor>& kinds() {
  static std::deque<WorkDescriptor> all{bags_descriptor()};
  return all;
}

}  // namespace

const WorkDescriptor& descriptor_of(WorkKind kind) {
  const auto& all = kinds();
  const auto number = static_cast<std::size_t>(kind);
  IMBREX_EXPECTS(number < all.size(), "kind of work {} does not exist", number);
  return all[number];
}

WorkKind register_work(WorkDescriptor descriptor) {
  auto& all = kinds();
  for (const WorkDescriptor& other : all)
    IMBREX_EXPECTS(other.name != descriptor.name, "there is a kind of work {} already", descriptor.name);
  all.push_back(std::move(descriptor));
  return static_cast<WorkKind>(base::narrow<std::uint8_t>(all.size() - 1, "kinds of work"));
}

}  // namespace imbrex::plan

namespace imbrex {

std::string_view name_of(WorkKind kind) {
  return static_cast<std::size_t>(kind) < plan::kinds().size() ? std::string_view(plan::descriptor_of(kind).name) : "?";
}

WorkKind parse_work_kind(std::string_view name) {
  std::string known;
  const auto& all = plan::kinds();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].name == name) return static_cast<WorkKind>(base::narrow<std::uint8_t>(i, "kinds of work"));
    known += (known.empty() ? "" : ", ") + all[i].name;
  }
  IMBREX_EXPECTS(false, "'{}' is not a kind of work; it must be one of {}", base::printable(name), known);
  return {};
}

}  // namespace imbrex
