#pragma once

#include <cstddef>

namespace imbrex::ops {

/// Bytes of symmetric heap that gather_spans takes for one run of a plan of `tasks` tasks.
std::size_t span_bytes(std::size_t tasks);

}  // namespace imbrex::ops
