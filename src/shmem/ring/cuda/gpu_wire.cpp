// The wire between PEs whose parts lie on GPUs of one host: copies and written words on a stream of its own, beside
// kernels that wait.
//
// Nothing here needs an SM, which those kernels may have all of. A copy within one GPU could be done by a
// kernel of the driver's, so it goes by a piece of pinned memory, in the order of the stream: two transfers of the copy
// engines. Copies between GPUs are one. Words of 4 and 8 bytes are written by the stream itself.
//
// Atomic operations. The host reaches a GPU's memory by copies only, so the PE that has the word does them: the others
// leave requests in memory of the host that all share, and its thread, the only one that changes words so, reads the
// words, changes them and writes them back, many at a time. A PE's own requests go the same way.
//
// Order. All copies of a PE are on one stream. A request to a PE is left once this PE's copies to it are complete, and
// copies to it begin once its requests are done.
#include <array>
#include <deque>
#include <vector>

#include "base/check.hpp"
#include "imbrex/device/shmem/words.hpp"
#include "runtime/cuda/asks_during_captures.hpp"
#include "runtime/cuda/device_memory.hpp"
#include "runtime/cuda/driver.hpp"
#include "shmem/ring/pinned.hpp"
#include "shmem/ring/wire.hpp"

namespace imbrex::shmem::ring {
namespace {

constexpr std::size_t piece_bytes = std::size_t{1} << 20;  // of pinned memory, for copies within a GPU
constexpr std::size_t words_under_way = 1024;              // that copies read, and results
constexpr std::size_t most_batches = 64;                   // events that are waited for
constexpr std::size_t most_written = 256;                  // words that the stream is told of at once
constexpr std::uint32_t requests_each = 16;                // of one PE to another

/// In memory that PEs share. The sender writes all but `done` and `result`, and `sent` last.
struct alignas(64) Request {
  std::uint64_t there, operand, compare, result;
  std::uint32_t verb, type, bytes;
  std::uint32_t unused;
  std::uint32_t sent, done;  ///< by how often this place was used
};

/// What the owner makes of what was there.
template <typename T>
T changed(const Request& request, T before) {
  const auto operand = words::cast<T>(static_cast<words::BitsOf<T>>(request.operand));
  if constexpr (Integer<T>) switch (static_cast<Verb>(request.verb)) {
      case Verb::swap: return operand;
      case Verb::compare_swap: return before == static_cast<T>(request.compare) ? operand : before;
      case Verb::fetch_and: return before & operand;
      case Verb::fetch_or: return before | operand;
      case Verb::fetch_xor: return before ^ operand;
      default: break;
    }
  return before + operand;
}
template <typename T>
std::uint64_t changed_bits(const Request& request, std::uint64_t before) {
  return words::cast<words::BitsOf<T>>(changed(request, words::cast<T>(static_cast<words::BitsOf<T>>(before))));
}
std::uint64_t changed_bits(const Request& request, std::uint64_t before) {
  const bool floating = static_cast<WordType>(request.type) == WordType::floating_point &&
                        static_cast<Verb>(request.verb) == Verb::fetch_add;
  if (floating)
    return request.bytes == 4 ? changed_bits<float>(request, before) : changed_bits<double>(request, before);
  return request.bytes == 4 ? changed_bits<std::uint32_t>(request, before)
                            : changed_bits<std::uint64_t>(request, before);
}

class GpuWire final : public Wire {
 public:
  explicit GpuWire(Heap& heap)
      : gpu_(heap.gpu()),
        group_(heap.handle().group),
        part_bytes_(static_cast<std::uint64_t>(heap.handle().own - reinterpret_cast<std::byte*>(group_.own)) +
                    heap.handle().bytes),
        world_(heap.world()),
        piece_(pinned_memory(gpu_, piece_bytes)),
        words_(pinned_memory(gpu_, words_under_way * 8)),
        read_(pinned_memory(gpu_, requests_each * group_.ranks * 8)),
        ask_waits_(group_.ranks),
        copies_(group_.ranks),
        asked_(group_.ranks),
        sent_(group_.ranks),
        served_(group_.ranks) {
    runtime::select_gpu(gpu_);
    int least = 0, greatest = 0;
    IMBREX_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    // Streams of another priority do not share a queue of the GPU with a kernel that waits.
    IMBREX_CUDA_TRY(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
    writes_words_ = runtime::device_attribute(gpu_, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) != 0;
    for (std::uint32_t pe = 0; pe < group_.ranks; ++pe) {
      cudaPointerAttributes attributes{};
      IMBREX_CUDA_TRY(cudaPointerGetAttributes(&attributes, part_of(pe)));
      // What is not known to lie elsewhere could be copied by a kernel.
      same_gpu_.push_back(attributes.type != cudaMemoryTypeDevice || attributes.device == gpu_);
    }
    try_all();
    mail_ = world_.heap().allocate(sizeof(Request) * requests_each * group_.ranks);
    world_.barrier();
  }

  ~GpuWire() override {
    cudaSetDevice(gpu_);
    const cuda::AsksDuringCaptures asks;
    cudaStreamSynchronize(stream_);
    for (const Batch& batch : batches_) cudaEventDestroy(batch.event);
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    cudaStreamDestroy(stream_);
  }

  bool begin(const WireTransfer& transfer) override {
    const bool is_word = transfer.verb == Verb::put_word;
    if (!is_word && transfer.verb != Verb::put && transfer.verb != Verb::get) return ask(transfer);
    if (batches_.size() >= most_batches || ask_waits_[transfer.pe] || !asked_[transfer.pe].empty() ||
        (is_word && word_count_ - word_done_ >= words_under_way / 2))
      return false;
    std::byte* there = part_of(transfer.pe) + transfer.there;
    if (is_word)
      write_word(there, transfer.operand, transfer.bytes);
    else if (transfer.verb == Verb::put)
      copy(there, transfer.here, transfer.bytes, same_gpu_[transfer.pe]);
    else
      copy(transfer.here, there, transfer.bytes, same_gpu_[transfer.pe]);
    ++copies_[transfer.pe];
    queued_.push_back({transfer.token, transfer.pe});
    return true;
  }

  std::size_t poll(std::span<std::uint64_t> tokens) override {
    collect();
    serve_others();
    look_for_answers();
    record();
    const std::size_t count = std::min(tokens.size(), done_.size());
    std::copy_n(done_.begin(), count, tokens.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }

  bool keeps_order() const override { return true; }

 private:
  static constexpr std::uint32_t no_pe = ~0u;
  struct Copied {
    std::uint64_t token;
    std::uint32_t pe;  ///< or none, of an answer that was brought to its place
  };
  /// What an event tells of.
  struct Batch {
    cudaEvent_t event;
    std::vector<Copied> copied;
    std::uint64_t words;
  };
  struct Asked {
    std::uint32_t place, use;
    std::uint64_t token;
    std::byte* here;
    std::uint64_t bytes;
  };
  struct Serving {
    std::uint32_t pe, place;
    std::size_t word;  ///< of read_
  };
  enum class Step { idle, reading, writing };

  std::byte* part_of(std::uint32_t pe) const {
    return device::at_rank(group_, reinterpret_cast<std::byte*>(group_.own), pe);
  }
  Request& request(std::uint32_t owner, std::uint32_t sender, std::uint32_t place) const {
    auto* mail = reinterpret_cast<Request*>(world_.heap().handle().at(static_cast<int>(owner), mail_));
    return mail[sender * requests_each + place];
  }

  // ----------------------------------------------------------------------------------------------- the stream

  /// Does once what it is going to do, while no kernel waits: what a driver sets up at first use could wait for them.
  void try_all() {
    auto* const unused = reinterpret_cast<std::byte*>(&group_.own->unused[1]);  // 8 bytes, aligned so
    copy(unused, unused, 8, true);
    write_word(unused, 0, 8);
    write_words();
    copy_word(unused, 0, 8);
    for (int i = 0; i < 8; ++i) batches_.push_back({mark(), {}, word_count_});
    IMBREX_CUDA_TRY(cudaStreamSynchronize(stream_));
    collect();
  }

  void copy(std::byte* to, const std::byte* from, std::uint64_t bytes, bool within) {
    write_words();
    if (!within) {
      IMBREX_CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
      return;
    }
    for (std::uint64_t done = 0; done < bytes; done += piece_bytes) {
      const std::size_t piece = std::min<std::uint64_t>(bytes - done, piece_bytes);
      IMBREX_CUDA_TRY(cudaMemcpyAsync(piece_.get(), from + done, piece, cudaMemcpyDeviceToHost, stream_));
      IMBREX_CUDA_TRY(cudaMemcpyAsync(to + done, piece_.get(), piece, cudaMemcpyHostToDevice, stream_));
    }
  }

  void write_word(std::byte* there, std::uint64_t value, std::uint64_t bytes) {
    if (writes_words_ && bytes >= 4) {
      CUstreamBatchMemOpParams one{};
      one.writeValue.operation = bytes == 8 ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
      one.writeValue.address = reinterpret_cast<CUdeviceptr>(there);
      one.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;  // behind all that the stream wrote before
      if (bytes == 8)
        one.writeValue.value64 = value;
      else
        one.writeValue.value = static_cast<std::uint32_t>(value);
      written_.push_back(one);
      if (written_.size() == most_written) write_words();
    } else {
      write_words();
      copy_word(there, value, bytes);
    }
  }

  /// Queues what write_word has gathered.
  void write_words() {
    if (written_.empty()) return;
    const CUresult result =
        runtime::driver().batch_mem_op(stream_, static_cast<unsigned>(written_.size()), written_.data(), 0);
    if (result != CUDA_SUCCESS) {
      writes_words_ = false;  // not for this memory, or under this driver
      for (const CUstreamBatchMemOpParams& one : written_) {
        const bool whole = one.writeValue.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
        copy_word(reinterpret_cast<std::byte*>(one.writeValue.address),
                  whole ? one.writeValue.value64 : one.writeValue.value, whole ? 8 : 4);
      }
    }
    written_.clear();
  }

  void copy_word(std::byte* there, std::uint64_t value, std::uint64_t bytes) {
    std::byte* word = words_.get() + word_count_++ % words_under_way * 8;
    std::memcpy(word, &value, sizeof value);
    IMBREX_CUDA_TRY(cudaMemcpyAsync(there, word, bytes, cudaMemcpyHostToDevice, stream_));
  }

  cudaEvent_t mark() {
    cudaEvent_t event = nullptr;
    if (events_.empty()) {
      IMBREX_CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    } else {
      event = events_.back();
      events_.pop_back();
    }
    IMBREX_CUDA_TRY(cudaEventRecord(event, stream_));
    return event;
  }

  static bool is_done(cudaEvent_t event) {
    const cudaError_t status = cudaEventQuery(event);
    if (status == cudaErrorNotReady) return false;
    IMBREX_CUDA_TRY(status);
    return true;
  }

  /// An event behind what was queued since the last one.
  void record() {
    write_words();
    if (queued_.empty()) return;
    batches_.push_back({mark(), std::move(queued_), word_count_});
    queued_.clear();
  }

  void collect() {
    while (!batches_.empty() && is_done(batches_.front().event)) {
      Batch& batch = batches_.front();
      for (const Copied& one : batch.copied) {
        if (one.pe != no_pe) --copies_[one.pe];
        done_.push_back(one.token);
      }
      word_done_ = batch.words;
      events_.push_back(batch.event);
      batches_.pop_front();
    }
  }

  // -------------------------------------------------------------------------------------- atomic operations

  bool ask(const WireTransfer& transfer) {
    if (asked_[transfer.pe].size() >= requests_each) return false;
    ask_waits_[transfer.pe] = copies_[transfer.pe] != 0;  // then no more copies come before it
    if (ask_waits_[transfer.pe]) return false;
    const std::uint32_t number = sent_[transfer.pe]++, place = number % requests_each, use = number / requests_each + 1;
    Request& there = request(transfer.pe, group_.rank, place);
    there.there = transfer.there, there.operand = transfer.operand, there.compare = transfer.compare;
    there.verb = static_cast<std::uint32_t>(transfer.verb), there.type = static_cast<std::uint32_t>(transfer.type);
    there.bytes = static_cast<std::uint32_t>(transfer.bytes);
    words::store(&there.sent, use);
    asked_[transfer.pe].push_back({place, use, transfer.token, transfer.here, transfer.bytes});
    return true;
  }

  /// In the order of asking, so that places are free again in that order.
  void look_for_answers() {
    for (std::uint32_t pe = 0; pe < group_.ranks; ++pe)
      for (std::deque<Asked>& all = asked_[pe]; !all.empty(); all.pop_front()) {
        const Asked& asked = all.front();
        const Request& there = request(pe, group_.rank, asked.place);
        if (words::load_acquire(&there.done) != asked.use) break;
        if (asked.here == nullptr) {
          done_.push_back(asked.token);
          continue;
        }
        if (word_count_ - word_done_ >= words_under_way) break;
        write_word(asked.here, there.result, asked.bytes);
        queued_.push_back({asked.token, no_pe});
      }
  }

  /// Takes what all PEs ask for, a round at a time: reads the words, changes them in turn, writes them, and tells.
  void serve_others() {
    if (step_ == Step::reading && is_done(served_event_)) change_words();
    if (step_ == Step::writing && is_done(served_event_)) tell();
    if (step_ != Step::idle) return;
    addresses_.clear(), serving_.clear();
    for (std::uint32_t pe = 0; pe < group_.ranks; ++pe)
      for (std::uint32_t i = 0; i < requests_each; ++i) {
        const std::uint32_t number = served_[pe] + i, place = number % requests_each;
        const Request& one = request(group_.rank, pe, place);
        if (words::load_acquire(&one.sent) != number / requests_each + 1) break;
        if (!take(one, pe, place)) break;
      }
    if (serving_.empty()) return;
    for (std::size_t i = 0; i < addresses_.size(); ++i)
      IMBREX_CUDA_TRY(cudaMemcpyAsync(read_.get() + i * 8, part_of(group_.rank) + addresses_[i].there,
                                      addresses_[i].bytes, cudaMemcpyDeviceToHost, stream_));
    served_event_ = mark();
    step_ = Step::reading;
  }

  /// Whether the request takes part in this round: its word is read once, and no other size of it.
  bool take(const Request& one, std::uint32_t pe, std::uint32_t place) {
    // A peer's word is not this PE's: what cannot be is left out, and its sender's wait ends by its limit.
    const bool sound = (one.bytes == 4 || one.bytes == 8) && one.there % one.bytes == 0 && one.there <= part_bytes_ &&
                       one.bytes <= part_bytes_ - one.there;
    if (!sound) return false;
    std::size_t word = addresses_.size();
    for (std::size_t i = 0; i < addresses_.size(); ++i) {
      if (addresses_[i].there / 8 != one.there / 8) continue;
      if (addresses_[i].there == one.there && addresses_[i].bytes == one.bytes)
        word = i;
      else if (addresses_[i].bytes == 8 || one.bytes == 8)
        return false;
    }
    if (word == addresses_.size()) addresses_.push_back({one.there, one.bytes});
    serving_.push_back({pe, place, word});
    return true;
  }

  void change_words() {
    for (const Serving& one : serving_) {
      Request& asked = request(group_.rank, one.pe, one.place);
      std::uint64_t before = 0;
      std::memcpy(&before, read_.get() + one.word * 8, asked.bytes);
      const std::uint64_t after = changed_bits(asked, before);
      std::memcpy(read_.get() + one.word * 8, &after, asked.bytes);
      asked.result = before;
    }
    for (std::size_t i = 0; i < addresses_.size(); ++i)
      IMBREX_CUDA_TRY(cudaMemcpyAsync(part_of(group_.rank) + addresses_[i].there, read_.get() + i * 8,
                                      addresses_[i].bytes, cudaMemcpyHostToDevice, stream_));
    events_.push_back(served_event_);
    served_event_ = mark();
    step_ = Step::writing;
  }

  void tell() {
    for (const Serving& one : serving_) {
      Request& asked = request(group_.rank, one.pe, one.place);
      words::store(&asked.done, served_[one.pe]++ / requests_each + 1);
    }
    events_.push_back(served_event_);
    step_ = Step::idle;
  }

  int gpu_;
  device::Group group_;
  std::uint64_t part_bytes_;
  World& world_;
  std::shared_ptr<std::byte> piece_, words_, read_;
  std::size_t mail_ = 0;
  cudaStream_t stream_ = nullptr;
  bool writes_words_ = false;
  std::vector<CUstreamBatchMemOpParams> written_;  // not queued yet
  std::vector<char> same_gpu_, ask_waits_;         // by PE
  std::vector<std::uint32_t> copies_;              // under way, by PE
  std::vector<std::deque<Asked>> asked_;           // requests for them, by PE
  std::vector<std::uint32_t> sent_, served_;       // requests so far, by PE
  std::vector<Copied> queued_;                     // behind the last event
  std::deque<Batch> batches_;
  std::vector<cudaEvent_t> events_;  // that are free
  std::uint64_t word_count_ = 0, word_done_ = 0;
  struct Address {
    std::uint64_t there;
    std::uint32_t bytes;
  };
  std::vector<Address> addresses_;
  std::vector<Serving> serving_;
  cudaEvent_t served_event_ = nullptr;
  Step step_ = Step::idle;
  std::vector<std::uint64_t> done_;
};

}  // namespace

std::unique_ptr<Wire> gpu_wire(Heap& heap) {
  IMBREX_EXPECTS(heap.device() == Device::cuda, "a wire of GPUs needs a heap on GPUs");
  return std::make_unique<GpuWire>(heap);
}

std::shared_ptr<std::byte> pinned_memory(int gpu, std::size_t bytes) {
  runtime::select_gpu(gpu);
  void* memory = nullptr;
  IMBREX_CUDA_TRY(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
  std::shared_ptr<std::byte> owner(static_cast<std::byte*>(memory), [](std::byte* data) { cudaFreeHost(data); });
  void* there = nullptr;
  IMBREX_CUDA_TRY(cudaHostGetDevicePointer(&there, memory, 0));
  IMBREX_EXPECTS(there == memory,
                 "this GPU has other addresses for the host's memory than the host; rings need the same");
  std::memset(memory, 0, bytes);
  return owner;
}

}  // namespace imbrex::shmem::ring
