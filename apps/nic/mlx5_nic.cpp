#include "apps/nic/mlx5_nic.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include "apps/common/check.hpp"
#include "apps/nic/mlx5_device.hpp"

namespace imbrex::shmem::mlx5 {
namespace {

constexpr std::uint64_t area_page = 4096;

std::uint64_t whole(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Runs a step of this PE and hears of all others': what the first that failed says.
std::optional<std::string> failure_of_all(World& world, const std::function<void()>& step) {
  struct Said {
    bool failed = false;
    char text[1000] = {};
  } own;
  try {
    step();
  } catch (const std::exception& error) {
    own.failed = true;
    std::strncpy(own.text, error.what(), sizeof own.text - 1);
  }
  std::vector<Said> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, all.data(), sizeof own);
  for (std::size_t pe = 0; pe < all.size(); ++pe)
    if (all[pe].failed) {
      all[pe].text[sizeof own.text - 1] = 0;
      const int host = world.host_of(static_cast<int>(pe));
      return fmt::format("PE {}{}: {}", pe, world.hosts() == 1 ? "" : fmt::format(" (host {})", world.host_name(host)),
                         all[pe].text);
    }
  return std::nullopt;
}

}  // namespace

#if IMBREX_NIC_HAS_MLX5

// Where things lie in a PE's area.
struct QueueArea {
  explicit QueueArea(const QueueLayout& layout)
      : slots(layout.options().slots),
        ring_bytes(whole(std::uint64_t{slots} * sizeof(Request), area_page)),
        completions(layout.count() * ring_bytes),
        records(2 * completions),
        endpoint(records + layout.count() * 2 * line),
        contexts(endpoint + line),
        queues(contexts + layout.options().contexts * sizeof(Shared)),
        bytes(whole(queues + layout.count() * sizeof(Queue), area_page)) {}

  static constexpr std::uint64_t line = 64;
  std::uint64_t slots;
  std::uint64_t ring_bytes;  // as many completions have: a NIC may take a whole queue of them
  std::uint64_t completions, records, endpoint, contexts, queues, bytes;

  std::uint64_t ring_of(std::uint32_t i) const { return i * ring_bytes; }
  std::uint64_t completions_of(std::uint32_t i) const { return completions + i * ring_bytes; }
  // A queue pair's: how many it may receive, how many were sent; a completion queue's.
  std::uint64_t pair_record_of(std::uint32_t i) const { return records + i * 2 * line; }
  std::uint64_t completions_record_of(std::uint32_t i) const { return pair_record_of(i) + line; }
};
static_assert(sizeof(Request) == sizeof(Completion) && sizeof(Endpoint) <= QueueArea::line);

struct Mlx5Nic::Parts {
  Parts(Heap& its, const QueueOptions& options) : heap(its), layout(its, options), area(layout) {}
  ~Parts() { heap.use_transport(nullptr); }

  void open(const Mlx5Options& options);
  void create();
  void exchange();
  void fill();
  void connect();
  std::byte* at(std::uint64_t offset) const { return begin + offset; }
  NicGpu* gpu_or_none() const { return gpu.get(); }

  Heap& heap;
  QueueLayout layout;
  QueueArea area;
  std::optional<Array<std::uint64_t>> scratch, memory;
  std::byte* begin = nullptr;  // of the area, in `memory`
  std::unique_ptr<Mlx5Device> device;
  std::vector<Mlx5Queue> queues;
  std::vector<std::uint64_t*> doorbells;
  std::unique_ptr<NicGpu> gpu;  // behind the queues: it lets go of their doorbells before they do
  std::vector<PortCard> cards;
  std::vector<std::uint32_t> numbers;  // [PE][queue]
  RegionKeys keys{};
  std::vector<Port> ports;
};

void Mlx5Nic::Parts::open(const Mlx5Options& options) {
  device = std::make_unique<Mlx5Device>(options);
  if (heap.device() != Device::cuda) return;
  gpu = std::make_unique<NicGpu>(heap.gpu(), options.cuda_library);
  gpu->expect_ordered_writes();
}

void Mlx5Nic::Parts::create() {
  device->register_memory(layout.begin(), layout.bytes(), gpu_or_none());
  device->map_queues(begin, area.bytes, gpu_or_none());
  for (std::uint32_t i = 0; i < layout.count(); ++i) {
    queues.push_back(device->create_queue({area.ring_of(i), area.completions_of(i), area.pair_record_of(i),
                                           area.completions_record_of(i), layout.options().slots},
                                          gpu != nullptr));
    void* doorbell = queues.back().uar->reg_addr;
    doorbells.push_back(gpu ? gpu->map_register(doorbell, sizeof(std::uint64_t))
                            : static_cast<std::uint64_t*>(doorbell));
  }
}

// Collective.
void Mlx5Nic::Parts::exchange() {
  World& world = heap.world();
  PortCard card = device->card();
  card.queues = layout.count();
  cards.resize(layout.pes());
  world.all_gather(&card, cards.data(), sizeof card);
  numbers.resize(std::size_t{layout.pes()} * layout.count());
  constexpr std::uint32_t most = 1024;  // that all_gather takes at once
  std::vector<std::uint32_t> all(std::size_t{layout.pes()} * most);
  for (std::uint32_t from = 0; from < layout.count(); from += most) {
    std::array<std::uint32_t, most> mine{};
    const std::uint32_t some = std::min(most, layout.count() - from);
    for (std::uint32_t i = 0; i < some; ++i) mine[i] = queues[from + i].number;
    world.all_gather(mine.data(), all.data(), sizeof mine);
    for (std::uint32_t pe = 0; pe < layout.pes(); ++pe)
      std::copy_n(all.begin() + pe * most, some, numbers.begin() + std::size_t{pe} * layout.count() + from);
  }
}

// Everything that kernels find, first here, then where they find it.
void Mlx5Nic::Parts::fill() {
  keys.local = device->local_key();
  keys.base = device->card().base;
  for (std::uint32_t pe = 0; pe < layout.pes(); ++pe) {
    IMBREX_EXPECTS(cards[pe].base == keys.base && cards[pe].queues == layout.count(),
                   "PEs disagree: PE {} has {} queues and memory at {:#x}, this one {} and {:#x}", pe, cards[pe].queues,
                   cards[pe].base, layout.count(), keys.base);
    keys.remote.push_back(cards[pe].key);
  }
  std::vector<std::byte> image(area.bytes);
  const auto place = [&](std::uint64_t offset, const auto& value) {
    std::memcpy(&image[offset], &value, sizeof value);
  };
  place(area.endpoint, layout.endpoint(reinterpret_cast<Shared*>(at(area.contexts)), keys));
  auto* const queues_there = reinterpret_cast<Queue*>(at(area.queues));
  for (std::uint32_t c = 0; c < layout.options().contexts; ++c)
    place(area.contexts + c * sizeof(Shared), layout.context(c, queues_there, scratch->data()));
  // As no NIC writes them.
  std::memset(&image[area.completions], 0xff, area.records - area.completions);
  Completion first{};
  first.word[15] = nothing_yet;
  std::vector<Request> ring(layout.options().slots);
  for (std::uint32_t i = 0; i < layout.count(); ++i) {
    const std::uint32_t number = queues[i].number;
    auto* completion = reinterpret_cast<Completion*>(at(area.completions_of(i)));
    // The second 4 bytes count what is sent.
    auto* record = reinterpret_cast<std::uint32_t*>(at(area.pair_record_of(i))) + 1;
    layout.prepare_ring(ring, i, number, keys, scratch->data());
    std::memcpy(&image[area.ring_of(i)], ring.data(), ring.size() * sizeof(Request));
    place(area.completions_of(i), first);
    place(area.queues + i * sizeof(Queue),
          layout.queue(i, {reinterpret_cast<Request*>(at(area.ring_of(i))), record, doorbells[i], completion, number},
                       scratch->data()));
    ports.push_back({queues_there + i, completion, number, layout.options().slots, layout.pe_of(i)});
  }
  heap.write(begin, image.data(), image.size(), heap.pe());
}

void Mlx5Nic::Parts::connect() {
  const auto me = static_cast<std::uint32_t>(heap.pe());
  for (std::uint32_t pe = 0; pe < layout.pes(); ++pe) {
    const PortPath path = device->path_to(cards[pe]);
    // The peer's queue of the same context and kind that leads here; to itself, a queue is its own peer.
    for (std::uint32_t i = 0; i < layout.count(); ++i) {
      if (layout.pe_of(i) != pe) continue;
      const std::uint32_t there = i - pe * kinds + me * kinds;
      device->connect(queues[i], numbers[std::size_t{pe} * layout.count() + there], cards[pe], path);
    }
  }
}

Mlx5Nic::Mlx5Nic(Heap& heap, const QueueOptions& options, const Mlx5Options& nic)
    : parts_(std::make_unique<Parts>(heap, options)) {
  const auto together = [&](const std::function<void()>& step) {
    const auto failure = failure_of_all(heap.world(), step);
    if (!failure) return;
    parts_.reset();  // before anything is thrown: arrays go on all PEs at once
    throw Error(ErrorCode::runtime_failure, "no mlx5 NIC: " + *failure);
  };
  together([&] { parts_->open(nic); });
  parts_->scratch.emplace(heap, parts_->layout.scratch_words());
  parts_->memory.emplace(heap, (parts_->area.bytes + area_page) / 8);
  const auto address = reinterpret_cast<std::uintptr_t>(parts_->memory->data());
  parts_->begin = reinterpret_cast<std::byte*>(parts_->memory->data()) + (whole(address, area_page) - address);
  together([&] { parts_->create(); });
  parts_->exchange();
  together([&] {
    parts_->fill();
    parts_->connect();
  });
  heap.use_transport(parts_->at(parts_->area.endpoint));
}

Mlx5Nic::~Mlx5Nic() = default;

const std::string& Mlx5Nic::device() const { return parts_->device->name(); }
const std::vector<Port>& Mlx5Nic::ports() const { return parts_->ports; }
const RegionKeys& Mlx5Nic::keys() const { return parts_->keys; }

#else

// A build without libibverbs' headers.
struct Mlx5Nic::Parts {
  std::string device;
  std::vector<Port> ports;
  RegionKeys keys;
};

Mlx5Nic::Mlx5Nic(Heap& heap, const QueueOptions& options, const Mlx5Options&) {
  const QueueLayout layout(heap, options);
  const auto failure = failure_of_all(heap.world(), [] {
    throw Error(ErrorCode::runtime_failure,
                "this build had no headers of libibverbs and libmlx5 (libibverbs-dev); build it again with them");
  });
  throw Error(ErrorCode::runtime_failure, "no mlx5 NIC: " + failure.value_or(""));
}
Mlx5Nic::~Mlx5Nic() = default;
const std::string& Mlx5Nic::device() const { return parts_->device; }
const std::vector<Port>& Mlx5Nic::ports() const { return parts_->ports; }
const RegionKeys& Mlx5Nic::keys() const { return parts_->keys; }

#endif

}  // namespace imbrex::shmem::mlx5
