#include "bindings/nccl/core/liveness_lock.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "sys/error_text.h"

namespace braid::nccl {

namespace {

using FileId = std::pair<dev_t, ino_t>;

// Behind all bytes that the file has: nobody reads or writes there.
constexpr off_t kFirstLock = off_t{1} << 40;

struct flock lock_of(uint32_t seat, short type) {  // NOLINT(google-runtime-int): the field's type
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = kFirstLock + static_cast<off_t>(seat);
  lock.l_len = 1;
  return lock;
}

}  // namespace

struct LivenessLock::File {
  FileId id;
  sys::Fd used;                // set before anybody else sees the file, and not touched again
  std::vector<sys::Fd> extra;  // under mutex(): they wait for the end

  static std::mutex& mutex() {
    static auto* const kThe = new std::mutex;  // never destroyed: processes end in any order
    return *kThe;
  }
  static std::map<FileId, std::weak_ptr<File>>& all() {
    static auto* const kThe = new std::map<FileId, std::weak_ptr<File>>;
    return *kThe;
  }
  ~File() {
    const std::lock_guard lock(mutex());
    const auto found = all().find(id);
    if (found != all().end() && found->second.expired()) all().erase(found);
    used = sys::Fd();
    extra.clear();
  }
};

Result<LivenessLock> LivenessLock::on(sys::Fd fd) {
  struct stat facts{};
  if (fstat(fd.get(), &facts) != 0) return driver_error("fstat: {}", sys::error_text(errno));
  const FileId id{facts.st_dev, facts.st_ino};
  const std::lock_guard lock(File::mutex());
  std::weak_ptr<File>& known = File::all()[id];
  std::shared_ptr<File> file = known.lock();
  if (file == nullptr) {
    file = std::make_shared<File>();
    file->id = id;
    file->used = std::move(fd);
    known = file;
  } else {
    file->extra.push_back(std::move(fd));
  }
  return LivenessLock(std::move(file));
}

Status LivenessLock::claim(uint32_t seat) {
  struct flock lock = lock_of(seat, F_WRLCK);
  if (fcntl(file_->used.get(), F_SETLK, &lock) == 0) return {};
  return driver_error("lock of seat {}: {}", seat, sys::error_text(errno));
}

// What cannot be asked is taken for alive: the deadline of the wait remains.
bool LivenessLock::is_claimed_by_another(uint32_t seat) const {
  if (file_ == nullptr) return true;
  struct flock lock = lock_of(seat, F_WRLCK);
  return fcntl(file_->used.get(), F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool LivenessLock::is_named(const char* path) const {
  struct stat facts{};
  return file_ != nullptr && stat(path, &facts) == 0 &&
         file_->id == FileId{facts.st_dev, facts.st_ino};
}

}  // namespace braid::nccl
