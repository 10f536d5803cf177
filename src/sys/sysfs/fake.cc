#include "sys/sysfs/fake.h"

#include <set>

namespace braid::sys {

namespace {

// Calls `visit` with the name that follows `folder/` in each key of an ordered map.
template <typename Map, typename Visit>
void visit_below(const Map& map, const std::string& folder, Visit visit) {
  for (auto it = map.lower_bound(folder); it != map.end() && it->first.starts_with(folder); ++it) {
    const std::string_view rest = std::string_view(it->first).substr(folder.size());
    visit(std::string(rest.substr(0, rest.find('/'))));
  }
}

}  // namespace

// Replaces the first link on the way by its target until none is left. Sixteen is deeper than sysfs
// goes, and ends a loop.
std::string FakeSysfs::follow(std::string_view path) const {
  std::string at(path);
  for (int depth = 0; depth < 16; ++depth) {
    bool is_changed = false;
    for (size_t end = at.find('/', 1); !is_changed; end = at.find('/', end + 1)) {
      const auto link = links_.find(at.substr(0, end));
      if (link != links_.end()) {
        at = link->second + (end == std::string::npos ? "" : at.substr(end));
        is_changed = true;
      }
      if (end == std::string::npos) break;
    }
    if (!is_changed) break;
  }
  return at;
}

bool FakeSysfs::exists(const std::string& path) const {
  return files_.contains(path) || unreadable_.contains(path) || !list(path).empty();
}

Result<std::string> FakeSysfs::read(std::string_view path) const {
  const std::string at = follow(path);
  const auto file = files_.find(at);
  if (file == files_.end() || unreadable_.contains(at))
    return unavailable("{}: cannot be read", path);
  std::string text = file->second;
  text.erase(text.find_last_not_of(" \t\n") + 1);
  return text;
}

std::vector<std::string> FakeSysfs::list(std::string_view path) const {
  const std::string folder = follow(path) + "/";
  std::set<std::string> names;
  const auto add = [&](std::string name) { names.insert(std::move(name)); };
  visit_below(files_, folder, add);
  visit_below(links_, folder, add);
  visit_below(unreadable_, folder, add);
  return {names.begin(), names.end()};
}

Result<std::string> FakeSysfs::resolve(std::string_view path) const {
  std::string at = follow(path);
  if (!exists(at)) return unavailable("{}: does not exist", path);
  return at;
}

}  // namespace braid::sys
