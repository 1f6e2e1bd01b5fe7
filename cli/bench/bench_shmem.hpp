// What bench.cpp knows of `imbrex bench shmem`.
#pragma once

#include "command.hpp"

namespace imbrex::cli {

/// Adds it to `imbrex bench`. What is returned runs it, once it has been parsed.
std::function<int()> add_bench_shmem(Program& program, CLI::App& bench_command);

}  // namespace imbrex::cli
