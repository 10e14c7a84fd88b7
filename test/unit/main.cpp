// Catch2's main(), in a file of its own because it takes the compiler longest.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>

#include <cstdlib>

namespace {

// All unit tests run with the thread checks on, which read the environment before main() begins; so this comes before
// all that is constructed at the start. A value that is set already stays.
[[gnu::constructor(101)]] void checkThreads() {
  ::setenv("TORCHWIRE_CHECK_THREADS", "1", /*overwrite=*/0); // NOLINT(concurrency-mt-unsafe)
}

} // namespace
