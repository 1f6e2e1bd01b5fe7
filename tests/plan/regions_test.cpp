// Whatever region of whatever task leaves its buffer is refused.
#include <gtest/gtest.h>

#include <vector>

#include "imbrex/plan.hpp"

namespace imbrex {
namespace {

// All that a task names.
std::vector<Region*> regions_of(Task& task) {
  std::vector<Region*> regions;
  const auto add = [&](auto&... one) { (regions.push_back(&one), ...); };
  if (auto* tile = std::get_if<Tile>(&task.work)) {
    add(tile->a, tile->b, tile->a_scale);
    for (Region& slot : tile->adds) add(slot);
    for (Store& store : tile->stores) add(store.to);
  } else if (auto* product = std::get_if<Product>(&task.work)) {
    add(product->a, product->b, product->to, product->bias, product->a_scale);
  } else if (auto* transfer = std::get_if<Transfer>(&task.work)) {
    add(transfer->from, transfer->to);
  } else if (auto* reduction = std::get_if<Reduction>(&task.work)) {
    for (Region& from : reduction->from) add(from);
    for (Region& to : reduction->to) add(to);
  } else if (auto* collective = std::get_if<Collective>(&task.work)) {
    add(collective->from, collective->to);
  }
  std::erase_if(regions, [](const Region* region) { return region->empty(); });
  return regions;
}

TEST(Checker, BoundsEveryRegion) {
  std::size_t kinds[6] = {};
  for (const Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter})
    for (const Type type : {Type::fp32, Type::e4m3})
      for (const Strategy strategy : {Strategy::sequential, Strategy::fused})
        for (const Reducer reducer : {Reducer::tile, Reducer::tail}) {
          Knobs knobs;
          knobs.tile_m = knobs.tile_n = 8;
          knobs.transport = Transport::push;
          knobs.reducer = reducer;
          knobs.partial = type == Type::fp32 ? type : Type::bf16;
          const Scales scales = type == Type::fp32 ? Scales::none : Scales::row;
          Plan plan = make_plan({op, 32, 32, 32, 2, type, true, scales}, strategy, knobs);
          for (Queue& queue : plan.ranks[1].queues)
            for (Task& task : queue.tasks)
              for (Region* region : regions_of(task)) {
                const Region own = *region;
                for (std::int64_t Region::*side : {&Region::row, &Region::col}) {
                  region->*side = std::int64_t{1} << 20;
                  const auto finding = check_format(plan);
                  ASSERT_TRUE(finding.has_value()) << kind_of(task) << " " << own.buffer;
                  EXPECT_EQ(finding->fault, Fault::bounds) << finding->message;
                  *region = own;
                }
                ++kinds[task.work.index()];
              }
          EXPECT_FALSE(check_format(plan).has_value());
        }
  for (std::size_t kind = 0; kind < 5; ++kind) EXPECT_GT(kinds[kind], 4u) << kind;
}

}  // namespace
}  // namespace imbrex
