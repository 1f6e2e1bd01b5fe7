#pragma once

#include <gtest/gtest.h>

#include <string>

#include "imbrex/plan.hpp"

namespace imbrex::test {

/// The checker refuses the plan for this fault, and its message has the text.
inline void expect_fault(const Plan& plan, Fault fault, const std::string& text) {
  const auto finding = check(plan);
  ASSERT_TRUE(finding.has_value()) << "the plan passed; expected " << name_of(fault) << " " << text;
  EXPECT_EQ(name_of(finding->fault), name_of(fault)) << finding->message;
  EXPECT_NE(finding->message.find(text), std::string::npos) << finding->message;
}

}  // namespace imbrex::test
