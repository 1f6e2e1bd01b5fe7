// A residual and its RMSNorm in float64, and how far right results may lie from it.
#pragma once

#include <cstdint>
#include <vector>

#include "program/reference.hpp"

namespace imbrex::program {

/// sum over the terms of an element (a part of each rank, then the residual), and the bound of its rounded sum in fp32:
/// g * sum |term| + u_T * |sum|, g = n u / (1 - n u), n terms, u = 2^-24.
Reference residual_reference(const std::vector<std::vector<float>>& terms, Type type);

/// The norm of the rows of x, each `hidden` elements, and its bound. The squares' sum has t u / (1 - t u) for t
/// roundings one after another: a thread's additions of products, a warp's five, the warps'; then the mean, eps, the
/// root, the quotient and two products round once each, and the result to the type. (Higham, "Accuracy and Stability of
/// Numerical Algorithms", 2002, section 3.1.) Nothing is left of rows whose squares leave fp32's range; where that is
/// uncertain the bound is infinite.
Reference norm_reference(const std::vector<float>& x, std::int64_t hidden, const std::vector<float>& weight, float eps,
                         Type type);

}  // namespace imbrex::program
