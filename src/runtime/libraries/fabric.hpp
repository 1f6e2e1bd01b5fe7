// libfabric, found at run time. What it declares inline goes through tables of the objects that these functions make.
#pragma once

#include <rdma/fabric.h>

namespace imbrex::runtime {

struct Fabric {
  decltype(&::fi_getinfo) get_info = nullptr;
  decltype(&::fi_freeinfo) free_info = nullptr;
  decltype(&::fi_dupinfo) copy_info = nullptr;
  decltype(&::fi_fabric) open = nullptr;
  decltype(&::fi_strerror) error_text = nullptr;
};

/// Throws Error(runtime_failure) where libfabric.so.1 cannot be loaded.
const Fabric& fabric();

}  // namespace imbrex::runtime
