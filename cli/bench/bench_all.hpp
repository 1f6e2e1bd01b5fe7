// What bench.cpp knows of `imbrex bench all`.
#pragma once

#include "command.hpp"

namespace imbrex::cli {

/// Adds it to `imbrex bench`. What is returned runs it, once it has been parsed.
std::function<int()> add_bench_all(CLI::App& bench_command);

}  // namespace imbrex::cli
