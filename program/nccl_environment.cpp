#include "program/nccl_environment.hpp"

#include <cstdlib>

#include "runtime/bootstrap/bootstrap.hpp"
#include "runtime/bootstrap/nccl_hosts.hpp"

namespace imbrex::program {
namespace {

void set(const runtime::Variables& variables) {
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 0);
}

}  // namespace

void set_nccl_environment() {
  static_cast<void>(base::environment());  // reads what was set before
  set(runtime::nccl_variables());
}

void take_own_nccl_host(const World& world) { set(runtime::own_nccl_host(runtime::random_id(), world.rank())); }

}  // namespace imbrex::program
