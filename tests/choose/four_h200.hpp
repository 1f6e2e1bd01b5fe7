#pragma once

#include "imbrex/machine.hpp"

namespace imbrex::test {

/// The machine that the tables of H200s were measured on.
inline const Machine& four_h200() {
  static const Machine machine = load_machine("4xh200");
  return machine;
}

}  // namespace imbrex::test
