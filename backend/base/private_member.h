// Access to private members of libtorch's classes.
#pragma once

namespace torchwire {

/// Makes `Member`, a pointer to a private member, what `pointerTo(Tag())` returns. The names in an explicit
/// instantiation are not subject to access control ([temp.spec.general]), so this is standard C++:
///
///     struct Lock { friend auto pointerTo(Lock); };
///     template struct PrivateMember<Lock, &DistEngine::initializedContextIdsLock_>;
///
///     std::mutex& lock = engine.*pointerTo(Lock());
///
/// A member that is gone, or has another type than its use expects, is a compile-time error.
template <typename Tag, auto Member>
struct PrivateMember {
  friend auto pointerTo(Tag) {
    return Member;
  }
};

} // namespace torchwire
