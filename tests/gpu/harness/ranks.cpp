#include "gpu/harness/ranks.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "base/fixed_text.hpp"
#include "imbrex/error.hpp"
#include "program/nccl_environment.hpp"

namespace imbrex::test {
namespace {

// Before a test uses NCCL, or starts a thread.
[[maybe_unused]] const bool environment_is_set = (program::set_nccl_environment(), true);

// Messages of the expectations that failed so far, in this process.
std::vector<std::string> failures() {
  std::vector<std::string> texts;
  const testing::TestResult& result = *testing::UnitTest::GetInstance()->current_test_info()->result();
  for (int i = 0; i < result.total_part_count(); ++i) {
    const testing::TestPartResult& part = result.GetTestPartResult(i);
    if (part.failed())
      texts.push_back(std::string(part.file_name() ? part.file_name() : "") + ":" + std::to_string(part.line_number()) +
                      ": " + part.message());
  }
  return texts;
}

}  // namespace

bool ranks_are_processes() {
  const char* text = std::getenv("IMBREX_TEST_RANKS");
  if (text == nullptr || std::string_view(text) == "threads") return false;
  if (std::string_view(text) == "processes") return true;
  throw std::invalid_argument(std::string("IMBREX_TEST_RANKS='") + text + "' must be threads or processes");
}

std::shared_ptr<void> shared_memory(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return {memory, [bytes](void* p) { munmap(p, bytes); }};
}

struct Trouble::Lines {
  static constexpr std::size_t most = 256;
  struct Line {
    char text[1024] = {};  // ends with a zero byte
    std::atomic<bool> whole{false};
  };
  std::atomic<std::size_t> count{0};
  Line lines[most];
};

Trouble::Trouble() : memory_(shared_memory(sizeof(Lines))) {
  static_assert(std::atomic<std::size_t>::is_always_lock_free, "processes share it");
  new (memory_.get()) Lines();
}

void Trouble::add(std::string_view what) {
  const std::size_t place = lines().count++;
  if (place >= Lines::most) return;
  base::put_text(what, lines().lines[place].text);
  lines().lines[place].whole = true;
}

std::vector<std::string> Trouble::list() const {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < std::min<std::size_t>(lines().count, Lines::most); ++i)
    texts.emplace_back(lines().lines[i].whole ? lines().lines[i].text
                                              : "a rank was lost while it told what went wrong");
  return texts;
}

void expect_none(int code, const Trouble& trouble) {
  EXPECT_EQ(code, 0);
  const std::vector<std::string> list = trouble.list();
  for (std::size_t i = 0; i < std::min<std::size_t>(list.size(), 12); ++i) ADD_FAILURE() << list[i];
}

int on_world(int ranks, const WorldOptions& options, const std::function<int(World&)>& body) {
  if (!ranks_are_processes()) return run_threads(ranks, options, body);
  Trouble expectations;
  const std::size_t before = failures().size();
  const auto tell = [&](const World& world) {
    const std::vector<std::string> all = failures();
    for (std::size_t i = before; i < all.size(); ++i)
      expectations.add("rank " + std::to_string(world.rank()) + ": " + all[i]);
  };
  const int code = run_processes(ranks, options, [&](World& world) {
    if (std::getenv("IMBREX_TEST_RANKS_PER_GPU") != nullptr) program::take_own_nccl_host(world);
    try {
      const int own = body(world);
      tell(world);
      return own;
    } catch (...) {
      tell(world);
      throw;
    }
  });
  for (const std::string& text : expectations.list()) ADD_FAILURE() << text;
  return code;
}

}  // namespace imbrex::test
