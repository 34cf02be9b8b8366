// Clocks a verilated accelerator: frames in and out by port, registers by their bus.
// ports.inc, which build.py writes, names the signals of each port.
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "Vaccelerator.h"
#include "verilated.h"
#include "ports.inc"

namespace {

constexpr int kBusBytes = 4 * kWords;
constexpr int kBytesBits = 32 - __builtin_clz(kBusBytes);  // of the number of valid bytes

using Frame = std::vector<uint8_t>;

struct Stalls {
  uint64_t state = 0;
  uint32_t share = 0;  // of 2^32
  bool hit() {
    if (!share) return false;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return uint32_t(state >> 16) < share;
  }
};

struct Bench {
  std::unique_ptr<VerilatedContext> context{new VerilatedContext};
  std::unique_ptr<Vaccelerator> top{new Vaccelerator{context.get()}};
  std::deque<Frame> waiting[kPorts];
  size_t sent[kPorts] = {};  // bytes of the first one that waits
  bool offered[kPorts] = {};
  Frame coming[kPorts];
  std::deque<std::pair<int, Frame>> left;
  uint64_t cycles = 0;
  Stalls stalls;

  void put(EData* words, const Frame& frame, size_t at) {
    const size_t count = std::min<size_t>(kBusBytes, frame.size() - at);
    const bool first = at == 0, last = at + count == frame.size();
    std::memset(words, 0, 4 * kPayloadWords);
    std::memcpy(words, frame.data() + at, count);
    const uint32_t meta = uint32_t(count) | uint32_t(first) << kBytesBits | uint32_t(last) << (kBytesBits + 1);
    words[kWords] = meta;
  }

  // One clock; returns whether anything moved or could.
  bool clock() {
    bool moved = false;
    bool ready[kPorts];
    for (int port = 0; port < kPorts; ++port) {
      if (!offered[port] && !waiting[port].empty() && !stalls.hit()) {
        put(rx_payload(top.get(), port), waiting[port].front(), sent[port]);
        offered[port] = true;  // and stays so until it is taken
      }
      *rx_valid(top.get(), port) = offered[port];
      ready[port] = !stalls.hit();
      *tx_ready(top.get(), port) = ready[port];
    }
    top->clk = 0;
    top->eval();
    bool taken[kPorts];
    for (int port = 0; port < kPorts; ++port) {
      taken[port] = offered[port] && *rx_ready(top.get(), port);
      moved |= offered[port] || !waiting[port].empty();
      if (*tx_valid(top.get(), port)) {
        moved = true;
        if (ready[port]) {
          const EData* words = tx_payload(top.get(), port);
          const uint32_t meta = words[kWords];
          const uint32_t count = meta & ((1u << kBytesBits) - 1);
          const auto* bytes = reinterpret_cast<const uint8_t*>(words);
          Frame& frame = coming[port];
          if (meta >> kBytesBits & 1) frame.clear();
          frame.insert(frame.end(), bytes, bytes + count);
          if (meta >> (kBytesBits + 1) & 1) {
            left.emplace_back(port, std::move(frame));
            frame = Frame();
          }
        }
      }
    }
    moved |= top->busy;
    top->clk = 1;
    top->eval();
    ++cycles;
    for (int port = 0; port < kPorts; ++port) {
      if (!taken[port]) continue;
      offered[port] = false;
      Frame& frame = waiting[port].front();
      sent[port] += std::min<size_t>(kBusBytes, frame.size() - sent[port]);
      if (sent[port] == frame.size()) {
        waiting[port].pop_front();
        sent[port] = 0;
      }
    }
    return moved;
  }

  void reset() {
    for (int port = 0; port < kPorts; ++port) {
      waiting[port].clear();
      coming[port].clear();
      sent[port] = 0;
      offered[port] = false;
    }
    left.clear();
    top->csr_read = top->csr_write = 0;
    top->rst = 1;
    for (int i = 0; i < 4; ++i) clock();
    top->rst = 0;
  }

  bool access(uint32_t address, uint32_t* value, bool write, uint64_t most) {
    top->csr_address = address;
    top->csr_wdata = write ? *value : 0;
    (write ? top->csr_write : top->csr_read) = 1;
    bool done = false;
    for (uint64_t i = 0; i < most && !done; ++i) {
      top->clk = 0;
      top->eval();
      done = top->csr_ready;
      if (done && !write) *value = top->csr_rdata;
      clock();
    }
    top->csr_read = top->csr_write = 0;
    return done;
  }
};

}  // namespace

extern "C" {

void* bench_new() {
  auto* bench = new Bench;
  bench->reset();
  return bench;
}

void bench_free(void* bench) {
  auto* one = static_cast<Bench*>(bench);
  one->top->final();
  delete one;
}

void bench_reset(void* bench) { static_cast<Bench*>(bench)->reset(); }

void bench_stalls(void* bench, uint64_t seed, uint32_t share) {
  auto& stalls = static_cast<Bench*>(bench)->stalls;
  stalls.state = seed * 0x9E3779B97F4A7C15u + 1;
  stalls.share = share;
}

void bench_send(void* bench, int port, const uint8_t* data, size_t size) {
  static_cast<Bench*>(bench)->waiting[port].emplace_back(data, data + size);
}

// Until nothing has moved for ``quiet`` cycles; -1: not within ``most``.
int64_t bench_run(void* bench, uint64_t most, uint64_t quiet) {
  auto* one = static_cast<Bench*>(bench);
  uint64_t still = 0;
  for (uint64_t i = 0; i < most; ++i) {
    still = one->clock() ? 0 : still + 1;
    if (still >= quiet) return int64_t(i + 1);
  }
  return -1;
}

// Bytes of the next frame that left; 0: there is none.
size_t bench_next(void* bench, int* port, uint8_t* into, size_t room) {
  auto& left = static_cast<Bench*>(bench)->left;
  if (left.empty()) return 0;
  const auto& [at, frame] = left.front();
  const size_t size = frame.size();
  *port = at;
  if (size <= room) std::memcpy(into, frame.data(), size);
  left.pop_front();
  return size;
}

int bench_access(void* bench, uint32_t address, uint32_t* value, int write, uint64_t most) {
  return static_cast<Bench*>(bench)->access(address, value, write, most);
}

uint64_t bench_cycles(void* bench) { return static_cast<Bench*>(bench)->cycles; }

}  // extern "C"
