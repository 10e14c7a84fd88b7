#include "test/unit/support/callback_ledger.h"

#include <catch2/catch.hpp>

using namespace torchwire;

TEST_CASE("a callback that is called once is no reason to complain", "[callback_ledger]") {
  CallbackLedger ledger;
  ledger.expect("a send")(Error(ErrorCode::timeout, "too late"));
  CHECK(ledger.complaints().empty());
  CHECK(ledger.waitForAll());
}

TEST_CASE("a callback that is dropped is named", "[callback_ledger]") {
  CallbackLedger ledger;
  {
    const auto dropped = ledger.expect("a send");
  }
  CHECK_FALSE(ledger.allCalled());
  REQUIRE(ledger.complaints().size() == 1);
  CHECK(ledger.complaints().front() == "the callback of 'a send' was called 0 times, not once");
  ledger.forgive();
}

TEST_CASE("a callback that is called twice is named", "[callback_ledger]") {
  CallbackLedger ledger;
  CallbackNote& note = ledger.note("a send");
  const auto sent = CallbackLedger::expect(note);
  sent(Error());
  sent(Error(ErrorCode::timeout, "again"));
  CHECK_FALSE(note.error());
  REQUIRE(ledger.complaints().size() == 1);
  CHECK(ledger.complaints().front() == "the callback of 'a send' was called 2 times, not once");
  ledger.forgive();
}
