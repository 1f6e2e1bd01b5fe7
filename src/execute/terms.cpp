#include "execute/terms.hpp"

#include "execute/peer_access.hpp"

namespace imbrex::execute {

void add(runtime::Terms& terms, const plan::Fields& fields) {
  for (const auto& [name, value] : fields) terms.add(name, value);
}

void add(runtime::Terms& terms, const CudaOptions& options) {
  // Delays may differ.
  const auto& [heap_bytes, kernel, timeline, ranks_per_gpu, testing, heap_limit] = options;
  terms.add("heap_bytes", heap_bytes).add("heap_limit", heap_limit).add("kernel", kernel).add("timeline", timeline);
  terms.add("first_epoch", testing.first_epoch);
  terms.add("ranks_per_gpu", ranks_per_gpu);
}

runtime::Terms terms_of(const plan::TaskStream& tasks) {
  runtime::Terms terms("a plan");
  terms.add("IMBREX_PEER_ACCESS", has_peer_access() ? 1 : 0);
  add(terms, plan::fields_of(tasks));
  return terms;
}

}  // namespace imbrex::execute
