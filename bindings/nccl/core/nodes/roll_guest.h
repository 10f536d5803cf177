// RollGuest: a rank's end of the roll over nodes of one communicator. It signs before NCCL's init,
// and meets all other ranks later, once for each topic.
//
// Threads: one at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "bindings/nccl/core/nodes/mark.h"
#include "bindings/nccl/core/nodes/roll_wire.h"
#include "group/channel.h"
#include "group/group.h"

namespace braid::nccl {

class RollGuest {
 public:
  /// Not ok: this rank is not in the roll, so that it is whole for nobody.
  static Result<std::unique_ptr<RollGuest>> sign(const Mark& mark, std::string_view key,
                                                 const std::string& job_token, Deadline deadline);

  /// All ranks' words, or why not all came: one outcome for all ranks. Not ok: the roll was lost,
  /// and what the others have been told is not known here.
  Result<Met> meet(const std::string& topic, const Coming& coming,
                   const std::function<bool()>& is_aborted);
  /// The group of all ranks. `met` is of kGroupTopic.
  Result<std::unique_ptr<group::Group>> join(const Met& met, int rank, int num_ranks,
                                             Deadline deadline,
                                             const group::Interrupt& interrupt) const;
  /// This host's, on the way to the roll.
  Result<sys::Endpoint> own_address() const { return sys::local_endpoint(channel_.fd()); }

 private:
  RollGuest(sys::Endpoint at, std::string name, group::Channel channel)
      : at_(at), name_(std::move(name)), channel_(std::move(channel)) {}
  Result<std::string> await(const std::string& topic, Deadline deadline,
                            const std::function<bool()>& is_aborted);

  const sys::Endpoint at_;
  const std::string name_;
  group::Channel channel_;
};

}  // namespace braid::nccl
