// What a message from one process to another costs by each way that its elements can take, both on one GPU: what the paths
// of tensors between devices are to be designed by.
//
//     nvcc -std=c++20 -O2 -arch=native test/bench/device_paths.cu -o device_paths && ./device_paths
//
//   direct   the receiver copies from the sender's memory, which it has opened
//   block    the sender copies into a block that the receiver has opened, and the receiver copies from that
//   slots    the same by way of a ring of smaller blocks, both sides at the same time
//   shared   the same by way of the host: slots of shared memory that both processes have registered with CUDA
//   read     slots of the sender's pinned memory, from which the receiver reads into its own (process_vm_readv)
//
// Each side waits on its host for the end of its copies, and says so to the other by a counter in shared memory. A line is
// for one way and size: the time of a message, its rate, and the CPU time of sender and receiver; "busy" where a kernel of
// the sender's occupies the GPU all the while. The time is the median of three runs.

#include <cuda_runtime.h>

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr size_t KiB = size_t{1} << 10;
constexpr size_t MiB = size_t{1} << 20;
constexpr size_t kLargest = 256 * MiB;
constexpr size_t kMostSlots = 16;

[[noreturn]] void fail(const std::string& what) {
  std::printf("failed: %s\n", what.c_str());
  std::fflush(stdout);
  kill(0, SIGKILL); // the other processes, too
  std::abort();
}

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    fail(std::string(what) + ": " + cudaGetErrorString(error));
  }
}
#define CHECK(call) check((call), #call)

enum class Way { direct, block, slots, shared, read };
constexpr std::array<const char*, 5> kNames{"direct", "block", "slots", "shared", "read"};

struct Case {
  Way way;
  size_t size;
  size_t slot; // bytes
  size_t slots;
  bool busy = false;

  size_t pieces() const {
    return (size + slot - 1) / slot;
  }
  size_t lengthOf(size_t piece) const {
    return std::min(slot, size - piece * slot);
  }
  size_t slotOf(size_t piece) const {
    return piece % slots * slot;
  }
};

/// What the three processes share. The parent sets a case and its number; both sides run it and count themselves.
struct Control {
  Case now;
  int rounds;
  std::atomic<int> number;
  std::atomic<int> finished;
  std::atomic<uint64_t> filled, emptied; // pieces since the case has begun
  std::atomic<bool> lent;
  cudaIpcMemHandle_t block, source;
  pid_t sender;
  char* pinned; // the sender's
  std::array<double, 2> cpuSeconds;
};

Control* control;
char* sharedMemory; // kLargest bytes

template <typename Condition>
void await(Condition condition) {
  for (int looks = 0; !condition(); ++looks) {
    if (looks > 2000) {
      usleep(5);
    }
  }
}

double cpuSeconds() {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) { return time.tv_sec + 1e-6 * time.tv_usec; };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

__global__ void occupy(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

/// One of the two processes, and its memory.
class Side {
 public:
  Side() {
    CHECK(cudaSetDevice(0));
    for (cudaStream_t* const stream : {&copies_, &kernels_}) {
      CHECK(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    }
    for (cudaEvent_t& event : events_) {
      CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
    }
    for (char** const memory : {&tensor_, &block_}) {
      CHECK(cudaMalloc(reinterpret_cast<void**>(memory), kLargest));
      CHECK(cudaMemset(*memory, 1, kLargest));
    }
    CHECK(cudaHostAlloc(reinterpret_cast<void**>(&pinned_), kLargest, cudaHostAllocDefault));
    std::memset(pinned_, 1, kLargest);
    CHECK(cudaHostRegister(sharedMemory, kLargest, cudaHostRegisterDefault));
    CHECK(cudaDeviceSynchronize());
  }

  void lend() const {
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); // for process_vm_readv
    CHECK(cudaIpcGetMemHandle(&control->block, block_));
    CHECK(cudaIpcGetMemHandle(&control->source, tensor_));
    control->sender = getpid();
    control->pinned = pinned_;
    control->lent = true;
  }
  void borrow() {
    await([] { return control->lent.load(); });
    for (auto [handle, memory] :
         {std::pair(&control->block, &block_), std::pair(&control->source, &source_)}) {
      CHECK(cudaIpcOpenMemHandle(
          reinterpret_cast<void**>(memory), *handle, cudaIpcMemLazyEnablePeerAccess));
    }
  }

  void occupyDevice() const {
    for (int kernel = 0; kernel < 20; ++kernel) {
      occupy<<<264, 1024, 0, kernels_>>>(50'000'000); // some 25 ms
    }
  }

  void send(const Case& now, uint64_t before) {
    size_t told = 0;
    const auto tellOf = [&](size_t piece) {
      await(events_[piece % now.slots]);
      told = piece + 1;
      control->filled = before + told;
    };
    for (size_t piece = 0; piece < now.pieces(); ++piece) {
      if (piece >= now.slots) {
        while (told + now.slots <= piece) {
          tellOf(told);
        }
        await([&] { return control->emptied + now.slots > before + piece; });
      }
      if (now.way != Way::direct) {
        copy(placeOf(now, piece), tensor_ + piece * now.slot, now.lengthOf(piece));
      }
      CHECK(cudaEventRecord(events_[piece % now.slots], copies_));
      while (told < piece && cudaEventQuery(events_[told % now.slots]) == cudaSuccess) {
        tellOf(told);
      }
    }
    while (told < now.pieces()) {
      tellOf(told);
    }
    await([&] { return control->emptied >= before + now.pieces(); });
  }

  void receive(const Case& now, uint64_t before) {
    size_t told = 0;
    const auto tellOf = [&](size_t piece) {
      await(events_[piece % now.slots]);
      told = piece + 1;
      control->emptied = before + told;
    };
    for (size_t piece = 0; piece < now.pieces(); ++piece) {
      await([&] {
        while (told < piece && cudaEventQuery(events_[told % now.slots]) == cudaSuccess) {
          tellOf(told);
        }
        return control->filled > before + piece;
      });
      char* const from = now.way == Way::direct ? source_ + piece * now.slot : placeOf(now, piece);
      if (now.way == Way::read) {
        if (piece >= now.slots) {
          await(events_[piece % now.slots]); // its own memory is read by the copy before
        }
        read(from, control->pinned + now.slotOf(piece), now.lengthOf(piece));
      }
      copy(tensor_ + piece * now.slot, from, now.lengthOf(piece));
      CHECK(cudaEventRecord(events_[piece % now.slots], copies_));
      if (now.way == Way::read) {
        told = piece + 1;
        control->emptied = before + told;
      }
    }
    while (told < now.pieces()) {
      tellOf(told);
    }
    CHECK(cudaStreamSynchronize(copies_));
  }

 private:
  static void await(cudaEvent_t event) {
    CHECK(cudaEventSynchronize(event));
  }
  template <typename Condition>
  static void await(Condition condition) {
    ::await(condition);
  }
  char* placeOf(const Case& now, size_t piece) const {
    char* const memory = now.way == Way::shared ? sharedMemory
        : now.way == Way::read                  ? pinned_
                                                : block_;
    return memory + now.slotOf(piece);
  }
  void copy(void* into, const void* from, size_t length) const {
    CHECK(cudaMemcpyAsync(into, from, length, cudaMemcpyDefault, copies_));
  }
  static void read(char* into, char* from, size_t length) {
    for (size_t done = 0; done < length;) {
      const iovec here{into + done, length - done}, there{from + done, length - done};
      const ssize_t now = process_vm_readv(control->sender, &here, 1, &there, 1, 0);
      if (now <= 0) {
        fail("process_vm_readv: " + std::string(std::strerror(errno)));
      }
      done += static_cast<size_t>(now);
    }
  }

  cudaStream_t copies_, kernels_;
  std::array<cudaEvent_t, kMostSlots> events_;
  char *tensor_, *block_, *source_ = nullptr, *pinned_;
};

[[noreturn]] void serve(bool sends) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Side side;
  sends ? side.lend() : side.borrow();
  for (int number = 1;; ++number) {
    await([&] { return control->number >= number; });
    const Case now = control->now;
    if (sends && now.busy) {
      side.occupyDevice();
    }
    const double before = cpuSeconds();
    for (int round = 0; round < control->rounds; ++round) {
      const uint64_t pieces = round * now.pieces();
      sends ? side.send(now, pieces) : side.receive(now, pieces);
    }
    control->cpuSeconds[sends ? 0 : 1] = cpuSeconds() - before;
    ++control->finished;
  }
}

/// Seconds a message.
double run(const Case& now, int rounds) {
  control->now = now;
  control->rounds = rounds;
  control->filled = control->emptied = 0;
  control->finished = 0;
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  ++control->number;
  while (control->finished < 2) {
    usleep(20);
    if (seconds() > 30) {
      fail("it hangs");
    }
  }
  return seconds() / rounds;
}

void measure(Case now) {
  now.slot = std::min(now.slot, now.size);
  const int rounds = now.busy ? 10 : now.size >= 64 * MiB ? 20 : now.size >= MiB ? 200 : 500;
  run({now.way, now.size, now.slot, now.slots}, 3);
  std::array<double, 3> times;
  for (double& time : times) {
    time = run(now, rounds);
    if (now.busy) {
      sleep(1); // the kernels end
    }
  }
  std::sort(times.begin(), times.end());
  const auto micros = [&](double seconds) { return 1e6 * seconds / rounds; };
  std::printf(
      "%-7s%-5s %7zu KiB in %6zu KiB x %2zu: %9.1f us %8.2f GB/s  CPU %6.0f + %6.0f us\n",
      kNames[static_cast<size_t>(now.way)], now.busy ? "busy" : "", now.size / KiB, now.slot / KiB,
      now.slots, 1e6 * times[1], now.size / times[1] / 1e9, micros(control->cpuSeconds[0]),
      micros(control->cpuSeconds[1]));
  std::fflush(stdout);
}

void measureAll() {
  constexpr std::array<size_t, 6> kSizes{4 * KiB, 64 * KiB, MiB, 16 * MiB, 64 * MiB, kLargest};
  for (const bool busy : {false, true}) {
    for (const size_t size : kSizes) {
      if (busy && size != 64 * KiB && size != MiB && size != 64 * MiB) { // which takes seconds each
        continue;
      }
      measure({Way::direct, size, kLargest, 1, busy});
      measure({Way::block, size, kLargest, 1, busy});
      measure({Way::slots, size, 8 * MiB, 4, busy});
      measure({Way::shared, size, std::clamp(size / 8, 64 * KiB, 4 * MiB), 4, busy});
      measure({Way::read, size, std::clamp(size / 8, 64 * KiB, MiB), 4, busy});
    }
  }
  for (const size_t slot : {MiB, 2 * MiB, 4 * MiB, 8 * MiB, 16 * MiB, 32 * MiB}) {
    measure({Way::slots, kLargest, slot, 4});
  }
  for (const size_t slot : {256 * KiB, 512 * KiB, MiB, 2 * MiB, 4 * MiB, 8 * MiB}) {
    for (const size_t slots : {2, 4, 8}) {
      measure({Way::shared, kLargest, slot, slots});
    }
  }
}

void* map(size_t size) {
  void* const memory =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    fail("mmap");
  }
  return memory;
}

} // namespace

int main() {
  setpgid(0, 0);
  control = new (map(sizeof(Control))) Control();
  sharedMemory = static_cast<char*>(map(kLargest));
  std::array<pid_t, 2> sides;
  for (size_t side = 0; side < sides.size(); ++side) { // before CUDA is initialized
    sides[side] = fork();
    if (sides[side] == 0) {
      serve(side == 0);
    }
  }
  measureAll();
  for (const pid_t side : sides) {
    kill(side, SIGKILL);
  }
}
