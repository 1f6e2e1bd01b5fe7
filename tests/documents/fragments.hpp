// What the fragments of code in the documents take for given. They are compiled and never linked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <imbrex/imbrex.hpp>

namespace given {

extern std::unique_ptr<imbrex::World> world;
extern imbrex::CudaStream stream;
extern void *a, *b, *y, *a_scale, *b_scale;
extern imbrex::View partial, x, weight, normed;
extern std::int64_t most_tokens;

}  // namespace given
