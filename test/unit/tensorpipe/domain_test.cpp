// What keeps two processes apart, in words; and why a process cannot be read.
#include "backend/tensorpipe/domain.h"

#include <catch2/catch.hpp>

#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "backend/tensorpipe/cma_probe.h"

using namespace torchwire;

TEST_CASE("shared memory ends at the host, its namespaces and the user", "[domain]") {
  const auto difference = [](const std::string& peers) {
    return differenceOf("wire_shm", "boot1 net:[1] user:[2] 0", peers);
  };
  CHECK(
      difference("boot2 net:[9] user:[2] 0").reason ==
      "the two workers are on different hosts: their boot ids differ (boot1 here, boot2 there)");
  CHECK(difference("boot2 net:[9] user:[2] 0").remedy.empty());
  CHECK(
      difference("boot1 net:[9] user:[2] 0").reason ==
      "the two workers are in different network namespaces (net:[1] here, net:[9] there)");
  CHECK(
      difference("boot1 net:[1] user:[9] 0").reason ==
      "the two workers are in different user namespaces (user:[2] here, user:[9] there)");
  CHECK(
      difference("boot1 net:[1] user:[2] 7").reason ==
      "the two workers run as different users (0 here, 7 there)");
  CHECK_FALSE(difference("boot1 net:[1] user:[2] 7").remedy.empty());
}

TEST_CASE("reading memory ends at PID namespaces and what a process may do, too", "[domain]") {
  const auto difference = [](const std::string& peers) {
    return differenceOf("cma", "cma:b_4_f01_4_f02_0_0_1ff", peers).reason;
  };
  CHECK(difference("cma:c_4_f01_4_f02_0_0_1ff").find("different hosts") != std::string::npos);
  CHECK(
      difference("cma:b_4_f09_4_f02_0_0_1ff") ==
      "the two workers are in different PID namespaces (f01 here, f09 there)");
  CHECK(
      difference("cma:b_4_f01_4_f02_0_7_1ff") ==
      "the two workers run as different groups (0 here, 7 there)");
  CHECK(
      difference("cma:b_4_f01_4_f02_0_0_0") ==
      "the two workers have different capabilities (1ff here, 0 there)");
}

TEST_CASE("descriptors that are not understood are shown as they are", "[domain]") {
  CHECK(
      differenceOf("uv", "one", "another").reason ==
      "it does not reach from one worker to the other (one here, another there)");
  CHECK(
      differenceOf("cma", "nonsense", "cma:b").reason ==
      "it does not reach from one worker to the other (nonsense here, cma:b there)");
  CHECK(differenceOf("wire_shm", "", " ").reason.find("reach") != std::string::npos);
}

TEST_CASE("why memory cannot be read is what the kernel says", "[cma_probe]") {
  const std::string yama = "cma_probe_test." + std::to_string(getpid());
  const auto reasonWithScope = [&](int scope) {
    std::ofstream(yama) << scope << '\n';
    return whyNoCma(yama);
  };
  CHECK(reasonWithScope(2).reason == "Yama's ptrace_scope is 2");
  CHECK(reasonWithScope(2).remedy == "set it to 1 or less: sysctl kernel.yama.ptrace_scope=1");
  CHECK(reasonWithScope(3).remedy.ends_with("(from 3, only after a restart of the machine)"));
  CHECK(reasonWithScope(1).reason == "TensorPipe does not find it viable on this machine");
  std::remove(yama.c_str());
  CHECK(whyNoCma(yama).reason == "TensorPipe does not find it viable on this machine");
  REQUIRE(prctl(PR_SET_DUMPABLE, 0) == 0);
  const auto undumpable = whyNoCma(yama);
  prctl(PR_SET_DUMPABLE, 1);
  CHECK(undumpable.reason == "the process is not dumpable, so others may not read it");
}
