// A stand-in for NCCL of one rank, in a library of NCCL's name: what loads libnccl.so.2 after this library gets it. An
// all-reduce is a kernel on as many blocks as the communicator may take, which moves the bytes and takes as long as a
// curve says for that many.
#pragma once

#include <cstddef>

namespace imbrex::bench {

inline constexpr int most_points = 32;

/// Seconds by bytes, ascending, with straight lines between; beyond the last point on as from the last but one.
struct Curve {
  int count = 0;
  double bytes[most_points] = {}, seconds[most_points] = {};

  double at(double size) const {
    int i = 1;
    while (i + 1 < count && bytes[i] < size) ++i;
    const double slope = (seconds[i] - seconds[i - 1]) / (bytes[i] - bytes[i - 1]);
    return seconds[i - 1] + slope * (size - bytes[i - 1]);
  }
};

}  // namespace imbrex::bench

/// What all-reduces that are queued or captured from now on take.
extern "C" void stand_in_set_curve(const imbrex::bench::Curve* curve);
