// Owners of CUDA's memory, which rooms below this one have, too.
#pragma once

#include "base/raw_memory.hpp"
