// What a user measured of a card decides what auto runs on it.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "choose/card.hpp"
#include "choose/choose_gpu.hpp"
#include "imbrex/error.hpp"
#include "machine/card_file.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

// The environment is read once: the folder is there before anything asks.
const std::filesystem::path folder = [] {
  std::string name = (std::filesystem::temp_directory_path() / "imbrex-cards-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) std::abort();
  setenv("IMBREX_CACHE", (name + "/cards").c_str(), 1);
  std::filesystem::create_directory(name + "/cards");
  return std::filesystem::path(name);
}();

class RemovesFolder : public testing::Environment {
  void TearDown() override { std::filesystem::remove_all(folder); }
};
const auto* const removes = testing::AddGlobalTestEnvironment(new RemovesFolder);

Machine measured(const std::string& gpu, double error) {
  Machine machine = load_machine("4xh100");
  machine.name = "measured";
  machine.gpus = {gpu};
  machine.tuned_like.clear();
  machine.model_error = {error, Provenance::measured, "test"};
  return machine;
}

void keep(const std::string& gpu, const std::string& text) { std::ofstream(machine::card_file(gpu)) << text; }

plan::Candidate chosen_on(const std::string& gpu, const Problem& p) {
  return choose::choose_gpu_candidate(p, {}, {}, {gpu, 9});
}

TEST(MeasuredCard, DecidesWhatRuns) {
  keep("NVIDIA X9", to_json(measured("NVIDIA X9", 0.02)));
  keep("NVIDIA X8", to_json(measured("NVIDIA X8", 1)));
  EXPECT_TRUE(choose::card_of("NVIDIA X9").is_measured());
  EXPECT_FALSE(choose::card_of("NVIDIA X7").is_measured());
  EXPECT_EQ(choose::card_of("NVIDIA X9").machine(Type::bf16, true).name, "measured");
  EXPECT_NE(choose::digest_of_tables({"NVIDIA X9", 9}), choose::digest_of_tables({"NVIDIA X8", 9}));
  test::Random random(test::seed_from_environment());
  int fused = 0, doubted = 0;
  for (int i = 0; i < 200; ++i) {
    const Problem p{random.one_of({Operator::gemm_reduce_scatter, Operator::gemm_all_reduce}),
                    1024 * random.between(1, 8),
                    1024 * random.between(2, 8),
                    1024 * random.between(2, 16),
                    random.one_of({2, 4}),
                    Type::bf16};
    fused += chosen_on("NVIDIA X9", p).strategy == Strategy::fused;
    // A model that may be off by half promises nothing that a library does not keep.
    doubted += chosen_on("NVIDIA X8", p).strategy == Strategy::fused;
    EXPECT_EQ(chosen_on("NVIDIA X7", p).strategy, Strategy::sequential);
  }
  EXPECT_GT(fused, 100);
  EXPECT_LT(doubted, fused / 4);
}

TEST(MeasuredCard, ABrokenFileIsNamed) {
  const auto said = [](const std::string& gpu) -> std::string {
    try {
      choose::card_of(gpu);
    } catch (const Error& error) {
      return error.code() == ErrorCode::invalid_input ? error.what() : "another kind of error";
    }
    return "accepted";
  };
  const std::string whole = to_json(measured("NVIDIA X6", 0.1));
  keep("NVIDIA X6", whole.substr(0, whole.size() / 2));
  EXPECT_NE(said("NVIDIA X6").find(machine::card_file("NVIDIA X6")), std::string::npos) << said("NVIDIA X6");
  keep("NVIDIA X5", whole);
  EXPECT_NE(said("NVIDIA X5").find("is not about NVIDIA X5"), std::string::npos) << said("NVIDIA X5");
  // They keep no one from measuring anew.
  for (const char* gpu : {"NVIDIA X6", "NVIDIA X5"}) {
    EXPECT_NE(machine::remove_broken_card(gpu).find(gpu == std::string("NVIDIA X5") ? "is not about" : "nvidia-x6"),
              std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(machine::card_file(gpu)));
    EXPECT_FALSE(machine::measured_card(gpu).has_value());
  }
  EXPECT_EQ(machine::remove_broken_card("NVIDIA X9"), "");
  EXPECT_TRUE(std::filesystem::exists(machine::card_file("NVIDIA X9")));
  // Another card's file is not read.
  EXPECT_EQ(said("NVIDIA X4"), "accepted");
}

TEST(MeasuredCard, AFileIsOfOneGpuDriverAndVersion) {
  const auto file = [](const char* gpu, const char* driver, const char* own, const char* caches, const char* home) {
    return machine::card_file(
        gpu, driver, base::Environment([=](const char* name) -> const char* {
          const std::string_view asked = name;
          return asked == "IMBREX_CACHE" ? own : asked == "XDG_CACHE_HOME" ? caches : asked == "HOME" ? home : nullptr;
        }));
  };
  EXPECT_EQ(file("NVIDIA H100 80GB HBM3", "580.65.06", "/own", "/caches", "/home"),
            "/own/nvidia-h100-80gb-hbm3_580.65.06_0.1.0.json");
  EXPECT_EQ(file("NVIDIA H200", "none", nullptr, "/caches", "/home"), "/caches/imbrex/nvidia-h200_none_0.1.0.json");
  EXPECT_EQ(file("../../etc/x", "1", nullptr, nullptr, "/home"), "/home/.cache/imbrex/..-..-etc-x_1_0.1.0.json");
  EXPECT_EQ(file("NVIDIA H200", "1", nullptr, nullptr, nullptr), "");
}

}  // namespace
}  // namespace imbrex
