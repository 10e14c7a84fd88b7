#include "backend/transport/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "test/unit/support/open_files.h"

using namespace torchwire;

namespace {

constexpr size_t kSize = 8192;
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

// A memory file as a peer might make it.
int foreignMemory(size_t size, int seals, unsigned flags = MFD_ALLOW_SEALING) {
  const int descriptor = memfd_create("foreign", flags | MFD_CLOEXEC);
  REQUIRE(descriptor >= 0);
  REQUIRE(ftruncate(descriptor, static_cast<off_t>(size)) == 0);
  REQUIRE((seals == 0 || fcntl(descriptor, F_ADD_SEALS, seals) == 0));
  return descriptor;
}

// Why a descriptor is not adopted, or nothing. It is closed in any case.
std::string objection(int descriptor, size_t size = kSize) {
  const auto before = openFiles();
  const bool counts = descriptor >= 0 && fcntl(descriptor, F_GETFD) >= 0;
  std::string reason;
  try {
    MemoryFile::adopt(descriptor, size);
  } catch (const std::runtime_error& e) {
    reason = e.what();
  }
  CHECK(openFiles() == before - (counts ? 1 : 0));
  return reason;
}

const std::string kNotSealed =
    "the memory that a peer shares is not sealed against changes of its size";
const std::string kNotMemory = "the memory that a peer shares is not an ordinary memory file";
const std::string kWrongSize = "the memory that a peer shares has the wrong size";
const std::string kUnseen = "the memory that a peer shares cannot be looked at";

// How many mappings of memory files of ours this process has.
int mappings() {
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);) {
    found += line.find("memfd:torchwire") != std::string::npos ? 1 : 0;
  }
  return found;
}

} // namespace

TEST_CASE("new shared memory is full of zeros and can be written", "[memory_file]") {
  const MemoryFile file = MemoryFile::create(kSize);
  CHECK(std::all_of(file.data(), file.data() + kSize, [](char byte) { return byte == 0; }));
  std::fill_n(file.data(), kSize, 'x');
  CHECK(file.data()[kSize - 1] == 'x');
}

TEST_CASE("both who made the memory and who adopts it see the same bytes", "[memory_file]") {
  const MemoryFile made = MemoryFile::create(kSize);
  const MemoryFile adopted = MemoryFile::adopt(dup(made.descriptor()), kSize);
  REQUIRE(made.data() != adopted.data());
  made.data()[17] = 'a';
  CHECK(adopted.data()[17] == 'a');
  adopted.data()[kSize - 1] = 'b';
  CHECK(made.data()[kSize - 1] == 'b');
}

TEST_CASE("nobody can change the size of shared memory", "[memory_file]") {
  const MemoryFile made = MemoryFile::create(kSize);
  const int received = dup(made.descriptor());
  for (const size_t size : {size_t{0}, kSize - 1, kSize + 1, 2 * kSize}) {
    CHECK(ftruncate(received, static_cast<off_t>(size)) == -1);
  }
  const std::string again = "/proc/self/fd/" + std::to_string(received);
  CHECK(truncate(again.c_str(), 0) == -1);
  CHECK(open(again.c_str(), O_RDWR | O_TRUNC | O_CLOEXEC) == -1);
  CHECK(fallocate(received, 0, 0, 2 * kSize) == -1);
  close(received);
}

TEST_CASE("nobody can keep the other from writing by one more seal", "[memory_file]") {
  const MemoryFile made = MemoryFile::create(kSize);
  CHECK(fcntl(made.descriptor(), F_ADD_SEALS, F_SEAL_WRITE) == -1);
}

TEST_CASE("shared memory is not passed on to programs that are started", "[memory_file]") {
  const MemoryFile made = MemoryFile::create(kSize);
  CHECK((fcntl(made.descriptor(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE(
    "the mapping stays when its descriptor is closed, and moves with its owner", "[memory_file]") {
  const auto before = openFiles();
  const int mapped = mappings();
  {
    MemoryFile first = MemoryFile::create(kSize);
    CHECK(openFiles() == before + 1);
    first.closeDescriptor();
    first.closeDescriptor();
    CHECK(first.descriptor() == -1);
    CHECK(openFiles() == before);
    first.data()[5] = 'x';
    const MemoryFile second = std::move(first);
    CHECK(second.data()[5] == 'x');
    CHECK(mappings() == mapped + 1);
  }
  CHECK(mappings() == mapped);
}

TEST_CASE("shared memory is gone when both have let go of it", "[memory_file]") {
  const auto before = openFiles();
  const int mapped = mappings();
  std::optional<MemoryFile> made(MemoryFile::create(kSize));
  std::optional<MemoryFile> adopted(MemoryFile::adopt(dup(made->descriptor()), kSize));
  made->data()[0] = 'x';
  CHECK(mappings() == mapped + 2);
  made.reset();
  CHECK(mappings() == mapped + 1);
  CHECK(adopted->data()[0] == 'x');
  adopted.reset();
  CHECK(mappings() == mapped);
  CHECK(openFiles() == before);
}

TEST_CASE("memory that there cannot be is an error", "[memory_file]") {
  const auto before = openFiles();
  CHECK_THROWS_WITH(
      MemoryFile::create(SIZE_MAX / 2 + 1), Catch::StartsWith("cannot make shared memory: "));
  CHECK_THROWS_WITH(MemoryFile::create(0), Catch::StartsWith("cannot map shared memory: "));
  CHECK(openFiles() == before);
}

// ---- what a peer might send -----------------------------------------------------------------------

TEST_CASE("memory that a peer made and sealed is adopted", "[memory_file]") {
  const int seals = GENERATE(as<int>(), kSizeSeals, kSizeSeals | F_SEAL_SEAL);
  CHECK(objection(foreignMemory(kSize, seals)).empty());
}

TEST_CASE("memory of another size is refused", "[memory_file]") {
  const size_t size = GENERATE(size_t{0}, size_t{1}, kSize - 1, kSize + 1, 2 * kSize);
  CHECK(objection(foreignMemory(size, kSizeSeals)) == kWrongSize);
}

TEST_CASE("memory that could still shrink or grow is refused", "[memory_file]") {
  const int seals = GENERATE(0, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL);
  CAPTURE(seals);
  CHECK(objection(foreignMemory(kSize, seals)) == kNotSealed);
}

TEST_CASE("memory that cannot be sealed is refused", "[memory_file]") {
  CHECK(objection(foreignMemory(kSize, 0, 0)) == kNotSealed);
}

TEST_CASE("memory that cannot be written is refused", "[memory_file]") {
  CHECK(objection(foreignMemory(kSize, kSizeSeals | F_SEAL_WRITE)) == kNotSealed);
}

TEST_CASE("memory that will not be writable any more is refused", "[memory_file]") {
#ifndef F_SEAL_FUTURE_WRITE
  constexpr int F_SEAL_FUTURE_WRITE = 0x0010;
#endif
  CHECK_THAT(
      objection(foreignMemory(kSize, kSizeSeals | F_SEAL_FUTURE_WRITE)),
      Catch::StartsWith("cannot map shared memory: "));
}

TEST_CASE("memory that was opened for reading only is refused", "[memory_file]") {
  const int whole = foreignMemory(kSize, kSizeSeals);
  const int readOnly =
      open(("/proc/self/fd/" + std::to_string(whole)).c_str(), O_RDONLY | O_CLOEXEC);
  close(whole);
  CHECK_THAT(objection(readOnly), Catch::StartsWith("cannot map shared memory: "));
}

TEST_CASE("memory in huge pages is refused", "[memory_file]") {
  const int huge = memfd_create("foreign", MFD_ALLOW_SEALING | MFD_CLOEXEC | MFD_HUGETLB);
  if (huge < 0) {
    WARN("this system has no huge pages");
    return;
  }
  CHECK(objection(huge) == kNotMemory);
}

TEST_CASE("what is not memory is refused", "[memory_file]") {
  std::string path = "/tmp/torchwire-memory-file-test-XXXXXX";
  const int file = mkstemp(path.data());
  REQUIRE(file >= 0);
  unlink(path.c_str());
  REQUIRE(ftruncate(file, kSize) == 0);
  CHECK_FALSE(objection(file).empty()); // where /tmp is in memory: for want of seals

  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  CHECK(objection(ends[0]) == kNotMemory);
  CHECK(objection(ends[1]) == kNotMemory);
  CHECK(objection(open("/dev/zero", O_RDWR | O_CLOEXEC)) != "");
  CHECK(objection(open("/dev/null", O_RDWR | O_CLOEXEC)) != "");
  CHECK(objection(open("/", O_RDONLY | O_CLOEXEC)) != "");
  CHECK(objection(open("/proc/self/mem", O_RDWR | O_CLOEXEC)) == kNotMemory);
}

TEST_CASE("a descriptor that is none is refused", "[memory_file]") {
  CHECK(objection(-1) == kUnseen);
  CHECK(objection(1 << 20) == kUnseen);
}
