// Catch2's main(), in a file of its own because it takes the compiler longest.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
