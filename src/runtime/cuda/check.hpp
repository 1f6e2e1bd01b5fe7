// Checks on CUDA calls, which rooms below this one make, too.
#pragma once

#include "base/cuda_check.hpp"
