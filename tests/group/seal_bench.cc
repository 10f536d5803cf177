// What sealing a control frame costs, beside signing it with HMAC-SHA256: built and run by hand,
// cmake --build DIR --target seal_bench. Prints JSON: nanoseconds of sealing and of opening, the
// smallest of several runs.
#include <algorithm>
#include <cstdio>
#include <string>

#include "base/clock.h"
#include "group/frame_seal.h"
#include "group/keyed_hash.h"
#include "group/wire.h"

namespace {

using namespace braid;  // NOLINT: a program of one file

constexpr int kRuns = 7, kFrames = 2000;

template <typename Body>
double best_ns(Body body) {
  double best = 1e18;
  for (int run = 0; run < kRuns; ++run) {
    const int64_t begin_ns = now_ns();
    for (int i = 0; i < kFrames; ++i) body();
    best = std::min(best, static_cast<double>(now_ns() - begin_ns) / kFrames);
  }
  return best;
}

void measure(size_t blob_bytes, bool is_first) {
  const std::string key(group::kSealKeyBytes, 'k');
  const std::string frame = encode(group::Blob{1, 1, "topic", std::string(blob_bytes, 'b')});
  group::FrameSeal seal(key, group::FrameSeal::Use::kSeal);
  group::KeyedHash hash(key);
  std::string out;
  const double sealed = best_ns([&] {
    out.clear();
    seal.seal(frame, out);
  });
  const double both = best_ns([&] {
    // A fresh pair would cost its set-up: the opener follows the sealer's numbers instead.
    static group::FrameSeal sealer(key, group::FrameSeal::Use::kSeal),
        opener(key, group::FrameSeal::Use::kOpen);
    out.clear();
    sealer.seal(frame, out);
    if (!opener.open(std::as_writable_bytes(std::span(out)))) std::abort();
  });
  const double hmac = best_ns([&] { (void)hash.digest("12345678", frame); });
  std::printf("%s{\"blob_bytes\": %zu, \"seal_ns\": %.0f, \"open_ns\": %.0f, \"hmac_ns\": %.0f}",
              is_first ? "[" : ", ", blob_bytes, sealed, both - sealed, hmac);
}

}  // namespace

int main() {
  bool is_first = true;
  for (const size_t bytes : {0u, 64u, 1024u, 65536u, 1048576u}) {
    measure(bytes, is_first);
    is_first = false;
  }
  std::puts("]");
}
