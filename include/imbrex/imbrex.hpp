// All that users of operators and collectives need. What runs plans of one's own lies in imbrex/advanced/, what kernels
// include in imbrex/device/.
#pragma once

#include "imbrex/codec.hpp"
#include "imbrex/collectives.hpp"
#include "imbrex/embedding.hpp"
#include "imbrex/environment.hpp"
#include "imbrex/error.hpp"
#include "imbrex/gpu.hpp"
#include "imbrex/integers.hpp"
#include "imbrex/machine.hpp"
#include "imbrex/operands.hpp"
#include "imbrex/ops.hpp"
#include "imbrex/options.hpp"
#include "imbrex/packed.hpp"
#include "imbrex/plan.hpp"
#include "imbrex/tables.hpp"
#include "imbrex/timeline.hpp"
#include "imbrex/types.hpp"
#include "imbrex/version.hpp"
#include "imbrex/world.hpp"
