// What almost every file with torch in it includes: 20 s each without this.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
