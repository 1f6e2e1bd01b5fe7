// imbrex version.
#include "command.hpp"

namespace imbrex::cli {

void add_version(Program& program) {
  add_command(program, "version", "Prints the version of Imbrex and how it was built.",
              "Example:\n  imbrex version --json -", [&program] {
                constexpr bool cuda = IMBREX_HAVE_CUDA, fabric = IMBREX_HAVE_FABRIC;
                print_json(program, {{"version", IMBREX_VERSION},
                                     {"compiler", IMBREX_COMPILER},
                                     {"build_type", IMBREX_BUILD_TYPE},
                                     {"blas", IMBREX_BLAS},
                                     {"cuda", cuda},
                                     {"libfabric", fabric}});
                print(program, "imbrex {} ({}, {}, CUDA toolkit {}, libfabric {})", IMBREX_VERSION, IMBREX_COMPILER,
                      IMBREX_BUILD_TYPE, cuda ? "found" : "not found", fabric ? "found" : "not found");
                return 0;
              });
}

}  // namespace imbrex::cli
