// What is known of GPUs that plans are chosen for, as `imbrex doctor` says it.
#include <gtest/gtest.h>

#include <string>

#include "program/explain.hpp"
#include "records/records.hpp"

namespace imbrex {
namespace {

TEST(Knowledge, SaysWhatWasMeasured) {
  const std::string entries = std::to_string(records::records_of("NVIDIA H200").list.size());
  const program::Knowledge h200 = program::knowledge_of("NVIDIA H200", 9),
                           h100 = program::knowledge_of("NVIDIA H100 80GB HBM3", 9);
  EXPECT_TRUE(h200.measured);
  EXPECT_EQ(h200.words, "NVIDIA H200: " + entries + " tuning entries, machine file 4xh200");
  EXPECT_TRUE(h100.measured);
  EXPECT_EQ(h100.words, "NVIDIA H100 80GB HBM3: " + entries + " tuning entries of NVIDIA H200, machine file 4xh100");
}

TEST(Knowledge, SaysWhatWasNot) {
  for (const char* name : {"NVIDIA H20", "NVIDIA H100 80GB HBM3 and NVIDIA H200"}) {
    const program::Knowledge other = program::knowledge_of(name, 9);
    EXPECT_FALSE(other.measured);
    EXPECT_EQ(other.words, std::string(name) +
                               ": no tuning entry, no machine file; auto runs cuBLAS and NCCL; Imbrex "
                               "was not tried on such GPUs");
  }
  const program::Knowledge a100 = program::knowledge_of("NVIDIA A100-SXM4-80GB", 8);
  EXPECT_FALSE(a100.measured);
  EXPECT_EQ(a100.words,
            "NVIDIA A100-SXM4-80GB: machine file a100-nvlink-8, whose products were not measured; auto runs cuBLAS and "
            "NCCL; Imbrex was not tried on such GPUs; collectives of Imbrex' own need Hopper");
}

}  // namespace
}  // namespace imbrex
