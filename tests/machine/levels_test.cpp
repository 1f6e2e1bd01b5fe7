// Levels of a machine's file: both ways, changed, refused.
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "imbrex/error.hpp"
#include "imbrex/machine.hpp"
#include "machine/machine_text.hpp"

namespace imbrex {
namespace {

using test::message_of;
using Json = nlohmann::json;

TEST(Levels, GroupsOfDevicesMayShareWays) {
  Json json = Json::parse(to_json(load_machine("4xh200")));
  EXPECT_EQ(to_json(parse_machine(json.dump(), "machine")).find("levels"), std::string::npos);
  const auto level = [](const char* name, double devices) {
    const auto constant = [](double value, const char* unit) {
      return Json{{"value", value}, {"unit", unit}, {"source", "unverified"}, {"from", "test"}};
    };
    return Json{{"name", name},
                {"devices", constant(devices, "count")},
                {"bandwidth", constant(1e9, "bytes/s")},
                {"latency", constant(1e-6, "s")}};
  };
  json["levels"] = {level("switch", 1), level("socket", 2)};
  Machine machine = parse_machine(json.dump(), "machine");
  EXPECT_EQ(parse_machine(to_json(machine), "machine"), machine);
  set_constant(machine, "levels.socket.bandwidth", {2e9, Provenance::measured, "test"});
  EXPECT_EQ(machine.levels[1].bandwidth, 2e9);
  EXPECT_EQ(machine.levels[0].bandwidth, 1e9);

  const auto refused = [&](const Json& levels, const char* why) {
    json["levels"] = levels;
    EXPECT_NE(message_of(json.dump()).find(why), std::string::npos) << message_of(json.dump());
  };
  refused(Json::array({level("switch", 2), level("socket", 3)}),
          "levels[1].devices is 3; it must be a multiple of the 2");
  refused(Json::array({level("switch", 2), level("socket", 2)}), "it must be a multiple of the 2");
  refused(Json::array({level("switch", 3)}), "it must divide the 4 devices of the machine");
  refused(Json::array({level("a switch", 2)}), "levels[0].name is 'a switch'");
  refused(Json::array({level("one", 1), level("one", 2)}), "as of levels[0]");
  refused(Json::array({level("switch", 0)}), "levels[0].devices.value is 0");
  Json lacks = level("switch", 2);
  lacks.erase("latency");
  refused(Json::array({lacks}), "lacks the key 'latency'");
}

}  // namespace
}  // namespace imbrex
