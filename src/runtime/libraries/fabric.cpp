#include "runtime/libraries/fabric.hpp"

#include "runtime/libraries/shared_library.hpp"

namespace imbrex::runtime {

const Fabric& fabric() {
  static const Fabric loaded = [] {
    const SharedLibrary library("libfabric.so.1");
    Fabric f;
    library.find(f.get_info, "fi_getinfo");
    library.find(f.free_info, "fi_freeinfo");
    library.find(f.copy_info, "fi_dupinfo");
    library.find(f.open, "fi_fabric");
    library.find(f.error_text, "fi_strerror");
    return f;
  }();
  return loaded;
}

}  // namespace imbrex::runtime
