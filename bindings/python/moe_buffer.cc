#include "moe_buffer.h"

namespace braid::python {

namespace {
constexpr uint64_t kMostCount = uint64_t{1} << 31;
}  // namespace

uint64_t times(std::initializer_list<int64_t> factors) {
  uint64_t product = 1;
  for (const int64_t factor : factors) {
    if (factor < 0 || static_cast<uint64_t>(factor) > kMostCount)
      raise_if_failed(invalid_argument("moe: asked for counts of 0 to 2^31, found {}", factor));
    if (factor != 0 && product > (uint64_t{1} << 62) / static_cast<uint64_t>(factor))
      raise_if_failed(invalid_argument("moe: a shape of more than 2^62 bytes"));
    product *= static_cast<uint64_t>(factor);
  }
  return product;
}

}  // namespace braid::python
