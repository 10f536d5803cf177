// Which endpoints of provider shm this process has, so that those who know each other can hold each
// other (real.h).
#include <map>

#include "sys/fabric/real.h"

namespace braid::sys {

namespace {

struct Neighbour {
  std::weak_ptr<Neighbours> holder;
  std::weak_ptr<EndHandle> handle;
};

struct Neighbourhood {
  std::mutex mutex;
  std::map<std::string, Neighbour> by_name;
};

Neighbourhood& neighbourhood() {
  static Neighbourhood all;
  return all;
}

std::string without_end(const std::string& name) { return name.substr(0, name.find('\0')); }

}  // namespace

void Neighbours::enter(const std::string& name, const std::shared_ptr<Neighbours>& self,
                       const std::shared_ptr<EndHandle>& handle) {
  const std::lock_guard lock(neighbourhood().mutex);
  neighbourhood().by_name[without_end(name)] = {self, handle};
}

void Neighbours::leave(const std::string& name) {
  const std::lock_guard lock(neighbourhood().mutex);
  neighbourhood().by_name.erase(without_end(name));
}

void Neighbours::hold_each_other(Neighbours& self, const std::shared_ptr<EndHandle>& handle,
                                 const std::string& name) {
  const std::lock_guard lock(neighbourhood().mutex);
  const auto found = neighbourhood().by_name.find(without_end(name));
  if (found == neighbourhood().by_name.end()) return;
  const auto other = found->second.holder.lock();
  const auto others_handle = found->second.handle.lock();
  if (other == nullptr || others_handle == nullptr || others_handle == handle) return;
  self.held_.push_back(others_handle);
  other->held_.push_back(handle);
}

}  // namespace braid::sys
