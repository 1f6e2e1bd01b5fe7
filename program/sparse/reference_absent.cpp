// A build without cuSPARSE.
#include "base/check.hpp"
#include "program/sparse/reference.hpp"

namespace imbrex::program::sparse {

template <typename T>
Reference<T> solve_by_library(const Triangular&, const std::vector<T>&, int,
                              const std::function<double(const std::function<void()>&)>&) {
  throw Error(ErrorCode::invalid_input, "this build of Imbrex has no cuSPARSE to compare with");
}
template Reference<float> solve_by_library(const Triangular&, const std::vector<float>&, int,
                                           const std::function<double(const std::function<void()>&)>&);
template Reference<double> solve_by_library(const Triangular&, const std::vector<double>&, int,
                                            const std::function<double(const std::function<void()>&)>&);

}  // namespace imbrex::program::sparse
