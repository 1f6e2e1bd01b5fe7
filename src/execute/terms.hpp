// What ranks must have in common before they run a plan, for runtime::agree.
#pragma once

#include "imbrex/advanced/execute.hpp"
#include "plan/fields.hpp"
#include "runtime/agreement.hpp"

namespace imbrex::execute {

void add(runtime::Terms& terms, const plan::Fields& fields);

/// The options that all ranks' executors share. What paces one rank alone may differ.
void add(runtime::Terms& terms, const CudaOptions& options);

/// Terms of a plan to prepare.
runtime::Terms terms_of(const plan::TaskStream& tasks);

}  // namespace imbrex::execute
