// Sizes without a tuning entry, noted for `imbrex tune --auto`.
#include "records/untuned.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "imbrex/error.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A file that is not there yet; removed with it.
class UntunedFile : public testing::Test {
 protected:
  ~UntunedFile() override { fs::remove(path_); }

  const fs::path path_ = fs::temp_directory_path() / ("imbrex-untuned-" + std::to_string(::getpid()));
};

const Problem some{Operator::gemm_all_reduce, 512, 8192, 28672, 4, Type::bf16};

TEST(Untuned, LinesAreReadAsTheyAreWritten) {
  test::Random random(test::seed_from_environment());
  std::string text = "# a note\n\n";
  std::vector<Problem> problems;
  for (int i = 0; i < 200; ++i) {
    const Problem drawn = test::random_problem(random, {.max_ranks = 8, .max_size = 3000, .e4m3 = true});
    Problem p{drawn.op, drawn.m, drawn.n, drawn.k, drawn.ranks, drawn.type};
    p.scales = drawn.scales, p.b_layout = drawn.b_layout;
    if (std::find(problems.begin(), problems.end(), p) == problems.end()) problems.push_back(p);
    text += records::line_of(p) + (i % 3 == 0 ? records::line_of(p) : "");
  }
  EXPECT_EQ(records::problems_of_lines(text, "text"), problems);
  EXPECT_EQ(records::line_of(some), "gemm_all_reduce 512 8192 28672 4 bf16 none row_major\n");
}

TEST(Untuned, OtherLinesAreRefused) {
  const auto message = [](const std::string& line) {
    try {
      records::problems_of_lines(records::line_of(some) + line, "sizes.txt");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  for (const char* line :
       {"gemm_all_reduce", "gemm_all_reduce 512 8192 28672 4 bf16 none", "a b c d e f g h",
        "gemm_all_reduce 512 8192 28672 4 bf16 none row_major more",
        "gemm_all_reduce -1 8192 28672 4 bf16 none row_major", "gemm_all_reduce 512 8192 28672 3 bf16 none row_major",
        "gemm_all_reduce 512 8192 99999999999999999999 4 bf16 none row_major",
        "gemm_all_reduce 512 8192 28672 4 bf17 none row_major", "\x1b[31m", " "})
    EXPECT_EQ(message(line).find("sizes.txt, line 2: '"), 0u) << line << ": " << message(line);
  EXPECT_NE(message("gemm_all_reduce 5 6").find("a line is OP M N K RANKS TYPE SCALES B_LAYOUT"), std::string::npos);
  EXPECT_EQ(message("\x1b[31m").find('\x1b'), std::string::npos);
}

TEST_F(UntunedFile, HasEachSizeThatNoEntryCoversOnce) {
  records::Records table{"Some GPU", "2026-12-01", {}};
  table.list.push_back({some, 512, 512, {}, 1e-6, 2e-6});
  Problem other = some, with_bias = some, alone = some, list = some;
  other.m = 513, with_bias.bias = true, alone.ranks = 1;
  list.op = Operator::all_gather_gemm, list.more_n = {1024, 0};
  records::UntunedSizes sizes(path_.string());
  for (int i = 0; i < 3; ++i)
    for (const Problem& p : {some, with_bias, alone, list}) sizes.note(p, table);
  EXPECT_FALSE(fs::exists(path_));
  for (int i = 0; i < 3; ++i) sizes.note(other, table);
  with_bias.m = 513, with_bias.lda = 3 * with_bias.k;  // as the one before for a table
  sizes.note(with_bias, table);
  EXPECT_EQ(text_of(path_), records::line_of(other));
  // Another process adds to it.
  records::UntunedSizes another(path_.string());
  another.note(other, {});
  EXPECT_EQ(text_of(path_), records::line_of(other) + records::line_of(other));
}

TEST_F(UntunedFile, KeepsLinesOfSeveralWriters) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      records::UntunedSizes sizes(path_.string());
      for (int i = 0; i < 50; ++i) {
        Problem p = some;
        p.m = 4 * (i * 4 + t) + 4;
        sizes.note(p, {});
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(records::problems_of_lines(text_of(path_), "file").size(), 200u);
}

TEST_F(UntunedFile, ThatCannotBeWrittenToIsSaidOnce) {
  fs::create_directory(path_);
  records::UntunedSizes sizes(path_.string());
  testing::internal::CaptureStderr();
  Problem other = some;
  other.m = 8;
  sizes.note(some, {});
  sizes.note(other, {});
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said, "imbrex: IMBREX_UNTUNED_SIZES '" + path_.string() + "': Is a directory\n");
  records::UntunedSizes("").note(some, {});
}

}  // namespace
}  // namespace imbrex
