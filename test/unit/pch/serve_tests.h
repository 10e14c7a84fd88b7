// Precompiled for the tests of backend/serve: libtorch's half of RPC, which takes 20 s a file without this.

#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/distributed/rpc/script_call.h>

#include <catch2/catch.hpp>

#include "backend/serve/dispatcher.h"
