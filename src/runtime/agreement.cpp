#include "runtime/agreement.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <new>
#include <span>

#include "base/check.hpp"
#include "base/hash.hpp"
#include "runtime/calls.hpp"
#include "runtime/control.hpp"

namespace imbrex::runtime {
namespace {

// What goes round first.
struct Digest {
  static constexpr std::uint64_t agreement = 0x3165657267617869;  // "ixagree1"

  std::uint64_t magic = agreement;
  std::uint64_t hash = 0;  // hash of the terms, or of a refusal's message
  std::uint64_t length = 0;
  std::int64_t told = 0;
  std::int32_t refused = 0;  // ErrorCode, or 0
  std::array<std::int32_t, 7> unused{};
};

static_assert(sizeof(Digest) == 64);

// What a rank says, and the exception after a refusal.
struct Answer {
  Digest digest;
  std::string text;
  std::exception_ptr refusal;
};

Answer refusal(ErrorCode code, std::string_view message) {
  Answer answer;
  answer.text = message.substr(0, max_gather_bytes);
  answer.digest.refused = static_cast<std::int32_t>(code);
  answer.refusal = std::current_exception();
  return answer;
}

Answer answer_of(const std::function<Terms()>& ask, const Calls::Asked& asked) {
  Answer answer;
  try {
    const Terms terms = ask();
    answer.text = terms.text();
    // Before the other fields, which may follow from it.
    if (asked.hash != 0) answer.text.insert(answer.text.find('\0') + 1, asked.field + '\0' + asked.value + '\0');
    answer.digest.told = terms.told();
  } catch (const Error& error) {
    answer = refusal(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    answer = refusal(ErrorCode::runtime_failure, "out of memory");
  } catch (const std::exception& error) {
    answer = refusal(ErrorCode::runtime_failure, error.what());
  } catch (...) {
    answer = refusal(ErrorCode::runtime_failure, "an exception that is no std::exception");
  }
  answer.digest.hash = base::hash_of(std::as_bytes(std::span(answer.text)));
  answer.digest.length = answer.text.size();
  return answer;
}

// Every rank's, in as many rounds as the longest takes.
std::vector<std::string> all_texts(World& world, const std::string& own, const std::vector<Digest>& digests) {
  std::size_t longest = 0;
  for (const Digest& digest : digests) longest = std::max(longest, static_cast<std::size_t>(digest.length));
  std::vector<std::string> texts(digests.size());
  for (std::size_t at = 0; at < longest; at += max_gather_bytes) {
    const std::size_t bytes = std::min(max_gather_bytes, longest - at);
    std::string part = at < own.size() ? own.substr(at, bytes) : std::string();
    part.resize(bytes);
    std::string all(bytes * digests.size(), '\0');
    world.all_gather(part.data(), all.data(), bytes);
    for (std::size_t rank = 0; rank < texts.size(); ++rank) texts[rank].append(all, rank * bytes, bytes);
  }
  for (std::size_t rank = 0; rank < texts.size(); ++rank)
    texts[rank].resize(static_cast<std::size_t>(digests[rank].length));
  return texts;
}

std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t end = 0; (end = text.find('\0')) != std::string_view::npos; text.remove_prefix(end + 1))
    parts.push_back(text.substr(0, end));
  return parts;
}

// Ranks that are asked for one thing, and what it is: "ranks 0 and 3", "n = 512".
struct SameAnswer {
  std::vector<int> ranks;
  std::string value;
};

// The odd ones come first.
std::string sentence(std::vector<SameAnswer> answers) {
  std::stable_sort(answers.begin(), answers.end(), [](const SameAnswer& x, const SameAnswer& y) {
    return x.ranks.size() != y.ranks.size() ? x.ranks.size() < y.ranks.size() : x.ranks.front() > y.ranks.front();
  });
  constexpr std::size_t most = 4;
  std::string text;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (i + 1 == most && answers.size() > most) return text + ", other ranks for something else";
    const char* verb = i > 0 ? "" : answers[i].ranks.size() == 1 ? " asks" : " ask";
    text += fmt::format("{}{}{} for {}", i > 0 ? ", " : "", list_ranks(answers[i].ranks), verb, answers[i].value);
  }
  return text;
}

// What each rank is asked for at one place of its terms, where that is not the same for all.
std::vector<SameAnswer> answers_at(const std::vector<std::vector<std::string_view>>& terms, std::size_t place) {
  constexpr std::size_t most_shown = 120;
  const auto part = [](const std::vector<std::string_view>& parts, std::size_t i) {
    return i < parts.size() ? parts[i] : std::string_view();
  };
  const auto text_of_answer = [&](std::size_t rank) {
    const std::string_view field = part(terms[rank], place);
    if (place == 0) return std::string(field);
    const std::string_view value = part(terms[rank], place + 1);
    return fmt::format("{} = {}{}", field, value.substr(0, most_shown), value.size() > most_shown ? "..." : "");
  };
  std::vector<SameAnswer> answers;
  std::vector<std::size_t> first;  // rank of each answer
  for (std::size_t rank = 0; rank < terms.size(); ++rank) {
    const auto same = [&](std::size_t other) {
      return part(terms[other], place) == part(terms[rank], place) &&
             (place == 0 || part(terms[other], place + 1) == part(terms[rank], place + 1));
    };
    const auto answer = static_cast<std::size_t>(std::find_if(first.begin(), first.end(), same) - first.begin());
    if (answer == first.size()) {
      first.push_back(rank);
      answers.push_back({{}, text_of_answer(rank)});
    }
    answers[answer].ranks.push_back(static_cast<int>(rank));
  }
  return answers;
}

std::string disagreement(const std::vector<std::string>& texts) {
  std::vector<std::vector<std::string_view>> terms;
  std::size_t longest = 0;
  for (const std::string& text : texts) {
    terms.push_back(parts_of(text));
    longest = std::max(longest, terms.back().size());
  }
  for (std::size_t place = 0; place < longest; place += place == 0 ? 1 : 2) {
    std::vector<SameAnswer> answers = answers_at(terms, place);
    if (answers.size() == 1) continue;
    return place == 0 ? fmt::format("ranks are asked for different things: {}", sentence(std::move(answers)))
                      : fmt::format("ranks disagree on {}: {}", terms[0][0], sentence(std::move(answers)));
  }
  return "ranks disagree";
}

}  // namespace

std::vector<std::int64_t> agree(World& world, const std::function<Terms()>& ask) {
  const Answer own = answer_of(ask, calls_of(world).asked());
  try {
    calls_of(world).begin_agreement();
  } catch (const Error&) {
    if (own.refusal) std::rethrow_exception(own.refusal);
    throw;
  }
  std::vector<Digest> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own.digest, all.data(), sizeof own.digest);
  bool fine = true;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Digest& digest = all[rank];
    IMBREX_EXPECTS(digest.magic == Digest::agreement, "rank {} is in an all_gather of its own", rank);
    fine = fine && digest.refused == 0 && digest.hash == all[0].hash && digest.length == all[0].length;
  }
  if (!fine) {
    const std::vector<std::string> texts = all_texts(world, own.text, all);
    if (own.refusal) std::rethrow_exception(own.refusal);
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank].refused != 0)
        throw Error(static_cast<ErrorCode>(all[rank].refused), fmt::format("rank {}: {}", rank, texts[rank]));
    throw Error(ErrorCode::invalid_input, disagreement(texts));
  }
  std::vector<std::int64_t> told;
  for (const Digest& digest : all) told.push_back(digest.told);
  return told;
}

}  // namespace imbrex::runtime
