// Notices that libtorch has made an OwnerRRef.
#pragma once

namespace torchwire {

/// Tells whether an OwnerRRef may have been made on this thread since the watch began. libtorch has no event for that;
/// but it asks the agent for its devices whenever it makes one. It does so as well when it tells the owner or the parent
/// of an RRef that has come, so that a yes may be wrong. A no is not.
class OwnerWatch {
 public:
  OwnerWatch() {
    made_ = false;
  }
  bool sawOwner() const {
    return made_;
  }

  /// Called by the agent when it is asked for its devices.
  static void devicesAsked() {
    made_ = true;
  }

 private:
  static inline thread_local bool made_ = false;
};

} // namespace torchwire
