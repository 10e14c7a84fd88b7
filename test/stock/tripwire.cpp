// A library to preload that notes which of some functions of libtorch are called, and changes nothing else.
//
// It exports functions of the same names. Each appends a line to the file named by TORCHWIRE_TRIPWIRE_FILE, once a
// process, and goes on into libtorch's function as if it had been called itself. See tripwire.py.
//
//     libtorch ── call ──▶ function of that name here ── notes it ──▶ libtorch's function (a jump, not a call)

#include "tripwire_symbols.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#ifndef __x86_64__
#error "the jumps are written for x86-64"
#endif

namespace {

struct Watched {
  const char* library;
  const char* symbol;
};

#define TRIPWIRE_ENTRY(library, symbol) {library, #symbol},
constexpr Watched kWatched[] = {TRIPWIRE_SYMBOLS(TRIPWIRE_ENTRY)};
constexpr size_t kCount = sizeof(kWatched) / sizeof(kWatched[0]);

std::atomic<void*> found[kCount];
std::atomic<pid_t> notedBy[kCount]; // a process that was forked notes its own

void append(const char* symbol) {
  const char* path = std::getenv("TORCHWIRE_TRIPWIRE_FILE");
  if (path == nullptr) {
    return;
  }
  const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) {
    std::perror("tripwire");
    std::abort(); // better than a run that seems to have shown something
  }
  dprintf(file, "%s %d\n", symbol, static_cast<int>(getpid()));
  close(file);
}

// Not by RTLD_NEXT, which does not see what Python has loaded for itself.
void* find(const Watched& watched) {
  void* library = dlopen(watched.library, RTLD_LAZY | RTLD_NOLOAD);
  void* function = library == nullptr ? nullptr : dlsym(library, watched.symbol);
  if (function == nullptr) {
    std::fprintf(stderr, "tripwire: %s has no %s\n", watched.library, watched.symbol);
    std::abort();
  }
  return function;
}

} // namespace

extern "C" {

extern const size_t tripwire_count = kCount;
const char* tripwire_symbol(size_t index) {
  return kWatched[index].symbol;
}
const char* tripwire_library(size_t index) {
  return kWatched[index].library;
}

// Notes a call; returns the function to go on to.
[[gnu::visibility("hidden")]] void* tripwire_tripped(size_t index) {
  const int errnoBefore = errno;
  if (notedBy[index].exchange(getpid()) != getpid()) {
    append(kWatched[index].symbol);
  }
  void* function = found[index].load(std::memory_order_acquire);
  if (function == nullptr) {
    function = find(kWatched[index]);
    found[index].store(function, std::memory_order_release);
  }
  errno = errnoBefore;
  return function;
}
}

// Saves all registers that can hold arguments. On entry the stack is 8 off a multiple of 16, where a call needs it.
#define TRIPWIRE_JUMP(library, symbol) "tripwire_jump " #symbol "\n"
asm(R"(
    .text
    .set tripwire_index, 0
    .macro tripwire_jump symbol
    .globl \symbol
    .type \symbol, @function
\symbol:
    push %rdi
    push %rsi
    push %rdx
    push %rcx
    push %r8
    push %r9
    push %rax
    push %r10
    sub $136, %rsp
    movups %xmm0, (%rsp)
    movups %xmm1, 16(%rsp)
    movups %xmm2, 32(%rsp)
    movups %xmm3, 48(%rsp)
    movups %xmm4, 64(%rsp)
    movups %xmm5, 80(%rsp)
    movups %xmm6, 96(%rsp)
    movups %xmm7, 112(%rsp)
    mov $tripwire_index, %edi
    call tripwire_tripped
    mov %rax, %r11
    movups (%rsp), %xmm0
    movups 16(%rsp), %xmm1
    movups 32(%rsp), %xmm2
    movups 48(%rsp), %xmm3
    movups 64(%rsp), %xmm4
    movups 80(%rsp), %xmm5
    movups 96(%rsp), %xmm6
    movups 112(%rsp), %xmm7
    add $136, %rsp
    pop %r10
    pop %rax
    pop %r9
    pop %r8
    pop %rcx
    pop %rdx
    pop %rsi
    pop %rdi
    jmp *%r11
    .size \symbol, . - \symbol
    .set tripwire_index, tripwire_index + 1
    .endm
)" TRIPWIRE_SYMBOLS(TRIPWIRE_JUMP));
