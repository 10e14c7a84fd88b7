// Precompiled for the unit tests: what nearly all of them include and what takes longest to read.

#include <catch2/catch.hpp>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>
