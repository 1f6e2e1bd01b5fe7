#include "plan/work.hpp"

#include <utility>

#include "base/registry.hpp"
#include "plan/bags.hpp"

namespace imbrex::plan {
namespace {

base::Registry<WorkKind, WorkDescriptor>& kinds() {
  static base::Registry<WorkKind, WorkDescriptor> all("a", "kind of work", {bags_descriptor()});
  return all;
}

}  // namespace

const WorkDescriptor& descriptor_of(WorkKind kind) { return kinds().at(kind); }
WorkKind register_work(WorkDescriptor descriptor) { return kinds().add(std::move(descriptor)); }

}  // namespace imbrex::plan

namespace imbrex {

std::string_view name_of(WorkKind kind) { return plan::kinds().name_of(kind); }
WorkKind parse_work_kind(std::string_view name) { return plan::kinds().find(name); }

}  // namespace imbrex
