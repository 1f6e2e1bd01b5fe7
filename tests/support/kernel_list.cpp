#include "support/kernel_list.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/check.hpp"
#include "execute/cuda/lanes/lane_plan.hpp"
#include "execute/cuda/libraries/library_translate.hpp"

namespace imbrex::test {
namespace {

constexpr std::string_view columns =
    "# type tile_m tile_n cluster shares slots units planes slice stages pingpong gpus b workers name";

constexpr std::string_view shares[] = {"b", "k"}, slots[] = {"rows", "registers"}, pingpong[] = {"no", "yes"},
                           gpus[] = {"hopper", "any"}, b_layouts[] = {"kxn", "nxk"};

// A line's words, one after another.
class Words {
 public:
  Words(std::string_view line, std::string_view where, std::size_t number)
      : rest_(line), where_(where), number_(number) {}

  std::string_view next(std::string_view what) {
    const std::size_t end = rest_.find(' ');
    if (rest_.empty() || end == 0 || end == std::string_view::npos) refuse(fmt::format("there is no {}", what));
    const std::string_view word = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return word;
  }

  template <typename T>
  T number(std::string_view what) {
    const std::string word(next(what));
    T value{};
    std::istringstream in(word);
    if (word.front() == '-' || !(in >> value) || in.peek() != std::istringstream::traits_type::eof())
      refuse(fmt::format("{} = {}: it must be an integer that is not negative", what, word));
    return value;
  }

  bool second_of(const std::string_view (&names)[2], std::string_view what) {
    const std::string_view word = next(what);
    if (word != names[0] && word != names[1])
      refuse(fmt::format("{} = {}: it must be {} or {}", what, word, names[0], names[1]));
    return word == names[1];
  }

  std::string_view rest(std::string_view what) {
    if (rest_.empty()) refuse(fmt::format("there is no {}", what));
    return rest_;
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorCode::invalid_input, fmt::format("{}:{}: {}", where_, number_, why));
  }

 private:
  std::string_view rest_, where_;
  std::size_t number_;
};

ListedKernel kernel_of(Words words) {
  ListedKernel k{};
  try {
    k.variant.type = parse_type(words.next("type"));
  } catch (const Error& error) {
    words.refuse(error.what());
  }
  cuda::TileShape& shape = k.variant.shape;
  shape.m = words.number<std::int64_t>("tile_m");
  shape.n = words.number<std::int64_t>("tile_n");
  shape.cluster = words.number<int>("cluster");
  shape.sharing = words.second_of(shares, "shares") ? cuda::Sharing::k : cuda::Sharing::b;
  shape.registers = words.second_of(slots, "slots");
  shape.units = words.number<std::uint32_t>("units");
  shape.planes = words.number<std::uint32_t>("planes");
  shape.slice = words.number<std::int64_t>("slice");
  shape.stages = words.number<std::uint32_t>("stages");
  k.variant.pingpong = words.second_of(pingpong, "pingpong");
  k.variant.anywhere = words.second_of(gpus, "gpus");
  k.variant.b_layout = words.second_of(b_layouts, "b") ? Layout::column_major : Layout::row_major;
  k.workers = words.number<int>("workers");
  k.variant.name = words.rest("name");
  return k;
}

}  // namespace

std::string to_text(const KernelList& list) {
  std::string text = fmt::format("# {}\ngeneration {}\n{}\n", list.about, list.generation, columns);
  for (const ListedKernel& k : list.kernels) {
    const cuda::TileShape& s = k.variant.shape;
    text += fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {}\n", name_of(k.variant.type), s.m, s.n, s.cluster,
                        shares[s.sharing == cuda::Sharing::k], slots[s.registers], s.units, s.planes, s.slice, s.stages,
                        pingpong[k.variant.pingpong], gpus[k.variant.anywhere],
                        b_layouts[k.variant.b_layout == Layout::column_major], k.workers, k.variant.name);
  }
  return text;
}

KernelList parse_kernel_list(std::string text, std::string_view where) {
  KernelList list{{}, 0, {}, std::make_shared<const std::string>(std::move(text))};
  std::string_view rest = *list.text;
  for (std::size_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const Words words(line, where, number);
    if (number == 1) {
      if (!line.starts_with("# ")) words.refuse("the first line must say, behind '# ', which GPU this is");
      list.about = line.substr(2);
    } else if (number == 2) {
      constexpr std::string_view generation = "generation ";
      if (!line.starts_with(generation)) words.refuse("the second line must be 'generation' and a number");
      // A space follows it, as it follows words.
      list.generation =
          Words(std::string(line.substr(generation.size())) + " ", where, number).number<int>("generation");
    } else if (number == 3) {
      if (line != columns) words.refuse(fmt::format("the third line must be '{}'", columns));
    } else {
      list.kernels.push_back(kernel_of(words));
    }
  }
  return list;
}

KernelList read_kernel_list(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  IMBREX_EXPECTS(file.good(), "{}: this file cannot be read", path);
  return parse_kernel_list({std::istreambuf_iterator<char>(file), {}}, path);
}

cuda::Kernels kernels_for(const KernelList& list, Type type) {
  cuda::Kernels kernels;
  for (const ListedKernel& k : list.kernels)
    if (k.variant.shape.registers)
      kernels.tensor_core.push_back(&k.variant);
    else if (k.variant.type == type)
      kernels.plain = &k.variant;
  IMBREX_EXPECTS(kernels.plain != nullptr, "the list has no plain kernel of type {}", name_of(type));
  kernels.generation = list.generation;
  kernels.workers = [&list](const cuda::KernelVariant& variant) {
    return std::find_if(list.kernels.begin(), list.kernels.end(),
                        [&](const ListedKernel& k) { return &k.variant == &variant; })
        ->workers;
  };
  return kernels;
}

std::string kernel_of(plan::TaskStream& tasks, const KernelList& list) {
  const Plan& frame = tasks.frame();
  if (cuda::runs_by_libraries(frame) && !cuda::runs_in_lanes(frame)) return std::string(cuda::library_name);
  constexpr int rank = 0;
  const cuda::TableSurvey survey = cuda::survey(tasks, rank).tables;
  return std::string(
      cuda::choose_kernel(frame, survey, survey.tiles(), kernels_for(list, frame.problem.type), {}).name);
}

}  // namespace imbrex::test
