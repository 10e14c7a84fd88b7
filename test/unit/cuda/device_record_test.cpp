#include "cuda/device_record.h"

#include <catch2/catch.hpp>

#include <random>

#include "test/unit/cuda/sample_devices.h"
#include "test/unit/support/seeds.h"

using namespace torchwire;
using namespace torchwire::cuda;

namespace {

DeviceRecord sample() {
  DeviceRecord record = worker("trainer0", 2);
  record.counts.emplace(c10::DeviceType::PrivateUse1, 1);
  record.host = "a boot's id";
  record.automatic = true;
  record.nccl = true;
  record.ncclLeavesHost = false;
  record.devices = {gpu(1), gpu(0)};
  record.maps["ps"] = {{gpu(0), gpu(3)}, {kCpu, gpu(1)}};
  record.maps["trainer1"] = {};
  return record;
}

void checkEqual(const DeviceRecord& a, const DeviceRecord& b) {
  CHECK(a.name == b.name);
  CHECK(a.host == b.host);
  CHECK((a.maps == b.maps));
  CHECK(a.automatic == b.automatic);
  CHECK(a.nccl == b.nccl);
  CHECK(a.ncclLeavesHost == b.ncclLeavesHost);
  CHECK((a.devices == b.devices));
  CHECK((a.counts == b.counts));
}

} // namespace

TEST_CASE("a device record survives its encoding", "[device_record]") {
  checkEqual(DeviceRecord::decode(sample().encode()), sample());
  checkEqual(DeviceRecord::decode(DeviceRecord().encode()), DeviceRecord());
}

TEST_CASE("device records travel one after another", "[device_record]") {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  sample().write(out);
  worker("ps", 1).write(out);
  ByteReader in(bytes);
  checkEqual(DeviceRecord::read(in), sample());
  checkEqual(DeviceRecord::read(in), worker("ps", 1));
  CHECK(in.remaining() == 0);
}

TEST_CASE(
    "the encoding does not depend on the order in which maps were filled", "[device_record]") {
  DeviceRecord forwards = worker("a", 8);
  DeviceRecord backwards = worker("a", 8);
  for (int i = 0; i < 8; ++i) {
    forwards.maps["b"].emplace(gpu(i), gpu(i));
    backwards.maps["b"].emplace(gpu(7 - i), gpu(7 - i));
  }
  CHECK((forwards.encode() == backwards.encode()));
}

TEST_CASE("what options can say wrongly about devices travels as it is", "[device_record]") {
  DeviceRecord record = worker("a", 1);
  c10::Device strange = kCpu;
  strange.set_index(1); // torch.device("cpu:1")
  c10::Device wrapped = gpu(0);
  wrapped.set_index(-56); // torch.device("cuda:200")
  record.devices = {gpu(-1), wrapped, gpu(0), gpu(0)};
  record.maps["b"] = {{strange, wrapped}, {kCpu, gpu(-1)}};
  checkEqual(DeviceRecord::decode(record.encode()), record);
}

TEST_CASE("a device record cut short is refused wherever the cut is", "[device_record]") {
  const std::vector<char> whole = sample().encode();
  for (size_t length = 0; length < whole.size(); ++length) {
    const std::vector<char> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(length));
    CHECK_THROWS_AS(DeviceRecord::decode(cut), FormatError);
  }
}

TEST_CASE("bytes after a device record are refused", "[device_record]") {
  std::vector<char> bytes = sample().encode();
  bytes.push_back(0);
  CHECK_THROWS_WITH(
      DeviceRecord::decode(bytes), "a device record is followed by 1 bytes that are not its own");
}

TEST_CASE("a malformed device record is refused", "[device_record]") {
  DeviceRecord record;
  record.devices = {gpu(0)};
  record.counts = {{c10::DeviceType::CUDA, 1}};
  record.maps["b"] = {{gpu(0), gpu(0)}};
  std::vector<char> bytes = record.encode();
  // Where its parts are: name 0-3, host 4-7, automatic 8, nccl 9, ncclLeavesHost 10, devices 11-16, counts 17-22,
  // maps 23-39.
  REQUIRE(bytes.size() == 40);
  const auto refusal = [](const std::vector<char>& changed) -> std::string {
    try {
      DeviceRecord::decode(changed);
    } catch (const FormatError& error) {
      return error.what();
    }
    return "";
  };
  SECTION("a switch is neither yes nor no") {
    for (const size_t at : {8u, 9u, 10u}) {
      std::vector<char> neither = bytes;
      neither[at] = 2;
      CHECK(refusal(neither) == "a device record has 2 for yes or no");
    }
  }
  SECTION("a device's type is unknown") {
    bytes[15] = 99;
    CHECK(refusal(bytes) == "there is no device type 99");
    bytes[15] = -1;
    CHECK(refusal(bytes) == "there is no device type -1");
  }
  SECTION("a count is negative") {
    bytes[22] = -1;
    CHECK(refusal(bytes) == "a device record has no good count of cuda devices");
  }
  SECTION("a count of items exceeds what follows") {
    for (const size_t at : {11u, 17u, 23u, 32u}) {
      std::vector<char> hostile = bytes;
      std::fill_n(hostile.begin() + static_cast<ptrdiff_t>(at), 4, '\xff');
      CHECK(refusal(hostile) == "a count of 4294967295 exceeds what follows it");
    }
  }
}

TEST_CASE("what comes twice in a device record is refused", "[device_record]") {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  out.string("a");
  out.string(""); // host
  out.number<uint8_t>(0); // automatic
  out.number<uint8_t>(0); // nccl
  out.number<uint8_t>(0); // ncclLeavesHost
  out.number<uint32_t>(0);
  const auto writeDevice = [&](c10::Device device) {
    out.number(device.type());
    out.number(device.index());
  };
  SECTION("a type") {
    out.number<uint32_t>(2);
    writeDevice(gpu(1)); // type and count look the same
    writeDevice(gpu(2));
    CHECK_THROWS_WITH(
        DeviceRecord::decode(bytes), "a device record has no good count of cuda devices");
  }
  SECTION("a peer") {
    out.number<uint32_t>(0);
    out.number<uint32_t>(2);
    for (int i = 0; i < 2; ++i) {
      out.string("b");
      out.number<uint32_t>(0);
    }
    CHECK_THROWS_WITH(DeviceRecord::decode(bytes), "a device record has two maps for 'b'");
  }
  SECTION("a source") {
    out.number<uint32_t>(0);
    out.number<uint32_t>(1);
    out.string("b");
    out.number<uint32_t>(2);
    for (int i = 0; i < 2; ++i) {
      writeDevice(gpu(0));
      writeDevice(gpu(i));
    }
    CHECK_THROWS_WITH(DeviceRecord::decode(bytes), "a device map has two entries for cuda:0");
  }
}

TEST_CASE("no bytes make a device record do more than refuse", "[device_record]") {
  const std::vector<char> whole = sample().encode();
  for (const unsigned seed : seeds(20)) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (int i = 0; i < 200; ++i) {
      std::vector<char> bytes = whole;
      bytes[random() % bytes.size()] = static_cast<char>(random());
      try {
        const DeviceRecord record = DeviceRecord::decode(bytes);
        CHECK((record.encode().size() == bytes.size()));
      } catch (const FormatError&) {
        // As it should be; anything else fails the test.
      }
    }
  }
}

TEST_CASE("a worker has the devices that are counted, and the cpu", "[device_record]") {
  const DeviceRecord record = worker("a", 2);
  CHECK(record.has(gpu(0)));
  CHECK(record.has(gpu(1)));
  CHECK_FALSE(record.has(gpu(2)));
  CHECK_FALSE(record.has(gpu(-1)));
  CHECK_FALSE(record.has(xpu(0)));
  CHECK(record.has(kCpu));
  CHECK(record.has(c10::Device(c10::DeviceType::CPU, 0)));
}

TEST_CASE("a worker's maps may use the devices that it was given, or all", "[device_record]") {
  DeviceRecord record = worker("a", 3);
  CHECK((record.usableDevices() == std::vector{gpu(0), gpu(1), gpu(2)}));
  record.devices = {gpu(2), gpu(1), gpu(7)};
  CHECK((record.usableDevices() == std::vector{gpu(1), gpu(2)}));
  CHECK_FALSE(record.mayUse(gpu(0)));
  CHECK(record.mayUse(gpu(1)));
  CHECK_FALSE(record.mayUse(gpu(7)));
  CHECK(record.mayUse(kCpu));
}
