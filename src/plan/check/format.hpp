// Rules of the format, for plans whose tasks come one by one.
#pragma once

#include <memory>

#include "plan/task_stream.hpp"

namespace imbrex::plan {

/// What a FormatCheck throws.
struct Refused {
  Finding finding;
};

class FormatCheck {
 public:
  /// Checks all but the tasks. `frame` outlives the check.
  explicit FormatCheck(const Plan& frame);
  ~FormatCheck();
  void add(const TaskPlace& place, const Task& task);
  /// What shows only once all tasks have come.
  void finish();

 private:
  class Rules;
  std::unique_ptr<Rules> rules_;
};

}  // namespace imbrex::plan
