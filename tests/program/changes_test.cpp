#include "program/measure/changes.hpp"

#include <gtest/gtest.h>

#include "imbrex/error.hpp"

namespace imbrex {
namespace {

TEST(Changes, AreReadAsAPlanFileNamesThem) {
  const Knobs base{.tile_m = 64, .group = 4};
  const Knobs k =
      program::with_changes(base, "order=column_major,own_shift=12,span_shards=true,comm_rows=128,split_k=2");
  Knobs expected = base;
  expected.order = TileOrder::column_major;
  expected.own_shift = 12;
  expected.span_shards = true;
  expected.comm_rows = 128;
  expected.split_k = 2;
  EXPECT_EQ(k, expected);
  EXPECT_EQ(program::with_changes(base, ""), base);
  for (const char* wrong : {"order", "order=", "order=sideways", "grupp=1", "group=1.5", "group=", "one_shot=1", "=",
                            "group=99999999999999999999", "group=4,,"})
    EXPECT_THROW(program::with_changes(base, wrong), Error) << wrong;
}

}  // namespace
}  // namespace imbrex
