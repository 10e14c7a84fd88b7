#include "backend/wire/failure.h"

#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "backend/base/bytes.h"
#include "backend/base/call_error.h"

using namespace torchwire;

namespace {

Error passedOn(const Error& error) {
  return decodeFailure(encodeFailure(error));
}

} // namespace

TEST_CASE("a failure keeps its kind, its worker and its words", "[failure]") {
  for (const ErrorCode code :
       {ErrorCode::timeout, ErrorCode::overloaded, ErrorCode::cancelled, ErrorCode::workerDied,
        ErrorCode::unreachable}) {
    const Error error = passedOn(Error(code, "it failed", Executed::no).to("ps"));
    CHECK(error.code() == code);
    CHECK(error.message() == "it failed");
    CHECK(error.worker() == "ps");
    CHECK(error.executed() == Executed::no);
  }
}

TEST_CASE("whether the call has run is passed on", "[failure]") {
  for (const Executed executed : {Executed::unknown, Executed::no, Executed::yes}) {
    CHECK(passedOn(Error(ErrorCode::timeout, "", executed)).executed() == executed);
  }
}

TEST_CASE("what all mean that a worker cannot be reached is one kind", "[failure]") {
  for (const ErrorCode code :
       {ErrorCode::linkBroken, ErrorCode::refused, ErrorCode::duplicateLink, ErrorCode::peerLeft,
        ErrorCode::badFrame}) {
    CHECK(passedOn(Error(code, "")).code() == ErrorCode::unreachable);
  }
}

TEST_CASE("a failure of another kind is still an error", "[failure]") {
  CHECK(passedOn(Error(ErrorCode::shutDown, "over")));
  CHECK(passedOn(Error(ErrorCode::injected, "by rule 3")));
}

TEST_CASE("bytes that are no failure are refused", "[failure]") {
  const std::vector<char> whole = encodeFailure(Error(ErrorCode::timeout, "late").to("ps"));
  for (size_t length = 0; length < whole.size(); ++length) {
    CHECK_THROWS_AS(
        decodeFailure(std::vector<char>(whole.begin(), whole.begin() + length)), FormatError);
  }
  auto wrong = whole;
  wrong[0] = 6; // a kind
  CHECK_THROWS_AS(decodeFailure(wrong), FormatError);
  wrong = whole;
  wrong[1] = 3; // executed
  CHECK_THROWS_AS(decodeFailure(wrong), FormatError);
}

TEST_CASE("an error of a call comes out of an exception as it went in", "[call_error]") {
  const Error error = Error(ErrorCode::workerDied, "it died", Executed::unknown).to("ps");
  const auto found = callErrorIn(exceptionOf(error));
  REQUIRE(found);
  CHECK(found->code() == error.code());
  CHECK(found->worker() == "ps");
  CHECK_THROWS_WITH(std::rethrow_exception(exceptionOf(error)), "it died");
}

TEST_CASE("an error that is only words is a plain exception", "[call_error]") {
  const auto exception = exceptionOf(Error(ErrorCode::raised, "a hook raised"));
  CHECK_FALSE(callErrorIn(exception));
  CHECK_THROWS_WITH(std::rethrow_exception(exception), "a hook raised");
}
