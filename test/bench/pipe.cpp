// One of the two processes whose pipe pipe.py times, which starts and stops them:
//
//   pipe_bench callee CONTESTANT [OPTION...]       prints the address to call, then answers
//   pipe_bench caller CONTESTANT URL [OPTION...]   reads workloads, prints the nanoseconds of their samples
//
// CONTESTANT is TRANSPORT or TRANSPORT/CHANNEL.

#include <signal.h>
#include <sys/prctl.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "test/bench/pipe_endpoint.h"
#include "test/bench/pipe_peer.h"

namespace torchwire::bench {
namespace {

PeerOptions parseOptions(const std::string& contestant, const std::vector<std::string>& arguments) {
  PeerOptions options{.asTensors = contestant.find('/') != std::string::npos};
  for (const std::string& argument : arguments) {
    if (argument == "--fresh-buffers") {
      options.freshBuffers = true;
    } else if (argument == "--user-thread") {
      options.userThread = true;
    } else {
      throw std::runtime_error("unknown option " + argument);
    }
  }
  return options;
}

void serve(const std::string& contestant, const std::vector<std::string>& arguments) {
  Endpoint endpoint(contestant);
  std::cout << endpoint.listen() << std::endl;
  Callee callee(endpoint.accept(), parseOptions(contestant, arguments));
  callee.serve();
  callee.close();
  endpoint.join();
}

void call(
    const std::string& contestant, const std::string& url,
    const std::vector<std::string>& arguments) {
  Endpoint endpoint(contestant);
  Caller caller(endpoint.dial(url), parseOptions(contestant, arguments));
  Workload workload;
  while (std::cin >> workload.kind >> workload.size >> workload.warmUps >> workload.samples >>
         workload.messages) {
    for (uint64_t sample : caller.run(workload)) {
      std::cout << sample << ' ';
    }
    std::cout << std::endl;
  }
  caller.close();
  endpoint.join();
}

void run(const std::vector<std::string>& arguments) {
  if (arguments.size() >= 2 && arguments[0] == "callee") {
    serve(arguments[1], {arguments.begin() + 2, arguments.end()});
  } else if (arguments.size() >= 3 && arguments[0] == "caller") {
    call(arguments[1], arguments[2], {arguments.begin() + 3, arguments.end()});
  } else {
    throw std::runtime_error("started by pipe.py, not by hand");
  }
}

} // namespace
} // namespace torchwire::bench

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL); // a stopped process would not notice that pipe.py is gone
  try {
    torchwire::bench::run({argv + 1, argv + argc});
    return EXIT_SUCCESS;
  } catch (const std::exception& e) {
    std::cerr << "pipe_bench: " << e.what() << std::endl;
    return EXIT_FAILURE;
  }
}
