#include "backend/call/function_table.h"

#include <catch2/catch.hpp>
#include <string>

using namespace torchwire;

TEST_CASE("a function has one entry of each kind", "[function_table]") {
  FunctionTable table;
  FunctionMetrics& first = table.find({"python", "module.f"});
  CHECK(&table.find({"python", std::string("module.") + "f"}) == &first);
  CHECK(&table.find({"remote", "module.f"}) != &first);
  CHECK(&table.find({"python", ""}) != &first);
  CHECK(first.describe() == "module.f");
  CHECK(table.find({"remote", ""}).describe() == "a call (remote)");
  REQUIRE(table.all().size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(table.all()[i]->id == i);
  }
}

TEST_CASE("names that a peer makes up share an entry once the table is full", "[function_table]") {
  FunctionTable table(10);
  FunctionMetrics& early = table.find({"python", "early"});
  for (int i = 0; i < 1000; ++i) {
    table.find({"python", "f" + std::to_string(i)});
  }
  CHECK(table.all().size() == 11);
  CHECK(table.find({"python", "late"}).function == FunctionTable::kOthers);
  CHECK(&table.find({"python", "early"}) == &early);
  CHECK(table.find({"rref", ""}).kind == "rref"); // there are few of those
}

TEST_CASE("failures are counted by their reason", "[function_table]") {
  FunctionTable table;
  FunctionMetrics& function = table.find({"python", "f"});
  function.failed(ErrorCode::timeout);
  function.failed(ErrorCode::timeout);
  function.failed(ErrorCode::raised); // the last one
  CHECK(function.failures(ErrorCode::timeout) == 2);
  CHECK(function.failures(ErrorCode::raised) == 1);
  CHECK(function.failures(ErrorCode::workerDied) == 0);
}
