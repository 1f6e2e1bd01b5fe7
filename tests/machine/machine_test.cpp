// Machine files: both ways, strict, found by name; curves; the probed host.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "imbrex/error.hpp"
#include "imbrex/machine.hpp"
#include "machine/fields.hpp"
#include "machine/machine_text.hpp"
#include "machine/rates.hpp"

namespace imbrex {
namespace {

using test::message_of;
using Json = nlohmann::json;

Json good() { return Json::parse(to_json(load_machine("4xh200"))); }

TEST(Machine, EveryFileSurvivesBothWays) {
  const auto names = machine_names();
  for (const char* name : {"4xh100", "4xh200", "a100-nvlink-8", "a100-pcie-8", "a800-4", "a800-8", "h100-8", "h800-8",
                           "l20-8", "l40-4", "mi210-4", "rtx4090-4"})
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  for (const std::string& name : names) {
    const Machine machine = load_machine(name);
    EXPECT_EQ(machine.name, name);
    EXPECT_EQ(parse_machine(to_json(machine)), machine) << name;
    std::ifstream file(std::string(MACHINES_FOLDER) + "/" + name + ".json");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_TRUE(text == to_json(machine)) << name << " is not laid out as the library writes it";
  }
}

TEST(Machine, EveryConstantSaysWhereItComesFrom) {
  const std::function<void(const Json&, const std::string&)> walk = [&](const Json& node, const std::string& place) {
    if (node.is_object() && node.contains("source")) {
      EXPECT_FALSE(node.at("from").get<std::string>().empty()) << place;
    }
    if (node.is_structured())
      for (const auto& item : node.items()) walk(item.value(), place + "." + item.key());
  };
  for (const std::string& name : machine_names()) walk(Json::parse(to_json(load_machine(name))), name);
}

// Every member of the file, one at a time: removed, retyped, joined by a stranger. All must be refused by name.
TEST(Machine, EveryMemberIsNeededAndTyped) {
  const Json whole = good();
  int places = 0;
  const std::function<void(const Json::json_pointer&)> walk = [&](const Json::json_pointer& pointer) {
    const Json& node = whole.at(pointer);
    for (const auto& item : node.items()) {
      const auto child = pointer / (node.is_array() ? std::to_string(std::stoul(item.key())) : item.key());
      // A machine may lack an element type, curves of rows here and there and of Imbrex' own collectives, a tile's own
      // sustained rate, the rate of unaligned rows, and names of GPUs.
      const std::set<std::string> left_out{"random_rows", "short_rows", "sustained", "sm_unaligned_bandwidth",
                                           "gpus",        "tuned_like"};
      const bool optional = pointer.to_string() == "/compute/sm_rate" || left_out.contains(item.key()) ||
                            item.key().rfind("own_", 0) == 0;
      if (node.is_object() && !optional) {
        Json lacking = whole;
        lacking.at(pointer).erase(item.key());
        EXPECT_NE(message_of(lacking.dump()).find("lacks the key '" + item.key() + "'"), std::string::npos) << child;
      }
      for (const Json& wrong : {Json(), Json(true), Json("x"), Json(-1), Json::array(), Json::object()}) {
        if (wrong.is_string() && item.value().is_string() && item.key() != "unit" && item.key() != "source" &&
            item.key() != "format")
          continue;
        Json retyped = whole;
        retyped.at(child) = wrong;
        EXPECT_NE(message_of(retyped.dump()), "accepted") << child << " as " << wrong;
        ++places;
      }
      if (item.value().is_structured()) walk(child);
    }
    if (node.is_object()) {
      Json more = whole;
      more.at(pointer)["stranger"] = 1;
      const std::string message = message_of(more.dump());
      EXPECT_NE(message.find("stranger"), std::string::npos) << message;
    }
  };
  walk(Json::json_pointer());
  EXPECT_GT(places, 500);
}

TEST(Machine, RulesAreNamed) {
  const auto expect = [](const char* pointer, const Json& value, const char* part) {
    Json changed = good();
    changed.at(Json::json_pointer(pointer)) = value;
    const std::string message = message_of(changed.dump());
    EXPECT_NE(message.find(part), std::string::npos) << pointer << ": " << message;
  };
  expect("/compute/sms/value", 131.5, "machine.compute.sms.value is 131.5; a count must be an integer");
  expect("/compute/sms/value", 0, "a count must be an integer from 1");
  expect("/links/latency/value", -1e-9, "a time must be 0 to 1e6 seconds");
  expect("/links/egress_bandwidth/value", 0, "a rate must be at least 1");
  expect("/compute/sustained_ratio/value", 1.5, "a ratio must be");
  expect("/compute/l2_bytes/unit", "s", "compute.l2_bytes.unit is 's'; it must be 'bytes'");
  expect("/compute/l2_bytes/source", "rumour", "'rumour' is not a source");
  expect("/collectives/all_reduce/points", Json::array(), "needs at least one");
  expect("/collectives/all_reduce/points", {{2, 1}, {1, 1}}, "bytes must increase");
  expect("/collectives/all_reduce/points", {{1, 2}, {2, 1}}, "seconds must not decrease");
  expect("/collectives/all_reduce/points", {{1, 2, 3}}, "at most 2");
  expect("/collectives/own_two_steps/points", {{1, 2}, {2, 1}}, "seconds must not decrease");
  expect("/compute/random_rows/points", {{256, 2}, {512, 1}}, "seconds must not decrease");
  expect("/compute/short_rows/points", {{64, 2e-11}, {128, 1e-11}}, "seconds must not decrease");
  expect("/compute/short_rows/points", {{64, 2e-11}, {256, 3e-11}}, "compute.short_rows ends at 256 bytes");
  expect("/compute/short_rows/points", {{64, 2e-11}, {128, 1e-10}}, "it must end below the first point");
  expect("/compute/tiles", Json::array(), "at least one tile shape");
  expect("/compute/tiles/1", good()["compute"]["tiles"][0], "repeats the tile shape");
  expect("/format", "imbrex-machine-9", "this version reads");
  expect("/devices", 0, "integer from 1");
}

TEST(Machine, OwnCollectivesMayBeLeftOut) {
  Json less = good();
  for (const char* key : {"own_one_step", "own_two_steps"}) ASSERT_EQ(less.at("collectives").erase(key), 1u) << key;
  const Machine machine = parse_machine(less.dump(), "machine");
  EXPECT_TRUE(machine.own_two_steps.points.empty());
  EXPECT_EQ(parse_machine(to_json(machine), "machine"), machine);
}

TEST(Machine, HostsAreThereWholeOrNotAtAll) {
  Json json = good();
  const auto given = [](double value, const char* unit) {
    return Json{{"value", value}, {"unit", unit}, {"source", "unverified"}, {"from", "test"}};
  };
  json["devices"] = 8;
  json["hosts"] = {{"devices", given(4, "count")},
                   {"bandwidth", given(5e10, "bytes/s")},
                   {"latency", given(5e-6, "s")},
                   {"message", given(0, "s")}};
  Machine machine = parse_machine(json.dump(), "machine");
  EXPECT_EQ(machine.host_devices, 4);
  EXPECT_EQ(machine.host_bandwidth, 5e10);
  EXPECT_EQ(parse_machine(to_json(machine), "machine"), machine);
  set_constant(machine, "hosts.latency", {1e-6, Provenance::unverified, "test"});
  EXPECT_EQ(machine.host_latency, 1e-6);
  for (const char* key : {"devices", "bandwidth", "latency", "message"}) {
    Json less = json;
    less["hosts"].erase(key);
    EXPECT_NE(message_of(less.dump()).find(std::string("hosts lacks the key '") + key), std::string::npos) << key;
  }
  json["hosts"]["devices"]["value"] = 3;
  EXPECT_NE(message_of(json.dump()).find("hosts.devices is 3; it must divide the 8 devices"), std::string::npos);
  json["hosts"]["bandwidth"]["value"] = 0;
  EXPECT_NE(message_of(json.dump()).find("hosts.bandwidth.value is 0; a rate"), std::string::npos);
  Machine one = load_machine("4xh200");
  set_constant(one, "hosts.devices", {2, Provenance::unverified, "test"});
  EXPECT_THROW(validate(one), Error);
  set_constant(one, "hosts.bandwidth", {1e9, Provenance::unverified, "test"});
  validate(one);
}

TEST(Machine, RandomRowsMayBeLeftOutAndAreStreamedThen) {
  const Machine machine = load_machine("4xh200");
  EXPECT_DOUBLE_EQ(machine::random_row_seconds(machine, 512), 1.28e-10);
  EXPECT_GT(machine::random_row_seconds(machine, 512), 512 / machine.memory_bandwidth);
  EXPECT_GT(machine::random_row_seconds(machine, 300), machine::random_row_seconds(machine, 256));
  Json less = good();
  ASSERT_EQ(less.at("compute").erase("random_rows"), 1u);
  EXPECT_NE(message_of(less.dump()).find("compute.short_rows stands without compute.random_rows"), std::string::npos);
  ASSERT_EQ(less.at("compute").erase("short_rows"), 1u);
  const Machine streams = parse_machine(less.dump(), "machine");
  EXPECT_EQ(parse_machine(to_json(streams), "machine"), streams);
  EXPECT_DOUBLE_EQ(machine::random_row_seconds(streams, 512), 512 / machine.memory_bandwidth);
}

// Between what its fixed part allows at most and a whole row of 256 bytes, whose time they take without the curve.
TEST(Machine, ShortRowsMayBeLeftOutAndTakeAsLongAsTheShortestMeasuredThen) {
  Machine machine = load_machine("4xh200");
  const double whole = machine::random_row_seconds(machine, 256);
  double last = machine::random_row_seconds(machine, 16);
  for (const double bytes : {64, 96, 128, 200}) {
    const double seconds = machine::random_row_seconds(machine, bytes);
    EXPECT_GE(seconds, last) << bytes;
    EXPECT_GT(seconds, whole * bytes / 256) << bytes;
    EXPECT_LT(seconds, whole) << bytes;
    last = seconds;
  }
  EXPECT_EQ(machine::random_row_seconds(machine, 16), machine::random_row_seconds(machine, 64));
  machine.short_rows = {};
  for (const double bytes : {16, 64, 200}) EXPECT_EQ(machine::random_row_seconds(machine, bytes), whole) << bytes;
}

TEST(Machine, HostileTextIsRefused) {
  for (const std::string text :
       {"", "{", "null", "[]", "1e999", "{\"a\":1,\"a\":2}", "\xff\xfe", "{\"format\":\"\\ud800\"}"})
    EXPECT_NE(message_of(text), "accepted") << text;
  EXPECT_NE(message_of(std::string(100000, '[')).find("deeper"), std::string::npos);
  EXPECT_NE(message_of(std::string((1 << 20) + 1, ' ')).find("1048576"), std::string::npos);
  std::string twice = to_json(load_machine("4xh200"));
  twice.insert(1, "\"name\": \"other\",");
  EXPECT_NE(message_of(twice).find("the key 'name' comes twice in one object"), std::string::npos);
  std::string red = to_json(load_machine("4xh200"));
  red.replace(red.find("4xh200"), 6, R"(\u001b[31m)");
  EXPECT_NE(message_of(red).find(R"(.name is '\x1b[31m')"), std::string::npos) << message_of(red);
  std::string huge = to_json(load_machine("4xh200"));
  huge.replace(huge.find("132"), 3, "1e400");
  EXPECT_NE(message_of(huge), "accepted");
  // Random damage: any answer but a crash.
  std::mt19937 random(1);
  const std::string whole = to_json(load_machine("4xh200"));
  for (int i = 0; i < 2000; ++i) {
    std::string text = whole;
    for (int n = 0; n < 3; ++n) text[random() % text.size()] = static_cast<char>(random());
    if (i % 3 == 0) text.resize(random() % text.size());
    try {
      validate(parse_machine(text));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    }
  }
}

TEST(Machine, FilesAreFoundByNameAndPath) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("imbrex-machines-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  Machine machine = load_machine("h800-8");
  machine.about = "mine";
  std::ofstream(folder / "h800-8.json") << to_json(machine);
  EXPECT_EQ(load_machine("h800-8", {folder.string()}).about, "mine");
  EXPECT_EQ(load_machine((folder / "h800-8.json").string()).about, "mine");
  EXPECT_NE(load_machine("h800-8").about, "mine");
  fs::remove_all(folder);
  for (const std::string name : {"nothing-like-it", "/nowhere/x.json", "", "/", "."}) {
    try {
      load_machine(name);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      if (name == "nothing-like-it") {
        EXPECT_NE(std::string(error.what()).find("4xh200"), std::string::npos);
      }
    }
  }
}

// By the names of its GPUs, in whole.
TEST(Machine, FilesAreFoundByTheirGpus) {
  EXPECT_EQ(find_machine_of("NVIDIA H100 80GB HBM3")->name, "4xh100");
  EXPECT_EQ(find_machine_of("NVIDIA H100 80GB HBM3")->tuned_like, "NVIDIA H200");
  EXPECT_EQ(find_machine_of("NVIDIA H200")->name, "4xh200");
  for (const char* name : {"NVIDIA H100", "NVIDIA", "", "NVIDIA H200 NVL", "4xh200", "nvidia h200"})
    EXPECT_FALSE(find_machine_of(name).has_value()) << name;
  // No GPU is named twice among those that come with the library.
  std::vector<std::string> gpus;
  for (const std::string& name : machine_names())
    for (const std::string& gpu : load_machine(name).gpus) gpus.push_back(gpu);
  std::sort(gpus.begin(), gpus.end());
  EXPECT_EQ(std::adjacent_find(gpus.begin(), gpus.end()), gpus.end());
  // The caller's folders come first, and a file that names the GPU must be a machine.
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("imbrex-gpus-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  Machine machine = load_machine("h800-8");
  machine.gpus = {"A \"GPU\"", "NVIDIA H200", "Some GPU"};
  machine.tuned_like = "NVIDIA H100 80GB HBM3";
  EXPECT_EQ(parse_machine(to_json(machine)), machine);
  std::ofstream(folder / "mine.json") << to_json(machine);
  EXPECT_EQ(find_machine_of("NVIDIA H200", {folder.string()}), machine);
  EXPECT_EQ(find_machine_of("Some GPU", {folder.string()}), machine);
  std::ofstream(folder / "broken.json") << R"({"gpus": ["Some GPU"]})";
  EXPECT_THROW(find_machine_of("Some GPU", {folder.string()}), Error);
  EXPECT_EQ(find_machine_of("NVIDIA H200", {folder.string()}), machine);
  fs::remove_all(folder);
  for (const char* name : {"", "two\nlines"}) {
    machine.gpus = {name};
    EXPECT_THROW(validate(machine), Error);
  }
}

// A Python package holds the library and its machines, and the program that runs it, Python, lies elsewhere.
TEST(Machine, FilesBesideTheLibraryAreFoundFirst) {
  Dl_info library{};
  ASSERT_NE(dladdr(reinterpret_cast<const void*>(&load_machine), &library), 0);
  const auto place = std::filesystem::canonical(library.dli_fname).parent_path().parent_path();
  EXPECT_EQ(machine_folders().front(), (place / "share/imbrex/machines").string());
}

TEST(Machine, CurvesInterpolateBetweenPointsAndKeepTheLastRate) {
  const Curve curve{{{1e3, 1e-5}, {1e5, 1e-3}, {2e5, 4e-3}}, Provenance::unverified, "test"};
  EXPECT_DOUBLE_EQ(seconds_of(curve, 0), 1e-5);
  EXPECT_DOUBLE_EQ(seconds_of(curve, 1e3), 1e-5);
  EXPECT_NEAR(seconds_of(curve, 1e4), 1e-4, 1e-12);
  EXPECT_NEAR(seconds_of(curve, 1e5), 1e-3, 1e-12);
  EXPECT_NEAR(seconds_of(curve, 4e5), 8e-3, 1e-12);
}

TEST(Machine, InMemoryMachinesAreChecked) {
  Machine machine = load_machine("4xh200");
  machine.link_latency.value = std::nan("");
  EXPECT_THROW(validate(machine), Error);
  EXPECT_THROW(validate(Machine{}), Error);
}

TEST(Machine, ConstantsAreSetByTheirPlaces) {
  const Machine before = load_machine("4xh200");
  const Json file = good();
  int places = 0;
  // Every constant of the file but the curves, by the way to it.
  const std::function<void(const Json&, const std::string&)> walk = [&](const Json& node, const std::string& place) {
    if (node.is_object() && node.contains("value")) {
      Machine machine = before;
      const double value = node.at("value").get<double>() == 1 ? 0.5 : 1;
      set_constant(machine, place, {value, Provenance::derived, "test"});
      EXPECT_NE(machine, before) << place;
      EXPECT_NE(to_json(machine).find(R"(, "source": "derived", "from": "test"})"), std::string::npos) << place;
      set_constant(machine, place,
                   {node.at("value").get<double>(), parse_provenance(node.at("source").get<std::string>()),
                    node.at("from").get<std::string>()});
      // Curves that change with a constant say so, whatever it is set to later.
      for (const auto& curve : machine::curves) machine.*curve.member = before.*curve.member;
      for (const auto& curve : machine::own_curves) machine.*curve.member = before.*curve.member;
      for (const auto& curve : machine::row_curves) machine.*curve.member = before.*curve.member;
      EXPECT_EQ(machine, before) << place;
      ++places;
    } else if (node.is_array() && place == "compute.tiles") {
      for (const Json& tile : node) {
        const auto side = [&](const char* key) { return std::to_string(tile.at(key).get<int>()); };
        walk(tile, place + "." + side("tile_m") + "x" + side("tile_n"));
      }
    } else if (node.is_object()) {
      for (const auto& item : node.items()) walk(item.value(), (place.empty() ? "" : place + ".") + item.key());
    }
  };
  walk(file, "");
  EXPECT_GT(places, 30);

  const auto message = [&](const std::string& place, double value) -> std::string {
    Machine machine = before;
    try {
      set_constant(machine, place, {value, Provenance::derived, "test"});
    } catch (const Error& error) {
      EXPECT_EQ(machine, before) << place;
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(message("links.speed", 1).find("'links.speed' is no constant of machine 4xh200"), std::string::npos);
  EXPECT_NE(message("compute.tiles.1x1.prologue", 1).find("compute.tiles.128x256.prologue"), std::string::npos);
  EXPECT_NE(message("collectives.all_gather", 1), "accepted");
  EXPECT_NE(message("links.latency", -1).find("links.latency is -1; a time must be 0 to 1e6"), std::string::npos);
  EXPECT_NE(message("links.egress_bandwidth", 0).find("a rate must be at least 1"), std::string::npos);
  EXPECT_NE(message("links.egress_bandwidth", std::numeric_limits<double>::infinity()).find("must be finite"),
            std::string::npos);
  EXPECT_NE(message("compute.l2_bytes", std::nan("")), "accepted");
  Machine machine = before;
  ASSERT_EQ(machine.sm_rate.erase(Type::e4m3), before.sm_rate.count(Type::e4m3));
  set_constant(machine, "links.latency", {1e-6, Provenance::derived, "test"});
  EXPECT_FALSE(machine.sm_rate.contains(Type::e4m3));
  set_constant(machine, "compute.sm_rate.e4m3", {1e13, Provenance::derived, "test"});
  EXPECT_EQ(machine.sm_rate.at(Type::e4m3).value, 1e13);
}

// Strategies compare wrongly where only links and copies get faster.
TEST(Machine, MeasuredCurvesChangeWithTheConstantsTheyWereMeasuredWith) {
  const Machine before = load_machine("4xh200");
  const auto set = [](Machine& machine, const char* place, double value) {
    set_constant(machine, place, {value, Provenance::unverified, "test"});
    validate(machine);
  };
  Machine machine = before;
  set(machine, "links.egress_bandwidth", before.egress_bandwidth / 2);
  const std::vector<CurvePoint>&was = before.all_gather.points, &now = machine.all_gather.points;
  EXPECT_EQ(now.front().seconds, was.front().seconds);
  EXPECT_NEAR(now.back().seconds, was.front().seconds + 2 * (was.back().seconds - was.front().seconds), 1e-12);
  EXPECT_EQ(machine.all_gather.source, Provenance::unverified);
  EXPECT_EQ(machine.all_gather.from, "scaled with links.egress_bandwidth; before: " + before.all_gather.from);
  EXPECT_NE(machine.own_coded, before.own_coded);
  // The slower way counts.
  Machine both = machine;
  set(both, "links.ingress_bandwidth", before.ingress_bandwidth / 2);
  EXPECT_EQ(both.all_gather, machine.all_gather);

  machine = before;
  set(machine, "links.latency", before.link_latency + 1e-6);
  const auto later = [&](Curve Machine::*curve) {
    return (machine.*curve).points.back().seconds - (before.*curve).points.back().seconds;
  };
  EXPECT_NEAR(later(&Machine::all_gather), 3e-6, 1e-12);
  EXPECT_NEAR(later(&Machine::all_reduce), 6e-6, 1e-12);
  EXPECT_NEAR(later(&Machine::all_to_all), 1e-6, 1e-12);
  EXPECT_NEAR(later(&Machine::own_two_steps), 2e-6, 1e-12);
  set(machine, "links.egress_bandwidth", before.egress_bandwidth / 3);
  EXPECT_EQ(machine.all_gather.from,
            "scaled with links.egress_bandwidth, links.latency; before: " + before.all_gather.from);

  machine = before;
  set(machine, "compute.memory_bandwidth", before.memory_bandwidth / 4);
  EXPECT_DOUBLE_EQ(machine.random_rows.points.front().seconds, 4 * before.random_rows.points.front().seconds);
  EXPECT_EQ(machine.all_gather, before.all_gather);

  // Whatever is set, the machine is one.
  for (const double value : {1.0, 1e300}) {
    machine = before;
    for (const char* place : {"links.egress_bandwidth", "links.ingress_bandwidth", "compute.memory_bandwidth"})
      set(machine, place, value);
  }
  machine = before;
  for (const double value : {0.0, 1e6, 0.0}) set(machine, "links.latency", value);
}

TEST(Machine, WhoReachesWhomMayBeSaid) {
  Json json = good();
  Machine machine = parse_machine(json.dump(), "machine");
  EXPECT_EQ(machine.peer_access, 0);
  EXPECT_TRUE(machine::all_reach(machine, 4));
  EXPECT_EQ(to_json(machine).find("peer_access"), std::string::npos);
  json["links"]["peer_access"] = {{"value", 2}, {"unit", "count"}, {"source", "unverified"}, {"from", "test"}};
  machine = parse_machine(json.dump(), "machine");
  EXPECT_EQ(parse_machine(to_json(machine), "machine"), machine);
  EXPECT_TRUE(machine::reaches(machine, 0, 1));
  EXPECT_TRUE(machine::reaches(machine, 2, 3));
  EXPECT_FALSE(machine::reaches(machine, 1, 2));
  EXPECT_TRUE(machine::all_reach(machine, 2));
  EXPECT_FALSE(machine::all_reach(machine, 3));
  for (const double wrong : {0.0, 1.5, 65537.0}) {
    json["links"]["peer_access"]["value"] = wrong;
    EXPECT_NE(message_of(json.dump()).find("links.peer_access.value is "), std::string::npos) << wrong;
  }
  for (const char* name : {"a100-pcie-8", "l20-8", "l40-4", "rtx4090-4"})
    EXPECT_EQ(load_machine(name).peer_access, 1) << name;
}

TEST(Machine, RowsAmidSectorsMayLoadMoreSlowly) {
  Json json = good();
  json["compute"].erase("sm_unaligned_bandwidth");
  Machine machine = parse_machine(json.dump(), "machine");
  EXPECT_EQ(to_json(machine).find("sm_unaligned_bandwidth"), std::string::npos);
  const double rate = machine.sm_memory_bandwidth;
  for (const std::int64_t pitch : {16, 32, 48}) EXPECT_EQ(machine::load_rate(machine, pitch), rate) << pitch;
  json["compute"]["sm_unaligned_bandwidth"] = {
      {"value", rate / 2}, {"unit", "bytes/s"}, {"source", "measured"}, {"from", "test"}};
  machine = parse_machine(json.dump(), "machine");
  EXPECT_EQ(parse_machine(to_json(machine), "machine"), machine);
  for (const std::int64_t pitch : {32, 64, 4096}) EXPECT_EQ(machine::load_rate(machine, pitch), rate) << pitch;
  for (const std::int64_t pitch : {16, 48, 4112}) EXPECT_EQ(machine::load_rate(machine, pitch), rate / 2) << pitch;
}

TEST(Machine, CodingMayTakeTimeBesideTheCurve) {
  Json json = good();
  Machine machine = parse_machine(json.dump(), "machine");
  EXPECT_EQ(machine.coding_bandwidth, 0);
  EXPECT_EQ(to_json(machine).find("coding_bandwidth"), std::string::npos);
  const double curve = machine::quantized_seconds(machine, false, 4e6, 1e6),
               half = machine::quantized_seconds(machine, true, 4e6, 1e6);
  json["collectives"]["coding_bandwidth"] = {
      {"value", 2e9}, {"unit", "bytes/s"}, {"source", "derived"}, {"from", "test"}};
  machine = parse_machine(json.dump(), "machine");
  EXPECT_EQ(parse_machine(to_json(machine), "machine"), machine);
  EXPECT_DOUBLE_EQ(machine::quantized_seconds(machine, false, 4e6, 1e6), curve + 2e-3);
  EXPECT_DOUBLE_EQ(machine::quantized_seconds(machine, true, 4e6, 1e6), half + 2e-3);
  json["collectives"]["coding_bandwidth"]["value"] = 0.5;
  EXPECT_NE(message_of(json.dump()).find("collectives.coding_bandwidth.value is "), std::string::npos);
}

TEST(Machine, TheProbedHostIsAValidMachine) {
  const Machine machine = probe_machine();
  EXPECT_NO_THROW(validate(machine));
  EXPECT_EQ(parse_machine(to_json(machine)), machine);
  EXPECT_GE(machine.sms.value, 1);
}

}  // namespace
}  // namespace imbrex
