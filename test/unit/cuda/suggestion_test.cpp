#include "cuda/suggestion.h"

#include <catch2/catch.hpp>

using namespace torchwire::cuda;

TEST_CASE("the name that is one typing error away is meant", "[suggestion]") {
  const std::vector<std::string> known = {"trainer0", "trainer1", "ps"};
  CHECK(nearest("trainr1", known) == "trainer1");
  CHECK(nearest("trainerr1", known) == "trainer1");
  CHECK(nearest("rtainer1", known) == "trainer1");
  CHECK(nearest("trainer_1", known) == "trainer1");
  CHECK(nearest("TRAINER1", known) == "trainer1");
}

TEST_CASE("no name is suggested where several are equally near", "[suggestion]") {
  CHECK(nearest("worker4", {"worker0", "worker1", "worker2"}) == std::nullopt);
  CHECK(nearest("WORKER", {"worker", "Worker"}) == std::nullopt);
  CHECK(nearest("worker4", {"worker0", "worker1", "worker44"}) == std::nullopt);
}

TEST_CASE("no name is suggested where none is near", "[suggestion]") {
  CHECK(nearest("none_exist", {"worker0", "worker1"}) == std::nullopt);
  CHECK(nearest("", {"a", ""}) == "");
  CHECK(nearest("a", {}) == std::nullopt);
  CHECK(nearest("ab", {"cd"}) == std::nullopt);
  CHECK(nearest(std::string(1000, 'a'), {std::string(127, 'a')}) == std::nullopt);
}
