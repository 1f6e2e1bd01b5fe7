// Kernels of the benchmark of OpenSHMEM calls, and their launch: one source, which on_cpu.cpp compiles as C++ and
// cuda/on_gpu.cu as CUDA. All names are each file's own.
#pragma once

#include <algorithm>
#include <vector>

#include "apps/shmem_bench/place.hpp"
#include "imbrex/shmem.hpp"

namespace imbrex::apps {
namespace {

using shmem::Block;
using shmem::Compare;
using shmem::Context;
using shmem::Signal;
using shmem::SignalOperation;
using shmem::Thread;
using shmem::Warp;

struct Arguments {
  shmem::Handle handle;
  ShmemPlace place;
  std::uint64_t bytes;   // of a block's call
  std::uint64_t before;  // signals, or additions, that this PE has had from earlier kernels
  std::uint32_t calls, warm;
  std::uint32_t peer;
  bool leads;  // it sends first, and looks at the clock
  bool each;   // every call is complete before the next
};

IMBREX_DEVICE std::uint64_t cycles() {
#if defined(__CUDA_ARCH__)
  return static_cast<std::uint64_t>(clock64());
#else
  return 0;
#endif
}

// Call number `number` of this kernel, which makes whatever it signals one more. `value`: the first word of the part
// that the block sends.
template <ShmemCall call, typename G>
IMBREX_DEVICE void make_call(Context<>& context, const Arguments& a, std::uint64_t number, std::uint64_t value,
                             const G& group) {
  const std::uint32_t block = shmem::block_index();
  const std::uint64_t words = a.bytes / sizeof(std::uint64_t);
  std::uint64_t* to = a.place.to + block * words;
  const std::uint64_t* from = a.place.from + block * words;
  Signal* signal = a.place.signals + block * ShmemPlace::apart;
  if constexpr (call == ShmemCall::put) {
    context.put_nbi(to, from, words, a.peer, group);
  } else if constexpr (call == ShmemCall::get) {
    context.get(to, from, words, a.peer, group);
  } else if constexpr (call == ShmemCall::p) {
    for (std::uint64_t i = group.thread_rank(); i < words; i += group.size()) context.p(to + i, from[i], a.peer);
  } else if constexpr (call == ShmemCall::g) {
    for (std::uint64_t i = group.thread_rank(); i < words; i += group.size()) to[i] = context.g(from + i, a.peer);
  } else if constexpr (call == ShmemCall::put_signal) {
    context.put_signal(to, from, words, signal, a.before + number, SignalOperation::set, a.peer, group);
  } else if constexpr (call == ShmemCall::p_signal) {
    context.p_signal(to, value, signal, a.before + number, SignalOperation::set, a.peer);
  } else if constexpr (call == ShmemCall::packet) {
    context.put_packet(a.place.packets + block * ShmemPlace::apart, value, a.before + number, a.peer);
  } else if constexpr (call == ShmemCall::add) {
    context.atomic_add(a.place.scratch + block * ShmemPlace::apart, 1, a.peer);
  } else if constexpr (call == ShmemCall::fetch_add) {
    // The next one needs this one's result, or the GPU would not wait for it.
    std::uint64_t* counter = a.place.scratch + block * ShmemPlace::apart;
    const std::uint64_t seen = context.atomic_fetch_add(counter, 1, a.peer);
    if (seen == ~std::uint64_t{0}) *to = seen;
  } else if constexpr (call == ShmemCall::fence) {
    context.p(to, value, a.peer);
    context.fence(group);
  } else {
    context.p(to, value, a.peer);
    context.quiet(group);
  }
}

// Calls to a peer that waits for them.
template <ShmemCall call, typename G>
IMBREX_DEVICE void send(Context<>& context, const Arguments& a, std::uint64_t number, std::uint64_t value,
                        const G& group) {
  if constexpr (call == ShmemCall::p)
    context.p(a.place.echo, a.before + number, a.peer);
  else if constexpr (call == ShmemCall::add)
    context.atomic_add(a.place.counter, 1, a.peer);
  else
    make_call<call>(context, a, number, value, group);
}

// Until the peer's message of this number is seen here.
template <ShmemCall call, typename G>
IMBREX_DEVICE bool await(Context<>& context, const Arguments& a, std::uint64_t number, std::uint64_t expected,
                         const G& group) {
  const std::uint64_t wanted = a.before + number;
  if constexpr (call == ShmemCall::p) {
    return context.wait_until(a.place.echo, Compare::greater_equal, wanted, group);
  } else if constexpr (call == ShmemCall::packet) {
    std::uint64_t value = 0;
    return context.wait_packet(a.place.packets, Compare::greater_equal, wanted, value) && value == expected;
  } else if constexpr (call == ShmemCall::add) {
    return context.wait_until(a.place.counter, Compare::greater_equal, wanted, group);
  } else {
    return context.signal_wait_until(a.place.signals, Compare::greater_equal, wanted, group);
  }
}

// One block of each of two PEs: a message there, one back.
template <ShmemCall call, typename G>
IMBREX_KERNEL ping_pong(const Arguments a) {
  Context context(a.handle);
  const G group;
  const std::uint64_t value = *a.place.from, expected = *a.place.from_peer;
  std::uint64_t begin = 0;
  for (std::uint32_t i = 1; i <= a.warm + a.calls; ++i) {
    if (i == a.warm + 1) begin = device::now_ns();
    if (a.leads) send<call>(context, a, i, value, group);
    if (!await<call>(context, a, i, expected, group)) return;
    if (!a.leads) send<call>(context, a, i, value, group);
  }
  if (is_leader(group)) *a.place.spans = {begin, begin, device::now_ns(), 0};
}

// Blocks of one PE: calls one after the other.
template <ShmemCall call, typename G>
IMBREX_KERNEL stream(const Arguments a) {
  Context context(a.handle);
  const G group;
  const std::uint64_t value = a.place.from[shmem::block_index() * (a.bytes / sizeof(std::uint64_t))];
  std::uint64_t number = 0;
  for (std::uint32_t i = 0; i < a.warm; ++i) make_call<call>(context, a, ++number, value, group);
  context.quiet(group);
  const std::uint64_t begin = device::now_ns(), clock = cycles();
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
  for (std::uint32_t i = 0; i < a.calls; ++i) {
    make_call<call>(context, a, ++number, value, group);
    if (a.each) context.quiet(group);
  }
  const std::uint64_t returned = device::now_ns(), took = cycles() - clock;
  context.quiet(group);
  if (is_leader(group)) a.place.spans[shmem::block_index()] = {begin, returned, device::now_ns(), took};
}

template <ShmemCall call, typename G>
void launch_in(shmem::Heap& heap, const ShmemCase& one, const Arguments& a) {
  const bool waits = one.measure == ShmemMeasure::latency;
  const shmem::Grid grid{.blocks = one.blocks, .threads = one.threads, .resident = waits};
  if (waits) {
    if constexpr (call == ShmemCall::p || call == ShmemCall::packet || call == ShmemCall::add ||
                  call == ShmemCall::put_signal || call == ShmemCall::p_signal)
      shmem::launch(heap, grid, ping_pong<call, G>, a);
  } else if (a.leads) {
    shmem::launch(heap, grid, stream<call, G>, a);
  }
}

template <ShmemCall call>
void launch_call(shmem::Heap& heap, const ShmemCase& one, const Arguments& a) {
  constexpr bool moves = call == ShmemCall::put || call == ShmemCall::get || call == ShmemCall::put_signal;
  if constexpr (moves)
    if (one.scope == ShmemScope::warp) return launch_in<call, Warp>(heap, one, a);
  if constexpr (moves || call == ShmemCall::p || call == ShmemCall::g)
    if (one.scope == ShmemScope::block) return launch_in<call, Block>(heap, one, a);
  if constexpr (call == ShmemCall::put || call == ShmemCall::get)
    if (one.scope == ShmemScope::wide) return launch_in<call, shmem::Wide<Block>>(heap, one, a);
  launch_in<call, Thread>(heap, one, a);
}

// Launches the case, waits for it, and says what it took; zero on PEs that do not look at the clock.
ShmemSample take_sample(shmem::Heap& heap, const ShmemCase& one, const ShmemPlace& place, const ShmemTurn& turn) {
  const Arguments a{.handle = heap.handle(),
                    .place = place,
                    .bytes = one.bytes / one.blocks,
                    .before = turn.before,
                    .calls = turn.calls,
                    .warm = turn.warm,
                    .peer = turn.peer,
                    .leads = turn.leads,
                    .each = one.measure == ShmemMeasure::complete && one.call != ShmemCall::fence &&
                            one.call != ShmemCall::quiet && one.call != ShmemCall::get && one.call != ShmemCall::g &&
                            one.call != ShmemCall::fetch_add};
  switch (one.call) {
    case ShmemCall::put: launch_call<ShmemCall::put>(heap, one, a); break;
    case ShmemCall::get: launch_call<ShmemCall::get>(heap, one, a); break;
    case ShmemCall::p: launch_call<ShmemCall::p>(heap, one, a); break;
    case ShmemCall::g: launch_call<ShmemCall::g>(heap, one, a); break;
    case ShmemCall::put_signal: launch_call<ShmemCall::put_signal>(heap, one, a); break;
    case ShmemCall::p_signal: launch_call<ShmemCall::p_signal>(heap, one, a); break;
    case ShmemCall::packet: launch_call<ShmemCall::packet>(heap, one, a); break;
    case ShmemCall::add: launch_call<ShmemCall::add>(heap, one, a); break;
    case ShmemCall::fetch_add: launch_call<ShmemCall::fetch_add>(heap, one, a); break;
    case ShmemCall::fence: launch_call<ShmemCall::fence>(heap, one, a); break;
    case ShmemCall::quiet: launch_call<ShmemCall::quiet>(heap, one, a); break;
  }
  heap.finish();
  if (!turn.leads) return {};
  std::vector<ShmemSpan> spans(one.blocks);
  heap.read(spans.data(), place.spans, spans.size() * sizeof(ShmemSpan), heap.pe());
  std::uint64_t begin = spans[0].begin, returned = 0, end = 0, took = 0;
  for (const ShmemSpan& span : spans) {
    begin = std::min(begin, span.begin);
    returned = std::max(returned, span.returned);
    end = std::max(end, span.end);
    took = std::max(took, span.cycles);
  }
  const bool issue = one.measure == ShmemMeasure::issue;
  const double calls = turn.calls, ways = one.measure == ShmemMeasure::latency ? 2 : 1;
  const double nanoseconds = static_cast<double>((issue ? returned : end) - begin);
  return {nanoseconds * 1e-9 / calls / ways, issue ? static_cast<double>(took) / calls : 0};
}

}  // namespace
}  // namespace imbrex::apps
