// Several pieces of work that may wait for each other, each on a thread.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace braid::nccl {

/// Threads that are joined at the end. Where the system gives no more of them, the piece is done
/// in join(), one after the other.
class Beside {
 public:
  Beside() = default;
  ~Beside() { join(); }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;

  /// `piece` throws nothing.
  void begin(std::function<void()> piece) {
    try {
      threads_.emplace_back(piece);
    } catch (...) {
      left_over_.push_back(std::move(piece));
    }
  }
  void join() {
    for (const auto& piece : left_over_) piece();
    for (std::thread& thread : threads_) thread.join();
    left_over_.clear();
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
  std::vector<std::function<void()>> left_over_;
};

/// Does piece(0) to piece(num - 1), the last one on the calling thread.
template <typename Piece>
void side_by_side(size_t num, const Piece& piece) {
  Beside others;
  for (size_t i = 0; i + 1 < num; ++i) others.begin([&piece, i] { piece(i); });
  if (num > 0) piece(num - 1);
}

}  // namespace braid::nccl
